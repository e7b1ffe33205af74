"""Metrics of an iteration's rollouts: figures of all ranks together, which `reduce` sums."""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from medagent.training.advantages import Reduce
from medagent.training.experience import Experience
from medagent.training.prepare import OffPolicy
from medagent.types import Rollout, StopReason

Largest = Callable[[Tensor], Tensor]


def explained_variance(batch: Experience, value_mask_BT: Tensor, reduce: Reduce) -> float:
    """1 - Var(return - value) / Var(return) where the critic is read, before any update on these rollouts."""
    returns = batch.returns_BT[value_mask_BT]
    unexplained = returns - batch.values_BT[value_mask_BT]
    variance, left = variance_over_ranks(returns, reduce), variance_over_ranks(unexplained, reduce)
    return float(1 - left / variance) if variance > 0 else 0.0


def variance_over_ranks(values: Tensor, reduce: Reduce) -> Tensor:
    """[] the variance over all ranks, from each rank's own variance and mean (Chan et al., 1979)."""
    own = values if len(values) else values.new_zeros(1)
    count, mean, variance = float(len(values)), float(own.mean()), float(own.var(correction=0))
    first = reduce(torch.tensor([count, count * mean], dtype=torch.float64))
    total = float(first[0].clamp(min=1))
    apart = mean - float(first[1]) / total
    second = reduce(torch.tensor([count * variance, count * apart**2], dtype=torch.float64))
    return (second.sum() / total).to(values.dtype)


def logprob_gap(batch: Experience, *, off_policy: OffPolicy, reduce: Reduce, largest: Largest) -> dict[str, float]:
    """Mean and largest gap of sampler and trainer before the update; empty unless importance is decoupled."""
    if off_policy.importance != "decoupled":
        return {}
    gaps = (batch.old_logprobs_BT - batch.rollout_logprobs_BT)[batch.mask_BT].abs()
    count, own = float(len(gaps)), gaps if len(gaps) else gaps.new_zeros(1)
    totals = reduce(torch.tensor([count, count * float(own.mean())], dtype=torch.float64))
    most = largest(own.max().double())
    found = {"rollout/logprob_gap": float(totals[1] / totals[0]), "rollout/logprob_gap_max": float(most)}
    return found if totals[0] else {}


def rollout_metrics(rollouts: Sequence[Rollout], *, iteration: int, reduce: Reduce) -> dict[str, float]:
    """Means over rollouts, under the fixed names."""
    sums = {
        "reward/mean": sum(rollout.total_reward for rollout in rollouts),
        "reward/success": sum(rollout.success for rollout in rollouts),
        "rollout/turns": sum(len(rollout.turns) for rollout in rollouts),
        "rollout/searches": sum(rollout.num_searches for rollout in rollouts),
        "rollout/tokens": sum(len(rollout.token_ids) for rollout in rollouts),
        "rollout/valid_answer": sum(rollout.stop_reason is StopReason.ANSWERED for rollout in rollouts),
        "rollout/truncated": sum(rollout.stop_reason.truncated for rollout in rollouts),
        "rollout/staleness": sum(iteration - rollout.policy_version for rollout in rollouts),
    }
    *totals, count = reduce(torch.tensor([*sums.values(), len(rollouts)], dtype=torch.float64)).tolist()
    return {name: total / max(1.0, count) for name, total in zip(sums, totals, strict=True)}


# How the ranks' own figures of sampling become one: some add up, and of the rest the rank that is worst off counts.
ADD_UP = ("rollout/search_retries", "rollout/resampled_groups", "sampler/replicas")
LEAST = ("sampler/arrived", "throughput/queries_per_search")
MOST = tuple(
    "time/rollout time/reward time/search time/search_p95 sampler/probe_gap sampler/probe_moved sampler/measurable "
    "sampler/merge_lost".split()
)
OF_SAMPLING = (*ADD_UP, *LEAST, *MOST)  # the same on all ranks, as they are reduced by place


def worst_of_ranks(own: Mapping[str, float], reduce: Reduce, largest: Largest) -> dict[str, float]:
    """Each figure over all ranks, which may have different ones: the sum, or the worst; unknown names stay."""
    signs = torch.tensor([-1.0 if name in LEAST else 1.0 for name in OF_SAMPLING], dtype=torch.float64)
    values = torch.tensor([own.get(name, math.nan) for name in OF_SAMPLING], dtype=torch.float64)
    there = ~values.isnan()
    summed = reduce(torch.where(there, values, 0.0))
    most = largest(torch.where(there, signs * values, -math.inf))
    found = {
        name: float(summed[at] if name in ADD_UP else signs[at] * most[at])
        for at, name in enumerate(OF_SAMPLING)
        if float(most[at]) != -math.inf
    }
    return {**own, **found}
