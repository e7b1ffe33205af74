"""What is logged is of all ranks together, and with one rank no bit of it changes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from docs.reference.metric_words import METRICS
from medagent.training.advantages import GAE
from medagent.training.metrics import (
    OF_SAMPLING,
    explained_variance,
    logprob_gap,
    rollout_metrics,
    variance_over_ranks,
    worst_of_ranks,
)
from medagent.training.prepare import OffPolicy, prepare
from medagent.training.ranks import over_ranks
from medagent.types import Question, Rollout, StopReason, Turn
from tests.training.pretend import PretendRanks
from tests.training.support import make_module


def on_ranks(number: int, work: Callable[[Callable, Callable, int], Any]) -> list[Any]:
    """What `work` returns on each rank from its sum over ranks, its largest over ranks, and its number."""
    ranks = PretendRanks(number)

    def one(rank: int) -> Any:
        trainer = ranks.trainer(rank)
        total, largest = (partial(over_ranks, trainer, op=how) for how in ("sum", "max"))
        return work(total, largest, rank)

    return ranks.run(one)


def alone(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def made(number: int) -> Rollout:
    turns = tuple(
        Turn(
            (9 + number, 10, 11 + turn), (-2.0, -1.0 - number / 7, -3.0), "", "q" if turn else None, reward=0.1 * number
        )
        for turn in range(1 + number % 3)
    )
    stop = list(StopReason)[number % len(StopReason)]
    return Rollout(Question(str(number), ""), tuple(range(5, 8 + number)), turns, stop, number % 2, reward=number / 9)


def test_means_over_rollouts_are_of_all_ranks() -> None:
    rollouts = [made(number) for number in range(7)]
    whole = rollout_metrics(rollouts, iteration=3, reduce=alone)
    uneven = [rollouts[:2], rollouts[2:]]
    for found in on_ranks(2, lambda reduce, _, rank: rollout_metrics(uneven[rank], iteration=3, reduce=reduce)):
        assert found == pytest.approx(whole, rel=1e-12)
    assert whole["reward/mean"] == sum(rollout.total_reward for rollout in rollouts) / 7, "to the last bit"
    assert 0 < whole["rollout/truncated"] < 1


def test_a_variance_of_ranks_is_that_of_all_their_values() -> None:
    values = torch.randn(1001, generator=torch.Generator().manual_seed(0)) * 3 + 100
    assert torch.equal(variance_over_ranks(values, alone), values.var(correction=0)), "to the last bit"
    parts = [values[:1], values[1:600], values[600:], values[:0]]
    for found in on_ranks(4, lambda reduce, _, rank: variance_over_ranks(parts[rank], reduce)):
        torch.testing.assert_close(found, values.var(correction=0))


@pytest.mark.parametrize("importance", ["behaviour", "decoupled"])
def test_figures_of_the_experience_are_of_all_ranks(importance) -> None:
    module, off_policy = make_module(), OffPolicy(importance=importance)
    rollouts = [made(number) for number in range(6)]
    with torch.no_grad():
        module.shared_base.value_head.weight.fill_(0.05)

    def figures(reduce, largest, chosen) -> dict[str, float]:
        batch = prepare(module, chosen, estimator=GAE(whiten=False), reduce=alone, off_policy=off_policy)
        gaps = logprob_gap(batch, off_policy=off_policy, reduce=reduce, largest=largest)
        return {"explained": explained_variance(batch, batch.mask_BT, reduce), **gaps}

    whole = figures(alone, alone, rollouts)
    assert (len(whole) == 3) == (importance == "decoupled")
    batch = prepare(module, rollouts, estimator=GAE(whiten=False), reduce=alone)
    returns = batch.returns_BT[batch.mask_BT]
    left = (returns - batch.values_BT[batch.mask_BT]).var(correction=0)
    assert whole["explained"] == float(1 - left / returns.var(correction=0)), "to the last bit"
    # The threads share the module, so the experience is made before they meet.
    made_first = [
        prepare(module, part, estimator=GAE(whiten=False), reduce=alone, off_policy=off_policy)
        for part in (rollouts[::2], rollouts[1::2])
    ]

    def of_rank(reduce, largest, rank) -> dict[str, float]:
        batch = made_first[rank]
        gaps = logprob_gap(batch, off_policy=off_policy, reduce=reduce, largest=largest)
        return {"explained": explained_variance(batch, batch.mask_BT, reduce), **gaps}

    for found in on_ranks(2, of_rank):
        assert found == pytest.approx(whole, rel=1e-4)


def test_of_sampling_the_rank_that_is_worst_off_counts() -> None:
    own = [
        {"time/search": 1.0, "rollout/search_retries": 2.0, "sampler/arrived": 0.4, "mine/own": 1.0},
        {"time/search": 3.0, "rollout/search_retries": 5.0, "sampler/arrived": 0.9, "sampler/replicas": 2.0},
    ]
    first, second = on_ranks(2, lambda reduce, largest, rank: worst_of_ranks(own[rank], reduce, largest))
    wanted = {"time/search": 3.0, "rollout/search_retries": 7.0, "sampler/arrived": 0.4, "sampler/replicas": 2.0}
    assert first == {**wanted, "mine/own": 1.0}
    assert second == wanted
    assert worst_of_ranks(own[0], alone, alone) == own[0]


def test_a_tensor_that_is_reduced_stays_as_it_is() -> None:
    given = torch.ones(3)
    found = on_ranks(2, lambda reduce, _, rank: reduce(given))
    assert torch.equal(given, torch.ones(3))
    assert all(torch.equal(each, torch.full((3,), 2.0)) for each in found)


def test_every_figure_of_engines_is_reduced_over_ranks() -> None:
    assert {name for name in METRICS if name.startswith("sampler/")} <= set(OF_SAMPLING)
