"""`medagent sft`: the warm start of the protocol before reinforcement learning.

It maximises the likelihood of a dialogue's turns, by LoRA. Tokens, masks, adapters, passes and the export are those of
reinforcement learning. Only the loss differs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from jsonargparse import lazy_instance  # type: ignore[attr-defined]
from lightning import Callback, LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from medagent.agent import rollout_seed
from medagent.errors import ConfigError
from medagent.models.text_length import check_text_length
from medagent.retrieval.retriever import Retriever
from medagent.training.agent_data import AgentData, AgentSettings
from medagent.training.callbacks.held_out import HeldOutEvaluation
from medagent.training.engines import Engine, InProcessEngine
from medagent.training.execution import Execution
from medagent.training.experience import (
    Experience,
    RolloutTensors,
    consecutive,
    loss_weights,
    rollout_name,
    split_by_length,
    split_minibatches,
    tensorize,
)
from medagent.training.fitting import Work
from medagent.training.lora import LoraSettings
from medagent.training.module import AgentModule
from medagent.training.objectives import ratio_segments
from medagent.training.sft.demonstrations import Demonstrations
from medagent.training.sft.imitated import encoded
from medagent.training.sft.left_out import LeftOut, in_words
from medagent.training.sft.split import HeldOutShare, split
from medagent.training.sharding import ShardedBase
from medagent.types import Question, Rollout


class SupervisedModule(AgentModule):
    """The policy alone, taught by negative log-likelihood.

    The loss is the mean over the action tokens of an optimizer step, in nats.
    """

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
        scores = self.roles.policy_scores(
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
    """Dialogues and batching of `medagent sft`.

    An epoch is one pass over all dialogues. An optimizer step takes `batch_size` of them on each rank, and a few more
    where they do not divide.

    `held_out` of the questions are never imitated: a share below 1, or a number. The loss on their dialogues tells when
    more epochs only learn by heart (`medagent.training.sft.held_out.HeldOutLoss`).

    `retriever` and `agent` are those of the reinforcement learning to come: what is imitated must look as it will look
    there.
    """

    default_callbacks = (
        "medagent.training.sft.held_out.HeldOutLoss",
        "medagent.training.callbacks.AgentExport",
        "medagent.training.sft.supervised.SupervisedProgress",
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
        seed: int = 0,
    ) -> None:
        super().__init__(agent, retriever, engine, seed=seed)
        if not isinstance(engine, InProcessEngine):
            raise ConfigError(
                f"data.engine: found {type(engine).__name__}, wanted InProcessEngine: it samples held-out answers "
                "alone here. The agent that samples demonstrations is named in data.demonstrations."
            )
        if batch_size < num_micro_batches:
            raise ConfigError(
                f"data.batch_size {batch_size}: cannot fill {num_micro_batches} micro-batches. Raise it, or lower "
                "num_micro_batches."
            )
        self.demonstrations, self.batch_size, self.num_micro_batches = demonstrations, batch_size, num_micro_batches
        self.held_out_share = HeldOutShare(held_out)
        self.rollouts: list[Rollout] = []
        self.held_out: list[Rollout] = []
        self.counts: dict[str, float] = {}  # metrics; every process reads all dialogues, so they are those of all ranks

    def setup(self, stage: str) -> None:
        """Collect the dialogues, or take up those that the run's folder holds."""
        trainer = self.trainer
        if trainer is None or not isinstance(trainer.lightning_module, SupervisedModule):
            raise ConfigError("SupervisedData serves a trainer that fits a SupervisedModule.")
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        watched = any(isinstance(callback, HeldOutEvaluation) for callback in callbacks)
        if isinstance(trainer.strategy, ShardedBase) and watched:
            raise ConfigError(
                "HeldOutEvaluation in medagent sft with ShardedBase: answers would need a whole copy of the base on "
                "each rank. Leave it out, and measure the export."
            )
        folder = Path(trainer.default_root_dir) / "demonstrations"
        # Before anything is sampled: whether the base reads such texts, and prompts can be made at all.
        module = trainer.lightning_module
        check_text_length(
            module.roles.peft.config, self.agent_settings.limits.max_total_tokens, f"the base {module.base_name}"
        )
        self.agent_settings.protocol.encode_prompt(trainer.lightning_module.tokenizer, Question("probe", "probe"))
        made = folder.with_name("demonstrations.made")
        if trainer.is_global_zero:
            self.demonstrations.make(self.agent_settings, self.retriever, folder, module.tokenizer)
            made.touch()
        while not made.exists():  # not a barrier, which gives up after minutes
            time.sleep(1)
        read = self.demonstrations.read(folder, self.agent_settings.protocol)
        fit, left_out = encoded(read, self.agent_settings, trainer.lightning_module.tokenizer)
        left_out.update(self.demonstrations.left_out)
        if trainer.is_global_zero:
            module.roles.token_counts.read(self.demonstrations.sampled_tokens)
        found, self.held_out = split(fit, self.held_out_share, seed=self.seed)
        reasons, kept_back = in_words(left_out), f", {len(self.held_out)} held out" if self.held_out else ""
        if len(found) < self.batch_size * trainer.world_size:
            raise ConfigError(
                f"demonstrations: {len(found)} fit the limits (read: {len(read)}{kept_back}; left out: {reasons}), "
                f"wanted {self.batch_size * trainer.world_size} or more for one optimizer step. Give more questions or "
                "samples, raise the limits, or lower data.batch_size or data.held_out."
            )
        self.counts = {
            "sft/demonstrations": float(len(found)),
            "sft/held_out": float(len(self.held_out)),
            **{f"sft/left_out_{reason.value}": float(left_out[reason]) for reason in LeftOut},
            **{f"sft/part_{name}": float(count) for name, count in self.demonstrations.parts.items()},
        }
        self.rollouts, self.questions = found, [rollout.question for rollout in found]
        if trainer.is_global_zero:
            print(f"{len(found)} demonstrations{kept_back}. Left out: {reasons}.", flush=True)

    def work(self, world_size: int) -> Work:
        """A rank's work in memory: one optimizer step, of dialogues as long as the longest one."""
        longest = max(len(rollout.token_ids) for rollout in self.rollouts)
        return self.work_of(self.batch_size, parts=self.num_micro_batches, longest=longest)

    def train_dataloader(self) -> DataLoader[Experience]:
        """A loader without workers or collation: the dataset yields whole optimizer steps."""
        assert self.trainer is not None
        return DataLoader(_Pass(self, self.trainer), batch_size=None, num_workers=0)


