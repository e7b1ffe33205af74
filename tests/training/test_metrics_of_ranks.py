"""What is logged is of all ranks together, and with one rank no bit of it changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from medagent.training.advantages import GAE
from medagent.training.metrics import (
    explained_variance,
    logprob_gap,
    rollout_metrics,
    variance_over_ranks,
    worst_of_ranks,
)
from medagent.training.prepare import OffPolicy, prepare
from medagent.training.sharding import over_ranks
from medagent.types import Question, Rollout, StopReason, Turn
from tests.training.support import make_module


class FakeRanks:
    """Ranks that are threads; each call of one waits for the same call of the others."""

    def __init__(self, number: int) -> None:
        self._number, self._barrier = number, threading.Barrier(number, timeout=20)
        self._given: dict[int, torch.Tensor] = {}

    def trainer(self, rank: int) -> SimpleNamespace:
        def reduce(tensor: torch.Tensor, reduce_op: str) -> torch.Tensor:
            self._given[rank] = tensor
            self._barrier.wait()
            stacked = torch.stack([self._given[each] for each in range(self._number)])
            self._barrier.wait()
            found = {"sum": stacked.sum(0), "mean": stacked.mean(0), "max": stacked.amax(0)}[reduce_op]
            return tensor.copy_(found)  # in place, as torch.distributed does

        strategy = SimpleNamespace(reduce=reduce, root_device=torch.device("cpu"))
        return SimpleNamespace(world_size=self._number, strategy=strategy, global_rank=rank)

    def run(self, work: Callable[[Callable, Callable, int], object]) -> list[object]:
        results: list[object] = [None] * self._number

        def one(rank: int) -> None:
            trainer = self.trainer(rank)
            results[rank] = work(
                lambda tensor: over_ranks(trainer, tensor, "sum"),
                lambda tensor: over_ranks(trainer, tensor, "max"),
                rank,
            )

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self._number)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


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
    for found in FakeRanks(2).run(lambda reduce, _, rank: rollout_metrics(uneven[rank], iteration=3, reduce=reduce)):
        assert found == pytest.approx(whole, rel=1e-12)
    assert whole["reward/mean"] == sum(rollout.total_reward for rollout in rollouts) / 7, "to the last bit"
    assert 0 < whole["rollout/truncated"] < 1


def test_a_variance_of_ranks_is_that_of_all_their_values() -> None:
    values = torch.randn(1001, generator=torch.Generator().manual_seed(0)) * 3 + 100
    assert torch.equal(variance_over_ranks(values, alone), values.var(correction=0)), "to the last bit"
    parts = [values[:1], values[1:600], values[600:], values[:0]]
    for found in FakeRanks(4).run(lambda reduce, _, rank: variance_over_ranks(parts[rank], reduce)):
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

    for found in FakeRanks(2).run(of_rank):
        assert found == pytest.approx(whole, rel=1e-4)


def test_of_sampling_the_rank_that_is_worst_off_counts() -> None:
    own = [
        {"time/search": 1.0, "rollout/search_retries": 2.0, "sampler/arrived": 0.4, "mine/own": 1.0},
        {"time/search": 3.0, "rollout/search_retries": 5.0, "sampler/arrived": 0.9, "sampler/replicas": 2.0},
    ]
    first, second = FakeRanks(2).run(lambda reduce, largest, rank: worst_of_ranks(own[rank], reduce, largest))
    wanted = {"time/search": 3.0, "rollout/search_retries": 7.0, "sampler/arrived": 0.4, "sampler/replicas": 2.0}
    assert first == {**wanted, "mine/own": 1.0}
    assert second == wanted
    assert worst_of_ranks(own[0], alone, alone) == own[0]


def test_a_tensor_that_is_reduced_stays_as_it_is() -> None:
    given = torch.ones(3)
    found = FakeRanks(2).run(lambda reduce, _, rank: reduce(given))
    assert torch.equal(given, torch.ones(3))
    assert all(torch.equal(each, torch.full((3,), 2.0)) for each in found)
