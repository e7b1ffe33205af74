"""Advantages and their estimators against numbers worked by hand, and against loops that share no code with them."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
import torch

from medagent.errors import ConfigError
from medagent.training.advantages import (
    GAE,
    AdvantageEstimator,
    GroupNormalised,
    LeaveOneOut,
    gae,
    moments,
    whiten,
)
from medagent.training.experience import RolloutTensors, tensorize
from medagent.types import Question, Rollout, StopReason, Turn


def test_no_reward_one_turn_and_no_action() -> None:
    mask = torch.tensor([[False, True, True], [False, False, False]])
    advantages, returns = gae(torch.zeros(2, 3), torch.zeros(2, 3), mask, gamma=1.0, lam=1.0)
    assert advantages.abs().sum() == 0
    assert returns.abs().sum() == 0


def test_whitening_over_the_mask_and_over_ranks() -> None:
    torch.manual_seed(0)
    values, mask = torch.rand(4, 9, dtype=torch.float64), torch.rand(4, 9) < 0.5
    whole = whiten(values, mask, moments(values, mask))
    assert whole[mask].mean().item() == pytest.approx(0, abs=1e-9)
    assert whole[mask].std(correction=0).item() == pytest.approx(1)
    assert whole[~mask].abs().sum() == 0
    totals = moments(values[:2], mask[:2]) + moments(values[2:], mask[2:])
    torch.testing.assert_close(whiten(values[:2], mask[:2], totals), whole[:2])
    constant = torch.full((1, 3), 2.0)
    every = torch.ones(1, 3, dtype=torch.bool)
    assert whiten(constant, every, moments(constant, every)).abs().max() < 1e-6


def rollout(turns: list[int], reward: float, *, question: str = "q", observations: int = 2, sample: int = 0) -> Rollout:
    """A rollout with turns of so many action tokens, each followed by an observation (also the last one)."""
    made = tuple(
        Turn(tuple(range(n)), (-1.0,) * n, "", observation_ids=tuple(range(observations)), reward=0.0) for n in turns
    )
    return Rollout(Question(question, ""), (1, 2, 3), made, StopReason.ANSWERED, sample=sample, reward=reward)


@dataclass(frozen=True)
class Estimated:
    """Rollouts with the values that an estimator is given, and what it makes of them."""

    rollouts: RolloutTensors
    values_BT: torch.Tensor
    advantages_BT: torch.Tensor
    returns_BT: torch.Tensor


def random_values(rollouts: RolloutTensors, seed: int = 0) -> torch.Tensor:
    return torch.randn(rollouts.mask_BT.shape, generator=torch.Generator().manual_seed(seed))


def estimate(
    estimator: AdvantageEstimator,
    rollouts: list[Rollout],
    values_BT: torch.Tensor | None = None,
    *,
    num_samples: int = 1,
    seed: int = 0,
) -> Estimated:
    """By one rank alone; the values are random where none are given."""
    tensors = tensorize(rollouts, pad_id=0, num_samples=num_samples)
    values_BT = random_values(tensors, seed) if values_BT is None else values_BT
    return Estimated(tensors, values_BT, *estimator.estimate(tensors, values_BT, lambda tensor: tensor))


@pytest.mark.parametrize("level", ["token", "turn"])
@pytest.mark.parametrize("seed", range(5))
def test_gae_against_a_loop(level: str, seed: int) -> None:
    rng = random.Random(seed)
    rollouts = [
        rollout([rng.randint(1, 4) for _ in range(rng.randint(1, 4))], rng.random(), observations=rng.randint(0, 3))
        for _ in range(6)
    ]
    rollouts = [replace(r, turns=tuple(replace(t, reward=rng.random()) for t in r.turns)) for r in rollouts]
    gamma, lam = 0.95, 0.8
    batch = estimate(GAE(gamma, lam, level, whiten=False), rollouts, seed=seed)  # type: ignore[arg-type]
    for row, each in enumerate(rollouts):
        steps: list[tuple[list[int], float, float]] = []  # positions, value, reward
        position = len(each.prompt_ids)
        for turn in each.turns:
            places = list(range(position, position + len(turn.token_ids)))
            values = [float(batch.values_BT[row, place]) for place in places]
            if level == "turn":
                steps.append((places, values[0], turn.reward))
            else:
                steps += [([p], v, 0.0) for p, v in zip(places[:-1], values[:-1], strict=True)]
                steps.append(([places[-1]], values[-1], turn.reward))
            position += len(turn.token_ids) + len(turn.observation_ids)
        places, value, reward = steps[-1]
        steps[-1] = (places, value, reward + each.reward)
        for start, (places, value, _) in enumerate(steps):
            total = 0.0
            for ahead, (_, v, r) in enumerate(steps[start:]):
                following = steps[start + ahead + 1][1] if start + ahead + 1 < len(steps) else 0.0
                total += (gamma * lam) ** ahead * (r + gamma * following - v)
            for place in places:
                assert float(batch.advantages_BT[row, place]) == pytest.approx(total, abs=1e-5)
            assert float(batch.returns_BT[row, places[0]]) == pytest.approx(total + value, abs=1e-5)
    assert float(batch.advantages_BT[~batch.rollouts.mask_BT].abs().max()) == 0


@pytest.mark.parametrize("level", ["token", "turn"])
def test_environment_tokens_and_a_last_observation_change_nothing(level) -> None:
    found = []
    for observations in (0, 1, 5):
        rollouts = [rollout([2, 3], 1.0, observations=observations)]
        mask_BT = tensorize(rollouts, pad_id=0).mask_BT
        batch = estimate(GAE(0.9, 0.9, level, whiten=False), rollouts, torch.where(mask_BT, 0.3, 7.0))
        found.append(batch.advantages_BT[mask_BT])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert float(found[0].abs().min()) > 0


@pytest.mark.parametrize(
    ("estimator", "wanted"), [(GroupNormalised(), [1.0, -1.0, 0.0]), (LeaveOneOut(), [1.5, -1.5, 0.0])]
)
def test_a_group_of_three_has_advantages_worked_by_hand(estimator: AdvantageEstimator, wanted: list[float]) -> None:
    """Rewards 2, 0 and 1: their mean is 1, the sample's deviation 1, and the means of the others 0.5, 1.5 and 1."""
    batch = estimate(estimator, [rollout([1], reward) for reward in (2.0, 0.0, 1.0)], num_samples=3)
    assert batch.advantages_BT[batch.rollouts.mask_BT].tolist() == pytest.approx(wanted, abs=1e-5)


