"""Experience as a Lightning data source: one epoch is one policy iteration, collected with the current weights at the first `next()`.

The dataset is sized and lazy: Lightning then asks for a batch only when it is due, and rollouts never lag the weights. Which questions an
iteration asks is an index computation on a seeded permutation, so resuming is arithmetic.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jsonargparse import lazy_instance  # type: ignore[attr-defined]
from lightning import LightningDataModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from evaluation.benchmarks import Benchmark
from evaluation.rewards import OutcomeReward, Reward
from medagent.agent import Agent, Job, Limits, rollout_seed
from medagent.errors import ConfigError
from medagent.protocol import Protocol
from medagent.records import Question, Rollout, StopReason
from retrieval.search import Retriever
from training.advantages import gae, moments, whiten
from training.experience import Experience, Reduction, loss_weights, split_by_length, split_minibatches, tensorize
from training.module import AgentModule


@dataclass(frozen=True)
class AgentSettings:
    """The dialogue's rules; exported with the agent."""

    protocol: Protocol = Protocol()
    limits: Limits = Limits()
    top_k: int = 3


@dataclass(frozen=True)
class GaeSettings:
    """Generalised advantage estimation; `whiten` gives the batch's advantages zero mean and unit variance."""

    gamma: float = 1.0
    lam: float = 1.0
    whiten: bool = True


