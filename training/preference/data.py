"""Pairs and batching of `medagent preference`, and what is said of a run: held-out pairs, and a line per epoch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import torch
from jsonargparse import lazy_instance  # type: ignore[attr-defined]
from lightning import Trainer
from torch import Tensor
from torch.utils.data import DataLoader

from medagent.agent import Agent
from medagent.errors import ConfigError
from medagent.evaluation.benchmarks import Benchmark
from medagent.retrieval.retriever import Retriever
from medagent.training.agent_data import AgentSettings
from medagent.training.engines import Engine, InProcessEngine
from medagent.training.experience import Experience, rollout_name, tensorize
from medagent.training.memory.batch_size_tuning import Work
from medagent.training.module import AgentModule
from medagent.training.preference.module import PreferenceModule, pair_metrics
from medagent.training.preference.pairs import Pairs, PreferencePair
from medagent.training.sft.data import PassData
from medagent.training.sft.supervised import EpochLine, HeldOutMetrics, to_imitate

HELD_OUT = {"preference/loss": "preference/held_out_loss", "preference/accuracy": "preference/held_out_accuracy"}


class PreferenceData(PassData[PreferencePair]):
    """The pairs of `medagent preference`.

    Held-out pairs tell when more epochs only learn by heart (`HeldOutPairs`).

    `retriever` and `agent` are those under which the agent will answer. Pairs that are sampled begin with the weights
    that training begins with.
    """

    default_callbacks = (
        "medagent.training.preference.HeldOutPairs",
        "medagent.training.callbacks.AgentExport",
        "medagent.training.preference.PreferenceProgress",
    )
    shuffled_as, rows_of_item = "pairs", 2

    def __init__(
        self,
        pairs: Pairs,
        retriever: Retriever,
        agent: AgentSettings = AgentSettings(),
        engine: Engine = lazy_instance(InProcessEngine),
        batch_size: int = 16,
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
        self.source = pairs

    def setup(self, stage: str) -> None:
        """Refuse what does not fit together, before anything is sampled."""
        (_, module), settings = self.fitted(PreferenceModule), self.agent_settings
        self.questions = self.source.questions(settings.protocol)
        if not self.questions:
            raise ConfigError("data.pairs: found no question. Give a benchmark, or a file, that has some.")
        self.check_validation()
        self.start_engine(module, settings.protocol.encode_prompt(module.tokenizer, self.questions[0]))

    def work(self, world_size: int) -> Work:
        """A rank's work in memory: one optimizer step, of rollouts as long as the limits allow."""
        limits = self.agent_settings.limits
        longest = limits.max_total_tokens + limits.max_observation_tokens
        return self.work_of(2 * self.batch_size, parts=self.num_micro_batches, longest=longest, together=2)

    def train_dataloader(self) -> DataLoader[Experience]:
        """A loader without workers or collation: the dataset yields finished micro-batches.

        It is asked for once the weights are where they train, so this is where pairs are sampled.
        """
        trainer, module = self.fitted(PreferenceModule)
        folder = Path(trainer.default_root_dir) / "pairs"
        self._sample(module, trainer, folder)
        read = self.source.read(folder, self.agent_settings, module.tokenizer)
        if trainer.is_global_zero and not trainer.global_step:  # else a checkpoint has them
            module.shared_base.token_counts.read(self.source.sampled_tokens)
        told = ", ".join(f"{count:,} {what}" for what, count in sorted(self.source.left_out.items())) or "nothing"
        self.take(trainer, read, "pairs", read=len(read), left_out=told)
        return super().train_dataloader()

    def length_of(self, item: PreferencePair) -> int:
        return item.length

    def step_of(self, items: Sequence[PreferencePair], *, pad_id: int, total: int, factor: float) -> Experience:
        return to_prefer(items, pad_id=pad_id, weight=factor / total)

    def _sample(self, module: PreferenceModule, trainer: Trainer, folder: Path) -> None:
        """Have the policy sample what the run's folder lacks, each rank its share, and wait for the other ranks."""
        if not self.source.missing(folder):
            return
        rules, policy = self.agent_settings, self.policy_of(module, version=0)
        agent = Agent(policy, self.retriever, rules.protocol, rules.limits, top_k=rules.top_k)
        rank, ranks = trainer.global_rank, trainer.world_size
        self.source.sample(agent, folder, temperature=module.temperature, rank=rank, ranks=ranks)
        self.engine.sleep()
        while self.source.missing(folder):  # not a barrier, which gives up after minutes
            time.sleep(1)


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


class HeldOutPairs(HeldOutMetrics):
    """Logs loss and accuracy on held-out pairs after each epoch. The loss rises where the model learns by heart."""

    num_sums = len(HELD_OUT)

    def sums_of(self, module: AgentModule, part: Experience) -> Tensor:
        """[2] loss and accuracy, summed over pairs."""
        assert isinstance(module, PreferenceModule)
        found = pair_metrics(module.preference_loss, module.pair_terms(part)[0])
        return torch.stack([found[name] for name in HELD_OUT])

    def metrics_of(self, sums: list[float], count: int) -> dict[str, float]:
        return dict(zip(HELD_OUT.values(), (each / count for each in sums), strict=True))


class PreferenceProgress(EpochLine):
    """Prints a line per epoch: mean loss and accuracy of its steps, and what was measured on held-out pairs."""

    of_steps: ClassVar[Mapping[str, str]] = {
        "preference/loss": "loss {:.4f}",
        "preference/accuracy": "pairs right {:4.0%}",
    }
    of_held_out: ClassVar[Mapping[str, str]] = {
        "preference/held_out_loss": "held-out loss {:.4f}",
        "preference/held_out_accuracy": "held-out pairs right {:4.0%}",
    }
