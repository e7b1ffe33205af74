"""Sampling and grading of an iteration's rollouts, with other draws in place of groups without spread."""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from itertools import islice
from threading import BoundedSemaphore

import torch

from medagent.agent import Agent, Job
from medagent.errors import ConfigError
from medagent.training.advantages import EQUAL, Reduce
from medagent.training.default_callbacks import tokens_to_sample
from medagent.training.experience import rollout_name, turn_rewards
from medagent.training.metrics import Largest, worst_of_ranks
from medagent.training.rewards import Reward, graded
from medagent.training.rollouts.daemon import in_daemon
from medagent.types import Rollout


@dataclass
class SamplingCost:
    """What an iteration's rollouts cost on this rank, those of discarded groups too."""

    seconds: float = 0.0
    """Of sampling alone, without rewards."""
    action_tokens: int = 0
    discarded_tokens: int = 0
    """`tokens_to_sample` of discarded groups."""
    metrics: dict[str, float] = field(default_factory=dict)

    def over_ranks(self, others: Mapping[str, float], reduce: Reduce, largest: Largest) -> dict[str, float]:
        """The metrics over all ranks, with `others` of this rank, and the speed of the slowest."""
        sampling_s = largest(torch.tensor(self.seconds, dtype=torch.float64))
        tokens = reduce(torch.tensor(self.action_tokens, dtype=torch.float64))
        return {
            **worst_of_ranks({**self.metrics, **others}, reduce, largest),
            "throughput/action_tokens_per_s": float(tokens / sampling_s),
        }


def collect(
    agent: Agent, draws: Iterator[Sequence[Job]], reward: Reward, *, num_groups: int, concurrency: int, max_batches: int
) -> tuple[list[Rollout], SamplingCost]:
    """The graded rollouts of `num_groups` groups, and their cost. A draw is the jobs of one group.

    With `max_batches` above 1 groups without spread are drawn again, until so many batches were sampled.
    """
    groups: dict[int, list[Rollout]] = {}
    missing, cost, resampled, reward_s = list(range(num_groups)), SamplingCost(), 0, 0.0
    for batch in range(max_batches):
        cost.discarded_tokens += tokens_to_sample([rollout for place in missing for rollout in groups.get(place, [])])
        resampled += len(missing) if batch else 0
        began = time.perf_counter()
        drawn = {place: next(draws) for place in missing}
        rollouts, waited_s = _graded(agent, [job for jobs in drawn.values() for job in jobs], reward, concurrency)
        cost.seconds, reward_s = cost.seconds + time.perf_counter() - began - waited_s, reward_s + waited_s
        cost.action_tokens += num_actions(rollouts)
        left = iter(rollouts)
        groups |= {place: list(islice(left, len(jobs))) for place, jobs in drawn.items()}
        missing = [place for place in missing if batch + 1 < max_batches and not _has_spread(groups[place])]
        if not missing:
            break
    collected = [rollout for group in groups.values() for rollout in group]
    histories = agent.protocol.history_metrics(agent.policy, collected)
    cost.metrics = {**agent.search_stats.metrics(), **histories, "time/reward": reward_s}
    if max_batches > 1:
        cost.metrics["rollout/resampled_groups"] = float(resampled)
    return collected, cost


def num_actions(rollouts: Sequence[Rollout]) -> int:
    """Sampled tokens."""
    return sum(sum(rollout.loss_mask) for rollout in rollouts)


def _has_spread(group: Sequence[Rollout]) -> bool:
    """Whether the rollouts differ in what the advantage compares: the rewards of action tokens."""
    earned = [sum(turn_rewards(rollout).values()) for rollout in group]
    return max(earned) - min(earned) > EQUAL


def _graded(agent: Agent, jobs: list[Job], reward: Reward, concurrency: int) -> tuple[list[Rollout], float]:
    """The graded rollouts in the jobs' order, and the seconds that they took after sampling had ended.

    Of several rewards that raise, the error of the first in this order is raised.
    """
    if concurrency == 1:  # in this thread: a reward need not be thread-safe
        rollouts, sampled = agent.run_all(jobs), time.perf_counter()
        return [graded(reward, rollout) for rollout in rollouts], time.perf_counter() - sampled
    futures: dict[str, Future[Rollout]] = {}
    free = BoundedSemaphore(concurrency)

    def start(rollout: Rollout) -> None:
        futures[rollout_name(rollout)] = in_daemon(lambda: graded(reward, rollout), "reward", free)

    try:
        rollouts, sampled = agent.run_all(jobs, on_done=start), time.perf_counter()
        return [_result(futures[rollout_name(rollout)]) for rollout in rollouts], time.perf_counter() - sampled
    finally:
        for future in futures.values():
            future.cancel()


def _result(future: Future[Rollout]) -> Rollout:
    """The result, awaited in short turns: the signal of an interrupt may wake another thread than this one."""
    while not wait([future], timeout=0.5).done:
        pass
    return future.result()


def check_collection(*, concurrency: int, max_batches: int) -> None:
    """Raise ConfigError for numbers out of range."""
    for name, value, least in (("reward_concurrency", concurrency, 1), ("max_num_gen_batches", max_batches, 2)):
        if value < least:
            raise ConfigError(f"data.{name}: found {value}, wanted {least} or more.")
