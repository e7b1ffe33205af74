"""Pairs and batching of `medagent preference`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from jsonargparse import lazy_instance  # type: ignore[attr-defined]
from lightning import Trainer
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from medagent.agent import Agent, rollout_seed
from medagent.errors import ConfigError
from medagent.models.text_length import check_text_length
from medagent.retrieval.retriever import Retriever
from medagent.training.agent_data import AgentData, AgentSettings
from medagent.training.engines import Engine, InProcessEngine
from medagent.training.experience import (
    Experience,
    consecutive,
    rollout_name,
    split_by_length,
    split_minibatches,
    tensorize,
)
from medagent.training.fitting import Work
from medagent.training.preference.module import PreferenceModule
from medagent.training.preference.pairs import Pairs, PreferencePair
from medagent.training.ranks import over_ranks
from medagent.training.sft.demonstrations import question_key
from medagent.training.sft.split import HeldOutShare, split
from medagent.training.sft.supervised import to_imitate


class PreferenceData(AgentData):
    """Pairs, retriever and batching of a run.

    An epoch is one pass over all pairs. An optimizer step takes `batch_size` of them on each rank, and a few more where
    they do not divide. `held_out` of the questions are never trained on: a share below 1, or a number. Their pairs tell
    when more epochs only learn by heart (`medagent.training.preference.held_out.HeldOutPairs`).

    `retriever` and `agent` are those under which the agent will answer. Pairs that are sampled begin with the weights
    that training begins with.
    """

    default_callbacks = (
        "medagent.training.preference.held_out.HeldOutPairs",
        "medagent.training.callbacks.AgentExport",
        "medagent.training.preference.held_out.PreferenceProgress",
    )

    def __init__(
        self,
        pairs: Pairs,
        retriever: Retriever,
        agent: AgentSettings = AgentSettings(),
        engine: Engine = lazy_instance(InProcessEngine),
        batch_size: int = 16,
        num_micro_batches: int = 1,
        held_out: float = 0.05,
        seed: int = 0,
    ) -> None:
        super().__init__(agent, retriever, engine, seed=seed)
        if batch_size < num_micro_batches:
            raise ConfigError(
                f"data.batch_size {batch_size}: cannot fill {num_micro_batches} micro-batches. Raise it, or lower "
                "num_micro_batches."
            )
        self.source, self.batch_size, self.num_micro_batches = pairs, batch_size, num_micro_batches
        self.held_out_share = HeldOutShare(held_out)
        self.pairs: list[PreferencePair] = []
        self.held_out: list[PreferencePair] = []

    def setup(self, stage: str) -> None:
        """Refuse what does not fit together, before anything is sampled."""
        trainer = self.trainer
        if trainer is None or not isinstance(trainer.lightning_module, PreferenceModule):
            raise ConfigError("PreferenceData serves a trainer that fits a PreferenceModule.")
        module, settings = trainer.lightning_module, self.agent_settings
        check_text_length(module.roles.peft.config, settings.limits.max_total_tokens, f"the base {module.base_name}")
        self.questions = self.source.questions(settings.protocol)
        if not self.questions:
            raise ConfigError("data.pairs: found no question. Give a benchmark, or a file, that has some.")
        self.start_engine(module, settings.protocol.encode_prompt(module.tokenizer, self.questions[0]))

    def work(self, world_size: int) -> Work:
        """A rank's work in memory: one optimizer step, of rollouts as long as the limits allow."""
        limits = self.agent_settings.limits
        longest = limits.max_total_tokens + limits.max_observation_tokens
        return self.work_of(2 * self.batch_size, parts=self.num_micro_batches, longest=longest, together=2)

    def train_dataloader(self) -> DataLoader[Experience]:
        """A loader without workers or collation: the dataset yields whole optimizer steps.

        It is asked for once the weights are where they train, so this is where pairs are sampled.
        """
        trainer = self.trainer
        assert trainer is not None
        module = trainer.lightning_module
        assert isinstance(module, PreferenceModule)
        folder = Path(trainer.default_root_dir) / "pairs"
        self._sample(module, trainer, folder)
        read = self.source.read(folder, self.agent_settings, module.tokenizer)
        if trainer.is_global_zero and not trainer.global_step:  # else a checkpoint has them
            module.roles.token_counts.read(self.source.sampled_tokens)
        _, out = split([pair.chosen for pair in read], self.held_out_share, seed=self.seed)
        held_out = {question_key(rollout.question) for rollout in out}
        self.pairs, self.held_out = [], []
        for pair in read:
            (self.held_out if question_key(pair.question) in held_out else self.pairs).append(pair)
        told = ", ".join(f"{count:,} {what}" for what, count in sorted(self.source.left_out.items())) or "nothing"
        kept_back = f", {len(self.held_out)} held out" if self.held_out else ""
        wanted = self.batch_size * trainer.world_size
        if len(self.pairs) < wanted:
            raise ConfigError(
                f"data.pairs: {len(self.pairs)} pairs (read: {len(read)}{kept_back}; left out: {told}), wanted "
                f"{wanted} or more for one optimizer step. Give more questions or samples, or lower data.batch_size or "
                "data.held_out."
            )
        if trainer.is_global_zero:
            print(f"{len(self.pairs)} pairs{kept_back}. Left out: {told}.", flush=True)
        return DataLoader(_Pass(self, trainer), batch_size=None, num_workers=0)

    def _sample(self, module: PreferenceModule, trainer: Trainer, folder: Path) -> None:
        """Have the policy sample what the run's folder lacks, each rank its share, and wait for the other ranks."""
        if not (self.source.sampled and self.source.missing(folder)):
            return
        settings = self.agent_settings
        policy = self.policy_of(module, version=0)
        self.source.sample(
            Agent(policy, self.retriever, settings.protocol, settings.limits, top_k=settings.top_k),
            folder,
            temperature=module.temperature,
            rank=trainer.global_rank,
            ranks=trainer.world_size,
        )
        self.engine.sleep()
        while self.source.missing(folder):  # not a barrier, which gives up after minutes
            time.sleep(1)


