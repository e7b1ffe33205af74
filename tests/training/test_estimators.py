"""Advantage estimators against numbers worked by hand, and against loops that share no code with them."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import dataclass, replace

import pytest
import torch

from medagent.errors import ConfigError
from medagent.types import Question, Rollout, StopReason, Turn
from training.advantages import GAE, AdvantageEstimator, BatchBaseline, GroupNormalised, LeaveOneOut
from training.experience import RolloutTensors, first_of_turns, tensorize


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


def test_turn_level_gae_by_hand() -> None:
    """Two turns, V(first tokens) = 0.5 and 0.25, reward 1 on the second, gamma 0.5, lambda 0.8."""
    rollouts = tensorize([rollout([3, 2], 1.0)], pad_id=0)
    first = first_of_turns(rollouts.mask_BT, rollouts.turn_ids_BT)
    assert first[0].nonzero().flatten().tolist() == [3, 8]
    values_BT = torch.full_like(rollouts.rewards_BT, 9.0)  # whatever is elsewhere must not be read
    values_BT[0, 3], values_BT[0, 8] = 0.5, 0.25
    estimator = GAE(gamma=0.5, lam=0.8, level="turn", whiten=False)
    assert torch.equal(estimator.value_mask(rollouts.mask_BT, rollouts.turn_ids_BT), first)
    advantages_BT, returns_BT = estimator.estimate(rollouts, values_BT, lambda tensor: tensor)
    second = 1 - 0.25
    one = 0.5 * 0.25 - 0.5 + 0.5 * 0.8 * second
    expected = torch.zeros_like(values_BT)
    expected[0, 3:6], expected[0, 8:10] = one, second
    torch.testing.assert_close(advantages_BT, expected)
    assert returns_BT[0, [3, 8]].tolist() == pytest.approx([one + 0.5, second + 0.25])
    assert int((returns_BT != 0).sum()) == 2, "the critic is taught where it is read"


def test_turn_level_gae_of_one_token_turns_is_token_level() -> None:
    rollouts = [rollout([1, 1, 1], 1.0), rollout([1], 0.0), rollout([1, 1], 0.5, observations=0)]
    turn = estimate(GAE(0.9, 0.7, "turn"), rollouts)
    token = estimate(GAE(0.9, 0.7, "token"), rollouts)
    torch.testing.assert_close(turn.advantages_BT, token.advantages_BT)
    torch.testing.assert_close(turn.returns_BT, token.returns_BT)


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


def groups() -> list[Rollout]:
    rewards = {"a": [1.0, 0.0, 0.0, 0.0], "b": [0.5, 0.5, 0.5, 0.5], "c": [1.0, 1.0, 0.0, 0.2]}
    return [
        rollout([i + 1], reward, question=name, sample=i)
        for i in range(4)
        for name, of_question in rewards.items()
        for reward in [of_question[i]]
    ]


def by_question(batch: Estimated, rollouts: list[Rollout]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for row, each in enumerate(rollouts):
        values = batch.advantages_BT[row][batch.rollouts.mask_BT[row]]
        assert len(set(values.tolist())) == 1, "every action token of a rollout has its advantage"
        found.setdefault(each.question.id, []).append(float(values[0]))
    return found


def test_group_normalised_by_hand() -> None:
    rollouts = groups()
    found = by_question(estimate(GroupNormalised(), rollouts, num_samples=4), rollouts)
    for name in "ac":
        rewards = [r.reward for r in rollouts if r.question.id == name]
        mean, deviation = statistics.mean(rewards), statistics.stdev(rewards)
        assert found[name] == pytest.approx([(r - mean) / (deviation + 1e-6) for r in rewards], rel=1e-5)
    assert found["b"] == [0.0] * 4, "equal rewards teach nothing"
    plain = by_question(estimate(GroupNormalised(divide=False), rollouts, num_samples=4), rollouts)
    assert plain["a"] == pytest.approx([0.75, -0.25, -0.25, -0.25])


@pytest.mark.parametrize("reward", [0.1, 1 / 3, 0.7])
def test_equal_rewards_that_do_not_sum_exactly_give_zero(reward: float) -> None:
    rollouts = [rollout([1], reward, sample=i) for i in range(7)]
    for estimator in (GroupNormalised(), LeaveOneOut()):
        batch = estimate(estimator, rollouts, num_samples=7)
        assert float(batch.advantages_BT.abs().max()) < 1e-9


def test_leave_one_out_by_hand() -> None:
    rollouts = groups()
    found = by_question(estimate(LeaveOneOut(), rollouts, num_samples=4), rollouts)
    assert found["a"] == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3])
    assert found["c"] == pytest.approx([1 - 0.4, 1 - 0.4, 0 - 2.2 / 3, 0.2 - 2 / 3])


def test_batch_baseline_by_hand_and_over_ranks() -> None:
    rollouts = [rollout([1], 1.0), rollout([3], 0.0), rollout([2], 0.5)]
    batch = estimate(BatchBaseline(), rollouts)
    pairs = zip(batch.advantages_BT, batch.rollouts.mask_BT, strict=True)
    assert [float(row[mask][0]) for row, mask in pairs] == pytest.approx([0.5, -0.5, 0.0])
    assert float(batch.returns_BT.abs().max()) == 0, "there is no critic to be taught"
    other = torch.tensor([1.0, 4.5, 4.5**2], dtype=torch.float64)  # another rank with one rollout of reward 4.5
    over_ranks, _ = BatchBaseline().estimate(batch.rollouts, batch.values_BT, lambda totals: totals + other)
    assert float(over_ranks[0][batch.rollouts.mask_BT[0]][0]) == pytest.approx(1.0 - 6.0 / 4)
    whitened = estimate(BatchBaseline(whiten=True), rollouts)
    first = float(whitened.advantages_BT[0][batch.rollouts.mask_BT[0]][0])
    assert first == pytest.approx(0.5 / math.sqrt(1 / 6), rel=1e-5)


def test_the_same_question_asked_twice_makes_two_groups() -> None:
    rollouts = [rollout([1], float(i), sample=i) for i in range(4)]
    assert tensorize(rollouts, pad_id=0, num_samples=2).groups_B.tolist() == [0, 0, 1, 1]
    assert tensorize(rollouts, pad_id=0, num_samples=4).groups_B.tolist() == [0, 0, 0, 0]


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"GAE\.gamma: found 1\.5"):
        GAE(gamma=1.5)
    with pytest.raises(ConfigError, match=r"GAE\.lam"):
        GAE(lam=-0.1)
