"""`medagent sft`: the warm start of the protocol before reinforcement learning.

It maximises the likelihood of a dialogue's turns, by LoRA. Tokens, masks, adapters, passes and the export are those of
reinforcement learning. Only the loss differs.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from jsonargparse import lazy_instance  # type: ignore[attr-defined]
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from medagent.errors import ConfigError
from medagent.evaluation.benchmarks import Benchmark
from medagent.retrieval.retriever import Retriever
from medagent.training.agent_data import AgentSettings
from medagent.training.default_callbacks import log_at_once
from medagent.training.engines import Engine, InProcessEngine
from medagent.training.execution import Execution
from medagent.training.experience import Experience, RolloutTensors, loss_weights, rollout_name, tensorize
from medagent.training.lora import LoraSettings
from medagent.training.memory.batch_size_tuning import Work
from medagent.training.module import AgentModule
from medagent.training.objectives import ratio_segments
from medagent.training.sft.data import LeftOutReason, PassData, encoded, in_words
from medagent.training.sft.dialogues import Demonstrations
from medagent.training.sharding import ShardedBase, over_ranks
from medagent.types import Question, Rollout


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
        super().__init__(
            base_model,
            dtype,
            policy_lora,
            critic_lora=None,
            policy_lr=policy_lr,
            lr_decay_iterations=lr_decay_iterations,
            weight_decay=weight_decay,
            policy_max_grad_norm=policy_max_grad_norm,
            execution=execution,
        )

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


class SupervisedData(PassData[Rollout]):
    """The dialogues of `medagent sft`.

    The loss on held-out dialogues tells when more epochs only learn by heart (`HeldOutLoss`).

    `retriever` and `agent` are those of the reinforcement learning to come: what is imitated must look as it will look
    there.
    """

    default_callbacks = (
        "medagent.training.sft.HeldOutLoss",
        "medagent.training.callbacks.AgentExport",
        "medagent.training.sft.SupervisedProgress",
    )
    any_step_ends = True
    shuffled_as = "sft"

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
            batch_size=batch_size,
            num_micro_batches=num_micro_batches,
            held_out=held_out,
            val_benchmark=val_benchmark,
            allowed_contamination=allowed_contamination,
            seed=seed,
        )
        if not isinstance(engine, InProcessEngine):
            raise ConfigError(
                f"data.engine: found {type(engine).__name__}, wanted InProcessEngine: it samples held-out answers "
                "alone here. The agent that samples demonstrations is named in data.demonstrations."
            )
        self.demonstrations = demonstrations
        self.counts: dict[str, float] = {}  # metrics; every process reads all dialogues, so they are those of all ranks

    def setup(self, stage: str) -> None:
        """Collect the dialogues, or read those that the run's folder holds."""
        trainer, module = self.fitted(SupervisedModule)
        if isinstance(trainer.strategy, ShardedBase) and self.val_questions:
            raise ConfigError(
                "data.val_benchmark in medagent sft with ShardedBase: answers would need a whole copy of the base on "
                "each rank. Leave it out, and measure the export."
            )
        settings = self.agent_settings
        settings.protocol.encode_prompt(module.tokenizer, Question("probe", "probe"))  # can prompts be made?
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
        self.take(trainer, fit, "demonstrations", read=len(read), left_out=in_words(left_out))
        self.counts = {
            "sft/demonstrations": float(len(self.items)),
            "sft/held_out": float(len(self.held_out)),
            **{f"sft/left_out_{reason.name.lower()}": float(left_out[reason]) for reason in LeftOutReason},
            **{f"sft/part_{name}": float(count) for name, count in self.demonstrations.parts.items()},
        }
        self.questions = [rollout.question for rollout in self.items]
        self.check_validation()

    def work(self, world_size: int) -> Work:
        """A rank's work in memory: one optimizer step, of dialogues as long as the longest one."""
        longest = max(len(rollout.token_ids) for rollout in self.items)
        return self.work_of(self.batch_size, parts=self.num_micro_batches, longest=longest)

    def length_of(self, item: Rollout) -> int:
        return len(item.token_ids)

    def weight_of(self, item: Rollout) -> int:
        """Its action tokens."""
        return sum(item.loss_mask)

    def step_of(self, items: Sequence[Rollout], *, pad_id: int, total: int, factor: float) -> Experience:
        """See `PassData.step_of`; every action token of the optimizer step weighs the same."""
        tensors = tensorize(items, pad_id=pad_id)
        weights = loss_weights(tensors.mask_BT, reduction="token-mean", num_tokens=total, num_rollouts=0, factor=factor)
        return replace(to_imitate(tensors, weights), names=tuple(map(rollout_name, items)))


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