class _Pass(IterableDataset[Experience]):
    """The optimizer steps of one epoch, dealt by its number."""

    def __init__(self, data: PreferenceData, trainer: Trainer) -> None:
        self._data, self._trainer = data, trainer
        self._own = data.pairs[trainer.global_rank :: trainer.world_size]
        # Equal on all ranks, also where some have one pair more.
        self._steps = len(data.pairs) // trainer.world_size // data.batch_size

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Experience]:
        data, trainer = self._data, self._trainer
        module = trainer.lightning_module
        assert isinstance(module, PreferenceModule)
        lengths = [pair.length for pair in self._own]
        shuffle = rollout_seed(data.seed, iteration=trainer.current_epoch, question_id="pairs", sample=0)
        for indices in split_minibatches(len(self._own), num_minibatches=self._steps, seed=shuffle):
            count = over_ranks(trainer, torch.tensor(float(len(indices)), dtype=torch.float64), "sum")
            weight = trainer.world_size / float(count)
            parts = split_by_length(indices, lengths, parts=data.num_micro_batches)
            step = to_prefer(
                [self._own[index] for part in parts for index in part], pad_id=module.pad_id, weight=weight
            )
            yield replace(step, micro_batches=consecutive(2 * len(part) for part in parts))


def to_prefer(pairs: Sequence[PreferencePair], *, pad_id: int, weight: float) -> Experience:
    """Pairs as experience: a right rollout, then its wrong one, with advantages 1 and -1.

    A pair is a group, and `weight` its share of the optimizer step, times the number of ranks, by which DDP divides.
    """
    rollouts = [rollout for pair in pairs for rollout in (pair.chosen, pair.rejected)]
    tensors = tensorize(rollouts, pad_id=pad_id)
    ones_BT: Tensor = tensors.mask_BT.float()
    made = to_imitate(tensors, ones_BT * weight)
    rows = torch.arange(len(rollouts))
    return replace(
        made,
        groups_B=rows // 2,
        advantages_BT=ones_BT * (1 - 2 * (rows % 2))[:, None],
        names=tuple(map(rollout_name, rollouts)),
    )