class RolloutData(LightningDataModule):
    """Questions, retriever, reward and batching of a training run.

    An iteration rolls out `num_questions` questions `num_samples` times each, and makes `num_epochs` passes of `num_minibatches` optimizer
    steps over them; a step accumulates `num_micro_batches` (equal to the trainer's `accumulate_grad_batches`). `num_critic_epochs` passes for the
    critic alone come first: it must learn from far fewer, noisier targets than the policy. An untrained critic starts at the first mean return.
    """

    def __init__(
        self,
        benchmark: Benchmark,
        retriever: Retriever,
        agent: AgentSettings = AgentSettings(),
        reward: Reward = lazy_instance(OutcomeReward),
        gae: GaeSettings = GaeSettings(),
        num_questions: int = 128,
        num_samples: int = 1,
        num_epochs: int = 1,
        num_critic_epochs: int = 0,
        num_minibatches: int = 4,
        num_micro_batches: int = 2,
        reduction: Reduction = "rollout-mean",
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.agent_settings, self.retriever, self.reward, self.gae = agent, retriever, reward, gae
        self.num_questions, self.num_samples = num_questions, num_samples
        self.num_epochs, self.num_critic_epochs = num_epochs, num_critic_epochs
        self.num_minibatches, self.num_micro_batches = num_minibatches, num_micro_batches
        self.reduction, self.seed = reduction, seed
        self.questions = benchmark.questions()
        self.rollouts: list[Rollout] = []  # of the current iteration, for records
        if num_questions * num_samples < num_minibatches * num_micro_batches:
            raise ConfigError(
                f"data: {num_questions} questions x {num_samples} samples cannot fill {num_minibatches} minibatches of "
                f"{num_micro_batches} micro-batches. Raise num_questions or lower the others."
            )

    def questions_of(self, iteration: int) -> list[Question]:
        """The questions of an iteration: the next slice of an endless sequence of seeded permutations."""
        total, chosen = len(self.questions), []
        for position in range(iteration * self.num_questions, (iteration + 1) * self.num_questions):
            epoch, offset = divmod(position, total)
            order = list(range(total))
            random.Random(f"{self.seed}:{epoch}").shuffle(order)
            chosen.append(self.questions[order[offset]])
        return chosen

    def _numbered(self, iteration: int) -> list[tuple[Question, int]]:
        """An iteration's questions with how often each came before in it: repeats are other samples, not copies."""
        seen: Counter[str] = Counter()
        numbered = []
        for question in self.questions_of(iteration):
            numbered.append((question, seen[question.id]))
            seen[question.id] += 1
        return numbered

    def train_dataloader(self) -> DataLoader[Experience]:
        """A loader without workers or collation: the dataset yields finished micro-batches."""
        if self.trainer is None or not isinstance(self.trainer.lightning_module, AgentModule):
            raise ConfigError("RolloutData serves a trainer that fits an AgentModule.")
        accumulated = self.trainer.accumulate_grad_batches
        if accumulated != self.num_micro_batches:
            raise ConfigError(
                f"trainer.accumulate_grad_batches is {accumulated}, data.num_micro_batches is {self.num_micro_batches}: "
                "they must be equal. Set both to the same number."
            )
        share = len(range(0, self.num_questions, self.trainer.world_size)) * self.num_samples
        if share < self.num_minibatches * self.num_micro_batches or self.num_questions % self.trainer.world_size:
            raise ConfigError(
                f"data.num_questions is {self.num_questions} on {self.trainer.world_size} ranks: it must be a multiple of the "
                "ranks, and each rank's share must fill its micro-batches. Raise it."
            )
        return DataLoader(_Iteration(self, self.trainer), batch_size=None, num_workers=0)

    def collect(self, module: AgentModule, *, iteration: int, rank: int, world_size: int) -> list[Rollout]:
        """Sample and grade this rank's rollouts of an iteration with the module's current weights."""
        settings = self.agent_settings
        agent = Agent(module.fresh_policy(), self.retriever, settings.protocol, settings.limits, top_k=settings.top_k)
        jobs = [
            Job(
                question,
                seed=rollout_seed(self.seed, iteration=iteration, question_id=question.id, sample=sample),
                temperature=module.temperature,
                iteration=iteration,
                sample=sample,
            )
            for question, repeat in self._numbered(iteration)[rank::world_size]
            for sample in range(repeat * self.num_samples, (repeat + 1) * self.num_samples)
        ]
        return [self.reward(rollout) for rollout in agent.run_all(jobs)]


class _Iteration(IterableDataset[Experience]):
    """The micro-batches of the trainer's current epoch."""

    def __init__(self, data: RolloutData, trainer: Trainer) -> None:
        self._data, self._trainer = data, trainer

    def __len__(self) -> int:
        data = self._data
        return (data.num_critic_epochs + data.num_epochs) * data.num_minibatches * data.num_micro_batches

    def __iter__(self) -> Iterator[Experience]:
        data, trainer = self._data, self._trainer
        module = trainer.lightning_module
        assert isinstance(module, AgentModule)
        iteration, world_size = trainer.current_epoch, trainer.world_size
        started = time.perf_counter()
        data.rollouts = data.collect(module, iteration=iteration, rank=trainer.global_rank, world_size=world_size)
        rollout_s = time.perf_counter() - started
        reduce = _summing(trainer)
        if iteration == 0:
            totals = reduce(torch.tensor([sum(r.reward for r in data.rollouts), float(len(data.rollouts))]))
            module.roles.start_values_at(float(totals[0] / totals[1]))
        experience = prepare(data, module, data.rollouts, reduce=reduce)
        metrics = {
            **rollout_metrics(data.rollouts, iteration=iteration),
            "critic/explained_variance": explained_variance(experience),
            "time/rollout": rollout_s,
            "throughput/action_tokens_per_s": float(experience.mask_BT.sum()) / rollout_s,
        }
        lengths = experience.attention_BT.sum(dim=1).tolist()
        first = True
        for epoch in range(data.num_critic_epochs + data.num_epochs):
            shuffle = rollout_seed(data.seed, iteration=iteration, question_id="minibatches", sample=epoch)
            for indices in split_minibatches(len(lengths), num_minibatches=data.num_minibatches, seed=shuffle):
                step = experience.rows(indices)
                counts = reduce(torch.tensor([float(step.mask_BT.sum()), float(len(indices))]))
                weights = loss_weights(
                    experience.mask_BT,
                    reduction=data.reduction,
                    num_tokens=int(counts[0]),
                    num_rollouts=int(counts[1]),
                    factor=float(data.num_micro_batches * world_size),
                )
                weighted = replace(experience, loss_weights_BT=weights)
                for part in split_by_length(indices, lengths, parts=data.num_micro_batches):
                    alone = epoch < data.num_critic_epochs
                    yield replace(weighted.rows(part), metrics=metrics if first else {}, critic_only=alone)
                    first = False


def _summing(trainer: Trainer) -> Callable[[Tensor], Tensor]:
    """Sums a tensor over ranks."""

    def reduce(tensor: Tensor) -> Tensor:
        total = trainer.strategy.reduce(tensor.to(trainer.strategy.root_device), reduce_op="sum")
        assert isinstance(total, Tensor)
        return total.cpu()

    return reduce


@torch.no_grad()
def prepare(
    data: RolloutData, module: AgentModule, rollouts: Sequence[Rollout], *, reduce: Callable[[Tensor], Tensor]
) -> Experience:
    """Tensors of the rollouts with reference log-probs, values, advantages and returns; `reduce` sums over ranks."""
    experience = tensorize(rollouts, pad_id=module.pad_id)
    lengths = experience.attention_BT.sum(dim=1).tolist()
    parts = max(1, len(rollouts) // 32)
    for rows in split_by_length(range(len(rollouts)), lengths, parts=parts):
        batch = experience.rows(rows).to(module.device)
        inputs = (batch.token_ids_BT, batch.attention_BT, batch.mask_BT)
        width = batch.token_ids_BT.shape[1]
        reference = module.roles.reference_logprobs(*inputs, temperature=module.temperature)
        experience.reference_logprobs_BT[rows, :width] = reference.cpu()
        experience.values_BT[rows, :width] = module.roles.values(*inputs).cpu()
    advantages_BT, experience.returns_BT = gae(
        experience.rewards_BT, experience.values_BT, experience.mask_BT, gamma=data.gae.gamma, lam=data.gae.lam
    )
    if data.gae.whiten:
        totals = reduce(moments(advantages_BT, experience.mask_BT))
        advantages_BT = whiten(advantages_BT, experience.mask_BT, totals)
    experience.advantages_BT = advantages_BT
    return experience


def explained_variance(experience: Experience) -> float:
    """1 - Var(return - value) / Var(return) over action tokens; the values were read before any update on these rollouts."""
    returns = experience.returns_BT[experience.mask_BT]
    errors = returns - experience.values_BT[experience.mask_BT]
    variance = returns.var(correction=0)
    return float(1 - errors.var(correction=0) / variance) if variance > 0 else 0.0


def rollout_metrics(rollouts: Sequence[Rollout], *, iteration: int) -> dict[str, float]:
    """Means over rollouts, under the fixed names."""
    count = max(1, len(rollouts))

    def mean(values: list[float]) -> float:
        return sum(values) / count

    return {
        "reward/mean": mean([rollout.reward for rollout in rollouts]),
        "reward/success": mean([float(rollout.success) for rollout in rollouts]),
        "rollout/turns": mean([float(len(rollout.turns)) for rollout in rollouts]),
        "rollout/searches": mean([float(rollout.num_searches) for rollout in rollouts]),
        "rollout/tokens": mean([float(len(rollout.token_ids)) for rollout in rollouts]),
        "rollout/valid_answer": mean([float(rollout.stop_reason is StopReason.ANSWERED) for rollout in rollouts]),
        "rollout/truncated": mean([float(rollout.stop_reason.truncated) for rollout in rollouts]),
        "rollout/staleness": mean([float(iteration - rollout.iteration) for rollout in rollouts]),
    }
