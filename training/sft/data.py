"""Shared by `medagent sft` and `medagent preference`: held-out questions, epochs over items, a line per epoch."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, ClassVar, Generic, TypeVar

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from medagent.agent import rollout_seed
from medagent.errors import ConfigError
from medagent.retrieval.retriever import Retriever
from medagent.training.agent_data import AgentData, AgentSettings
from medagent.training.batching import pack_rows, split_by_length, split_minibatches
from medagent.training.engines import Engine
from medagent.training.experience import Experience, consecutive
from medagent.training.module import AgentModule
from medagent.training.sharding import over_ranks
from medagent.types import Question, Rollout

QuestionKey = tuple[str, ...]


def question_key(question: Question) -> QuestionKey:
    """A key equal for equal questions: text and options, whatever their case, spacing, order of options and ids."""
    text, *options = (" ".join(each.lower().split()) for each in (question.text, *question.options))
    return (text, *sorted(options))


@dataclass(frozen=True)
class HeldOutShare:
    """How many questions are held out: a share below 1, or a whole number of them."""

    value: float

    def __post_init__(self) -> None:
        """Refuse what is neither."""
        value = self.value
        if not (math.isfinite(value) and (0 <= value < 1 or (value >= 1 and value == int(value)))):
            raise ConfigError(
                f"data.held_out: found {value}, wanted a share of the questions from 0 to below 1, or a whole number."
            )

    def of(self, count: int) -> int:
        """So many of `count` questions; a share is rounded down.

        >>> HeldOutShare(0.05).of(119), HeldOutShare(20).of(119)
        (5, 20)
        """
        return int(self.value * count) if self.value < 1 else int(self.value)


def split(rollouts: Sequence[Rollout], share: HeldOutShare, *, seed: int) -> tuple[list[Rollout], list[Rollout]]:
    """The dialogues to imitate and those held out, in their order; no question is in both.

    A question's hash decides, so it is on the same side whatever other questions there are, but for the last ones.
    """

    def place(key: QuestionKey) -> bytes:
        return sha256("|".join((str(seed), *key)).encode("utf-8", "replace")).digest()

    keys = [question_key(rollout.question) for rollout in rollouts]
    questions = sorted(set(keys), key=place)
    out = set(questions[: share.of(len(questions))])
    imitated = [rollout for rollout, key in zip(rollouts, keys, strict=True) if key not in out]
    held_out = [rollout for rollout, key in zip(rollouts, keys, strict=True) if key in out]
    return imitated, held_out


Item = TypeVar("Item")


class PassData(AgentData, Generic[Item]):
    """Items that are trained on again and again, in batches.

    An epoch is one pass over all of them. An optimizer step takes `batch_size` on each rank, and a few more where they
    do not divide. `held_out` of the questions are never trained on: a share below 1, or a number.
    """

    shuffled_as: ClassVar[str]  # part of the seed of the order
    rows_of_item: ClassVar[int] = 1

    def __init__(
        self,
        agent: AgentSettings,
        retriever: Retriever,
        engine: Engine,
        *,
        batch_size: int,
        num_micro_batches: int,
        held_out: float,
        seed: int,
    ) -> None:
        super().__init__(agent, retriever, engine, seed=seed)
        if batch_size < num_micro_batches:
            raise ConfigError(
                f"data.batch_size {batch_size}: cannot fill {num_micro_batches} micro-batches. Raise it, or lower "
                "num_micro_batches."
            )
        self.batch_size, self.num_micro_batches = batch_size, num_micro_batches
        self.held_out_share = HeldOutShare(held_out)
        self.items: list[Item] = []
        self.held_out: list[Item] = []

    @abstractmethod
    def length_of(self, item: Item) -> int:
        """Tokens of an item."""

    @abstractmethod
    def weight_of(self, item: Item) -> int:
        """The weight of an item in the mean over an optimizer step."""

    @abstractmethod
    def step_of(self, items: Sequence[Item], *, pad_id: int, total: int, factor: float) -> Experience:
        """A rank's items of an optimizer step as experience, `rows_of_item` rows for each.

        `total` is the weight of all items of the step, over ranks. `factor` is what DDP divides by.
        """

    def check_size(self, world_size: int, name: str, told: str) -> None:
        """Raise `ConfigError` where the items do not fill one optimizer step."""
        wanted = self.batch_size * world_size
        if len(self.items) < wanted:
            raise ConfigError(
                f"{name}: found {len(self.items)} ({told}), wanted {wanted} or more for one optimizer step. Give more "
                "questions or samples, raise the limits, or lower data.batch_size or data.held_out."
            )

    def held_out_passes(self, trainer: Trainer, module: AgentModule) -> list[Experience]:
        """The held-out items of this rank, as many per pass as training takes.

        With a sharded base all ranks make equally many passes. Surplus passes read a row without actions.
        """
        own = sorted(self.held_out[trainer.global_rank :: trainer.world_size], key=self.length_of)
        at_a_time, parts = max(1, self.batch_size // self.num_micro_batches), []
        for start in range(0, len(own), at_a_time):
            some = self.step_of(own[start : start + at_a_time], pad_id=module.pad_id, total=1, factor=1.0)
            together_B = some.groups_B if module.whole_groups else None
            groups = pack_rows(module.execution, some.token_ids_BT, some.attention_BT, together_B)
            parts += [some.rows(rows) for rows in groups]
        idle = self.step_of(self.held_out[:1], pad_id=module.pad_id, total=1, factor=1.0).zero_weight_row()
        return parts + [idle] * (module.max_passes_over_ranks(len(parts)) - len(parts))

    def train_dataloader(self) -> DataLoader[Experience]:
        """A loader without workers or collation: the dataset yields whole optimizer steps."""
        assert self.trainer is not None
        return DataLoader(_Pass(self, self.trainer), batch_size=None, num_workers=0)


class _Pass(IterableDataset[Experience], Generic[Item]):
    """The optimizer steps of one epoch, dealt by its number."""

    def __init__(self, data: PassData[Item], trainer: Trainer) -> None:
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
        lengths = [data.length_of(item) for item in self._own]
        factor = float(trainer.world_size)
        order = rollout_seed(data.seed, iteration=trainer.current_epoch, question_id=data.shuffled_as, sample=0)
        for indices in split_minibatches(len(self._own), num_minibatches=self._steps, seed=order):
            own = torch.tensor(float(sum(data.weight_of(self._own[index]) for index in indices)), dtype=torch.float64)
            total = int(over_ranks(trainer, own, "sum"))
            parts = split_by_length(indices, lengths, parts=data.num_micro_batches)
            chosen = [self._own[index] for part in parts for index in part]
            step = data.step_of(chosen, pad_id=module.pad_id, total=total, factor=factor)
            yield replace(step, micro_batches=consecutive(data.rows_of_item * len(part) for part in parts))


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
        """Measure what the epoch left."""
        self.measure(trainer, pl_module)

    def measure(self, trainer: Trainer, module: LightningModule) -> dict[str, float]:
        """Log the metrics of the weights as they are; none where nothing is held out."""
        assert isinstance(module, AgentModule)
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, PassData)
        if not data.held_out:
            return {}
        sums = torch.zeros(self.num_sums, dtype=torch.float64)
        with torch.no_grad(), module.shared_base.token_counts.paused():
            for part in data.held_out_passes(trainer, module):
                sums += self.sums_of(module, part.to(module.device)).cpu()
        metrics = self.metrics_of(over_ranks(trainer, sums, "sum").tolist(), len(data.held_out))
        module.log_dict(metrics, logger=False)
        for logger in trainer.loggers:  # at once: a kill between a checkpoint and an epoch's metrics would lose them
            logger.log_metrics({**metrics, "epoch": trainer.current_epoch}, step=trainer.global_step)
        return metrics


class EpochLine(Callback):
    """Prints a line per epoch: means over its steps, and what was measured on held-out questions and items.

    Both map metrics to how the line words them.
    """

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