def test_advantages_of_turns_are_whitened_over_their_tokens() -> None:
    """One token has advantage 4 and three have 0: the mean is 1 and the variance 3. Over both turns it would be 2."""
    rollouts = [rollout([1], 4.0), rollout([3], 0.0)]
    values_BT = torch.zeros_like(tensorize(rollouts, pad_id=0).rewards_BT)
    batch = estimate(GAE(level="turn"), rollouts, values_BT)
    assert batch.advantages_BT[0].max().item() == pytest.approx(3**0.5)
    assert batch.advantages_BT[1].min().item() == pytest.approx(-(3**-0.5))


@pytest.mark.parametrize("reward", [0.1, 1 / 3, 0.7])
def test_equal_rewards_that_do_not_sum_exactly_give_zero(reward: float) -> None:
    rollouts = [rollout([1], reward, sample=i) for i in range(7)]
    for estimator in (GroupNormalised(), LeaveOneOut()):
        batch = estimate(estimator, rollouts, num_samples=7)
        assert float(batch.advantages_BT.abs().max()) < 1e-9


def test_the_same_question_asked_twice_makes_two_groups() -> None:
    rollouts = [rollout([1], float(i), sample=i) for i in range(4)]
    assert tensorize(rollouts, pad_id=0, num_samples=2).groups_B.tolist() == [0, 0, 1, 1]
    assert tensorize(rollouts, pad_id=0, num_samples=4).groups_B.tolist() == [0, 0, 0, 0]


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"GAE\.gamma: found 1\.5"):
        GAE(gamma=1.5)
    with pytest.raises(ConfigError, match=r"GAE\.lam"):
        GAE(lam=-0.1)


def test_a_reward_of_a_turn_wholly_forced_reaches_no_action() -> None:
    """No action earned it: neither its own tokens nor the turns around it are paid."""
    forced = Turn((3, 4), (0.0, 0.0), "", "q", observation_ids=(5,), forced_prefix=2, reward=8.0)
    acted = Turn((6, 7), (0.0, -1.0), "", forced_prefix=1, reward=0.25)

    def paid(*turns: Turn) -> list[float]:
        rollout = Rollout(Question("q", ""), (1, 2), turns, StopReason.ANSWERED, reward=1.0)
        tensors = tensorize([rollout], pad_id=0)
        assert not tensors.rewards_BT[~tensors.mask_BT].any()
        advantages_BT, _ = GAE(whiten=False).estimate(tensors, torch.zeros_like(tensors.rewards_BT), lambda each: each)
        assert advantages_BT.sum() == tensors.rewards_BT.flip(1).cumsum(1).flip(1)[tensors.mask_BT].sum()
        return tensors.rewards_BT[tensors.mask_BT].tolist()

    assert paid(acted) == [1.25]
    assert paid(forced, acted) == paid(acted, forced) == [1.25]
    assert paid(acted, forced, acted) == [0.25, 1.25]
    assert paid(forced) == []
