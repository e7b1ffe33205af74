"""`medagent sft`: the warm start of the protocol before reinforcement learning.

It maximises the likelihood of a dialogue's turns, by LoRA. Tokens, masks, adapters, passes and the export are those of
reinforcement learning. Only the loss differs.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import torch
from jsonargparse import lazy_instance  # type: ignore[attr-defined]
from lightning import Callback, LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from medagent.environment import AgentSettings
from medagent.errors import ConfigError, require
from medagent.evaluation.benchmarks import Benchmark
from medagent.models.text_length import check_text_length
from medagent.retrieval.retriever import Retriever
from medagent.training.agent_data import AgentData, Work
from medagent.training.batching import pack_rows, split_update
from medagent.training.compatibility import check_protocol
from medagent.training.default_callbacks import log_at_once
from medagent.training.engines import Engine, InProcessEngine
from medagent.training.execution import Execution
from medagent.training.experience import Experience, RolloutTensors, consecutive, loss_weights, rollout_name, tensorize
from medagent.training.lora import LoraSettings
from medagent.training.module import AgentModule
from medagent.training.objectives import ratio_segments
from medagent.training.ranks import over_ranks
from medagent.training.sft.data import LeftOutReason, encoded, in_words, num_held_out, split
from medagent.training.sft.dialogues import Demonstrations
from medagent.types import Question, Rollout, rollout_seed


class SupervisedModule(AgentModule):
    """The policy alone. The loss is the mean negative log-likelihood of an optimizer step's action tokens, in nats."""

    def __init__(
        self,
        base_model: str = "starter",
        dtype: str = "auto",
        policy_lora: LoraSettings = LoraSettings(),
        policy_lr: float = 1e-4,
        lr_decay_iterations: int | None = None,
        weight_decay: float = 0.0,
        policy_max_grad_norm: float = 1.0,
        execution: Execution = Execution(),
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__(critic_lora=None, **given)

    def loss_terms(self, batch: Experience) -> list[Callable[[Experience], Tensor]]:
        """See `AgentModule.loss_terms`: the likelihood alone."""
        return [self._likelihood_loss]

    def _likelihood_loss(self, batch: Experience) -> Tensor:
        scores = self.shared_base.policy_scores(
            batch.token_ids_BT, batch.attention_BT, batch.mask_BT, temperature=self.temperature
        )
        self.finite_steps.note_rows(batch, scores.logprobs_BT)
        self.add_to_sums({"sft/loss": -scores.logprobs_BT.detach().sum(), "tokens": batch.mask_BT.sum()})
        return -(batch.loss_weights_BT * scores.logprobs_BT).sum()

    def on_train_epoch_end(self) -> None:
        """Log besides how many dialogues are imitated, and how many are left out for each reason."""
        super().on_train_epoch_end()
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if isinstance(data, SupervisedData):
            self.log_dict(data.counts)


class SupervisedData(AgentData):
    """The dialogues of `medagent sft`, which are imitated in epochs.

    A step takes `batch_size` on each rank, or a few more if they do not divide. `held_out` of the questions are never
    trained on: a share below 1, or a number. The loss on them tells when more epochs only learn by heart
    (`HeldOutLoss`).

    `retriever` and `agent` are those of the reinforcement learning to come: what is imitated must look as it will look
    there.
    """

    default_callbacks = (
        "medagent.training.sft.HeldOutLoss",
        "medagent.training.callbacks.AgentExport",
        "medagent.training.sft.SupervisedProgress",
    )
    any_step_ends = True

    def __init__(
        self,
        demonstrations: Demonstrations,
        retriever: Retriever,
        agent: AgentSettings = AgentSettings(),
        engine: Engine = lazy_instance(InProcessEngine),
        batch_size: int = 32,
        num_micro_batches: int = 1,
        held_out: float = 0.05,
        val_benchmark: Benchmark | None = None,
        allowed_contamination: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__(
            agent,
            retriever,
            engine,
            val_benchmark=val_benchmark,
            allowed_contamination=allowed_contamination,
            seed=seed,
        )
        num_held_out(held_out, 0)  # refuses what is no share
        parts = num_micro_batches
        require(batch_size >= parts, "data.batch_size", batch_size, f"data.num_micro_batches, {parts}, or more")
        if not isinstance(engine, InProcessEngine):
            raise ConfigError(
                f"data.engine: found {type(engine).__name__}, wanted InProcessEngine: it samples held-out answers "
                "alone here. The agent that samples demonstrations is named in data.demonstrations."
            )
        self.batch_size, self.num_micro_batches, self.held_out_share = batch_size, num_micro_batches, held_out
        self.items: list[Rollout] = []
        self.held_out: list[Rollout] = []
        self.demonstrations = demonstrations
        self.counts: dict[str, float] = {}  # metrics; every process reads all dialogues, so they are those of all ranks

    def setup(self, stage: str) -> None:
        """Collect the dialogues, or read those that the run's folder holds."""
        trainer, settings = self.trainer, self.agent_settings
        if trainer is None or not isinstance(module := trainer.lightning_module, SupervisedModule):
            raise ConfigError("SupervisedData serves a trainer that fits a SupervisedModule.")
        base = f"the base {module.base_name}"
        check_text_length(module.shared_base.peft.config, settings.limits.max_total_tokens, base)
        settings.protocol.encode_prompt(module.tokenizer, Question("probe", "probe"))  # can prompts be made?
        check_protocol(module.shared_base.base, module.tokenizer, settings.protocol)
        folder = Path(trainer.default_root_dir) / "demonstrations"
        made = folder.with_name("demonstrations.made")
        if trainer.is_global_zero:
            self.demonstrations.make(settings, self.retriever, folder, module.tokenizer)
            made.touch()
        while not made.exists():  # not a barrier, which gives up after minutes
            time.sleep(1)
        read = self.demonstrations.read(folder, settings.protocol)
        if trainer.is_global_zero:
            module.shared_base.token_counts.read(self.demonstrations.sampled_tokens)
        fit, left_out = encoded(read, settings, module.tokenizer)
        left_out.update(self.demonstrations.left_out)
        self._take(trainer, fit, read=len(read), left_out=in_words(left_out))
        self.counts = {
            "sft/demonstrations": float(len(self.items)),
            "sft/held_out": float(len(self.held_out)),
            **{f"sft/left_out_{reason.name.lower()}": float(left_out[reason]) for reason in LeftOutReason},
            **{f"sft/part_{name}": float(count) for name, count in self.demonstrations.parts.items()},
        }
        self.questions = [rollout.question for rollout in self.items]
        self.check_validation()

    def _take(self, trainer: Trainer, dialogues: Sequence[Rollout], *, read: int, left_out: str) -> None:
        """Hold some dialogues out, and print how many there are; ConfigError if they do not fill one step."""
        self.items, self.held_out = split(dialogues, self.held_out_share, seed=self.seed)
        wanted = self.batch_size * trainer.world_size
        kept_back = f", {len(self.held_out)} held out" if self.held_out else ""
        if len(self.items) < wanted:
            raise ConfigError(
                f"data.demonstrations: found {len(self.items)} (read: {read}{kept_back}; left out: {left_out}), wanted "
                f"{wanted} or more for one optimizer step. Give more questions or samples, raise the limits, or lower "
                "data.batch_size or data.held_out."
            )
        if trainer.is_global_zero:
            print(f"{len(self.items)} demonstrations{kept_back}. Left out: {left_out}.", flush=True)

    def work(self, world_size: int) -> Work:
        """A rank's work in memory: one optimizer step, of dialogues as long as the longest one."""
        longest = max(len(rollout.token_ids) for rollout in self.items)
        return Work(self.batch_size, self.num_micro_batches, longest)

    def train_dataloader(self) -> DataLoader[Experience]:
        """A loader without workers or collation: the dataset yields whole optimizer steps."""
        return DataLoader(_Pass(self, self.trainer), batch_size=None, num_workers=0)


class _Pass(IterableDataset[Experience]):
    """The optimizer steps of one epoch, dealt by its number."""

    def __init__(self, data: SupervisedData, trainer: Trainer) -> None:
        self._data, self._trainer = data, trainer
        self._own = data.items[trainer.global_rank :: trainer.world_size]
        # Equal on all ranks, also where some have one item more.
        self._steps = len(data.items) // trainer.world_size // data.batch_size

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Experience]:
        data, trainer = self._data, self._trainer
        module = trainer.lightning_module
        assert isinstance(module, AgentModule)
        factor = float(trainer.world_size)
        order = rollout_seed(data.seed, iteration=trainer.current_epoch, question_id="sft", sample=0)
        for parts in split_update(
            [len(rollout.token_ids) for rollout in self._own],
            groups=None,
            num_minibatches=self._steps,
            num_micro_batches=data.num_micro_batches,
            seed=order,
        ):
            chosen = [self._own[index] for part in parts for index in part]
            own = torch.tensor(float(sum(sum(rollout.loss_mask) for rollout in chosen)), dtype=torch.float64)
            total = int(over_ranks(trainer, own, "sum"))
            step = step_of(chosen, pad_id=module.pad_id, total=total, factor=factor)
            yield replace(step, micro_batches=consecutive(map(len, parts)))


def step_of(dialogues: Sequence[Rollout], *, pad_id: int, total: int = 1, factor: float = 1.0) -> Experience:
    """A rank's part of a step with `total` action tokens over ranks, each of one weight; DDP divides by `factor`."""
    tensors = tensorize(dialogues, pad_id=pad_id)
    weights = loss_weights(tensors.mask_BT, reduction="token-mean", num_tokens=total, num_rollouts=0, factor=factor)
    return replace(to_imitate(tensors, weights), names=tuple(map(rollout_name, dialogues)))


def to_imitate(tensors: RolloutTensors, loss_weights_BT: Tensor) -> Experience:
    """Demonstrations as experience: every action has advantage 1, is on policy, and no critic reads it."""
    ones_BT = tensors.mask_BT.float()
    zeros_BT = 0.0 * ones_BT
    return Experience(
        **vars(tensors),
        ratio_segments_BT=ratio_segments("token", tensors.mask_BT, tensors.turn_ids_BT),
        evidence_BKF=zeros_BT.new_zeros(len(zeros_BT), 1, 0),
        old_logprobs_BT=tensors.rollout_logprobs_BT,
        truncation_BT=ones_BT,
        reference_logprobs_BT=zeros_BT,
        values_BT=zeros_BT,
        advantages_BT=ones_BT,
        returns_BT=zeros_BT,
        loss_weights_BT=loss_weights_BT,
        value_weights_BT=zeros_BT,
        metrics={},
    )


class SupervisedProgress(Callback):
    """Prints a line per epoch: mean loss of its steps, and what was measured on held-out questions and dialogues."""

    held_out: ClassVar[Mapping[str, str]] = {
        "sft/held_out_loss": "held-out loss {:.4f}",
        "sft/held_out_turns": "turns right {:4.0%}",
        "validation/accuracy": "held-out {:4.0%}",
    }

    def __init__(self) -> None:
        self._losses: list[float] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> None:
        """Note the loss of a step that was not skipped."""
        assert isinstance(pl_module, AgentModule)
        if not pl_module.finite_steps.skipped:
            self._losses.append(float(trainer.callback_metrics["sft/loss"]))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the epoch's line."""
        loss = sum(self._losses) / len(self._losses) if self._losses else math.nan
        self._losses = []
        metrics = trainer.callback_metrics
        told = [words.format(float(metrics[name])) for name, words in self.held_out.items() if name in metrics]
        epoch = f"epoch {trainer.current_epoch + 1:3d}/{trainer.max_epochs}"
        print("  ".join([epoch, f"loss {loss:.4f} nats per token", *told]), flush=True)


class HeldOutLoss(Callback):
    """Logs loss and right turns on held-out dialogues after each epoch.

    `sft/held_out_loss` is the negative log-likelihood per action token, in nats. `sft/held_out_turns` is the share of
    turns in which every token is the likeliest after the tokens before it: greedily the agent would write that turn.
    """

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the metrics of the epoch's weights; none where nothing is held out."""
        assert isinstance(pl_module, AgentModule)
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, SupervisedData)
        if not data.held_out:
            return
        own = sorted(data.held_out[trainer.global_rank :: trainer.world_size], key=lambda each: len(each.token_ids))
        at_a_time, sums = max(1, data.batch_size // data.num_micro_batches), torch.zeros(4, dtype=torch.float64)
        with torch.no_grad(), pl_module.shared_base.token_counts.paused():
            for start in range(0, len(own), at_a_time):
                some = step_of(own[start : start + at_a_time], pad_id=pl_module.pad_id)
                for rows in pack_rows(pl_module.execution, some.token_ids_BT, some.attention_BT):
                    sums += held_out_sums(pl_module, some.rows(rows).to(pl_module.device))
        loss, tokens, right, turns = over_ranks(trainer, sums, "sum").tolist()
        log_at_once(trainer, pl_module, {"sft/held_out_loss": loss / tokens, "sft/held_out_turns": right / turns})


def held_out_sums(module: AgentModule, part: Experience) -> Tensor:
    """[4] float64 over the rows of a pass: negative log-likelihood, action tokens, turns right, turns."""
    logprobs_BT, likeliest_BT = module.shared_base.greedy_scores(
        part.token_ids_BT, part.attention_BT, part.mask_BT, temperature=module.temperature
    )
    rows_BT = torch.arange(len(part.mask_BT), device=part.mask_BT.device)[:, None].expand_as(part.mask_BT)
    turn_BT = rows_BT * (int(part.turn_ids_BT.max()) + 2) + part.turn_ids_BT
    turns = len(turn_BT[part.mask_BT].unique())
    missed = len(turn_BT[part.mask_BT & ~likeliest_BT].unique())
    loss = -float(logprobs_BT.double().sum())
    return torch.tensor([loss, float(part.mask_BT.sum()), turns - missed, turns], dtype=torch.float64)