class _Pass(IterableDataset[Experience]):
    """The optimizer steps of one epoch, dealt by its number."""

    def __init__(self, data: SupervisedData, trainer: Trainer) -> None:
        self._data, self._trainer = data, trainer
        self._own = data.rollouts[trainer.global_rank :: trainer.world_size]
        # Equal on all ranks, also where some have one dialogue more.
        self._steps = len(data.rollouts) // trainer.world_size // data.batch_size

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Experience]:
        data, module = self._data, self._trainer.lightning_module
        assert isinstance(module, AgentModule)
        lengths = [len(rollout.token_ids) for rollout in self._own]
        shuffle = rollout_seed(data.seed, iteration=self._trainer.current_epoch, question_id="sft", sample=0)
        for indices in split_minibatches(len(self._own), num_minibatches=self._steps, seed=shuffle):
            count = sum(sum(self._own[index].loss_mask) for index in indices)
            total = self._trainer.strategy.reduce(_tensor(count, module), reduce_op="sum")
            parts = split_by_length(indices, lengths, parts=data.num_micro_batches)
            chosen = [self._own[index] for part in parts for index in part]
            tensors = tensorize(chosen, pad_id=module.pad_id)
            weights = loss_weights(
                tensors.mask_BT,
                reduction="token-mean",
                num_tokens=int(total),
                num_rollouts=0,
                factor=float(self._trainer.world_size),
            )
            yield replace(
                to_imitate(tensors, weights),
                names=tuple(map(rollout_name, chosen)),
                micro_batches=consecutive(map(len, parts)),
            )


def to_imitate(tensors: RolloutTensors, loss_weights_BT: Tensor) -> Experience:
    """Demonstrations as experience: every action has advantage 1, is on policy, and no critic reads it."""
    ones_BT = tensors.mask_BT.float()
    zeros_BT = 0.0 * ones_BT
    return Experience(
        token_ids_BT=tensors.token_ids_BT,
        attention_BT=tensors.attention_BT,
        mask_BT=tensors.mask_BT,
        turn_ids_BT=tensors.turn_ids_BT,
        ratio_segments_BT=ratio_segments("token", tensors.mask_BT, tensors.turn_ids_BT),
        groups_B=tensors.groups_B,
        evidence_BKF=zeros_BT.new_zeros(len(zeros_BT), 1, 0),
        rollout_logprobs_BT=tensors.rollout_logprobs_BT,
        old_logprobs_BT=tensors.rollout_logprobs_BT,
        truncation_BT=ones_BT,
        reference_logprobs_BT=zeros_BT,
        values_BT=zeros_BT,
        rewards_BT=tensors.rewards_BT,
        advantages_BT=ones_BT,
        returns_BT=zeros_BT,
        loss_weights_BT=loss_weights_BT,
        value_weights_BT=zeros_BT,
        metrics={},
    )


def _tensor(count: int, module: AgentModule) -> Tensor:
    return module.roles.policy_parameters()[0].new_tensor(float(count))


class SupervisedProgress(Callback):
    """Prints a line per epoch: mean loss of its steps, and what was measured on held-out questions and dialogues."""

    def __init__(self) -> None:
        self._losses: list[float] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note the loss of a step that was not skipped."""
        assert isinstance(pl_module, AgentModule)
        if not pl_module.finite_steps.skipped:
            self._losses.append(float(trainer.callback_metrics["sft/loss"]))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the epoch's line."""
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        told = {
            "held-out loss {:.4f}": "sft/held_out_loss",
            "turns right {:4.0%}": "sft/held_out_turns",
            "held-out {:4.0%}": "validation/accuracy",
        }
        parts = [words.format(metrics[name]) for words, name in told.items() if name in metrics]
        loss, self._losses = sum(self._losses) / len(self._losses) if self._losses else math.nan, []
        line = f"epoch {trainer.current_epoch + 1:3d}/{trainer.max_epochs}  loss {loss:.4f} nats per token"
        print("  ".join([line, *parts]), flush=True)