class HeldOutMetrics(Callback):
    """Logs metrics of held-out items after each epoch; a subclass says which, from `num_sums` sums over the items."""

    num_sums: ClassVar[int]

    @abstractmethod
    def sums_of(self, module: AgentModule, part: Experience) -> Tensor:
        """[num_sums] float64: sums over the rows of a pass."""

    @abstractmethod
    def metrics_of(self, sums: list[float], count: int) -> dict[str, float]:
        """The metrics, from the sums over `count` items of all ranks."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the metrics of the epoch's weights; none where nothing is held out."""
        assert isinstance(pl_module, AgentModule)
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, PassData)
        if not data.held_out:
            return
        sums = torch.zeros(self.num_sums, dtype=torch.float64)
        with torch.no_grad(), pl_module.shared_base.token_counts.paused():
            for part in data.held_out_passes(trainer, pl_module):
                sums += self.sums_of(pl_module, part.to(pl_module.device)).cpu()
        metrics = self.metrics_of(over_ranks(trainer, sums, "sum").tolist(), len(data.held_out))
        log_at_once(trainer, pl_module, metrics)


class EpochLine(Callback):
    """Prints a line per epoch: means over its steps, and held-out metrics, worded as the two mappings say."""

    of_steps: ClassVar[Mapping[str, str]]
    of_held_out: ClassVar[Mapping[str, str]]

    def __init__(self) -> None:
        self._steps: list[list[float]] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note the figures of a step that was not skipped."""
        assert isinstance(pl_module, AgentModule)
        if not pl_module.finite_steps.skipped:
            self._steps.append([float(trainer.callback_metrics[name]) for name in self.of_steps])

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the epoch's line."""
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        columns = list(zip(*self._steps, strict=True)) or [(math.nan,)] * len(self.of_steps)
        self._steps = []
        steps = (words.format(sum(x) / len(x)) for words, x in zip(self.of_steps.values(), columns, strict=True))
        told = {**self.of_held_out, "validation/accuracy": "held-out {:4.0%}"}
        parts = [words.format(metrics[name]) for name, words in told.items() if name in metrics]
        print("  ".join([f"epoch {trainer.current_epoch + 1:3d}/{trainer.max_epochs}", *steps, *parts]), flush=True)


class SupervisedProgress(EpochLine):
    """Prints a line per epoch: mean loss of its steps, and what was measured on held-out questions and dialogues."""

    of_steps: ClassVar[Mapping[str, str]] = {"sft/loss": "loss {:.4f} nats per token"}
    of_held_out: ClassVar[Mapping[str, str]] = {
        "sft/held_out_loss": "held-out loss {:.4f}",
        "sft/held_out_turns": "turns right {:4.0%}",
    }


class HeldOutLoss(HeldOutMetrics):
    """Logs loss and right turns on held-out dialogues after each epoch.

    `sft/held_out_loss` is the negative log-likelihood per action token, in nats. `sft/held_out_turns` is the share of
    turns in which every token is the likeliest after the tokens before it: greedily the agent would write that turn.
    """

    num_sums = 4

    def sums_of(self, module: AgentModule, part: Experience) -> Tensor:
        """[4] negative log-likelihood, action tokens, turns right, turns."""
        logprobs_BT, likeliest_BT = module.shared_base.greedy_scores(
            part.token_ids_BT, part.attention_BT, part.mask_BT, temperature=module.temperature
        )
        rows_BT = torch.arange(len(part.mask_BT), device=part.mask_BT.device)[:, None].expand_as(part.mask_BT)
        turn_BT = rows_BT * (int(part.turn_ids_BT.max()) + 2) + part.turn_ids_BT
        turns = len(turn_BT[part.mask_BT].unique())
        missed = len(turn_BT[part.mask_BT & ~likeliest_BT].unique())
        loss = -float(logprobs_BT.double().sum())
        return torch.tensor([loss, float(part.mask_BT.sum()), turns - missed, turns], dtype=torch.float64)

    def metrics_of(self, sums: list[float], count: int) -> dict[str, float]:
        loss, tokens, right, turns = sums
        return {"sft/held_out_loss": loss / tokens, "sft/held_out_turns": right / turns}
