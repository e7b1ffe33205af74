"""Advantages and their estimators against numbers worked by hand, and against loops that share no code with them."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import dataclass, replace

import pytest
import torch

from medagent.errors import ConfigError
from medagent.training.advantages import (
    GAE,
    AdvantageEstimator,
    BatchBaseline,
    GroupNormalised,
    LeaveOneOut,
    gae,
    moments,
    pack_actions,
    unpack_actions,
    whiten,
)
from medagent.training.experience import RolloutTensors, tensorize, turn_starts
from medagent.types import Question, Rollout, StopReason, Turn


def one(values) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


def test_gae_by_hand() -> None:
    mask = torch.tensor([[False, True, True, False, True]])
    advantages, returns = gae(one([0, 0, 0, 0, 1.0]), one([9, 0.5, 0.2, 9, 0.4]), mask, gamma=0.9, lam=0.5)
    d2 = 1 - 0.4
    d1 = 0.9 * 0.4 - 0.2
    d0 = 0.9 * 0.2 - 0.5
    a1 = d1 + 0.45 * d2
    expected = [0, d0 + 0.45 * a1, a1, 0, d2]
    assert advantages[0].tolist() == pytest.approx(expected)
    assert returns[0].tolist() == pytest.approx([0, expected[1] + 0.5, a1 + 0.2, 0, d2 + 0.4])


def of_three_turns(observations: list[list[int]], reward: float = 1.0) -> Rollout:
    """Three turns of two tokens; `observations` follow them."""
    turns = tuple(
        Turn((10 + k, 20 + k), (-0.1, -0.2), "", observation_ids=tuple(observation))
        for k, observation in enumerate(observations)
    )
    return Rollout(Question("q", "?"), (1, 2, 3), turns, StopReason.MAX_TURNS, reward=reward)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.8)])
def test_environment_tokens_never_change_an_advantage(gamma: float, lam: float) -> None:
    """Adding, removing or changing what the environment inserts leaves the actions' advantages as they are."""
    found = []
    for observations in ([[5], [6], []], [[5] * 9, [7, 7], []], [[], [], []], [[5], [6], [8, 8, 8]]):
        batch = tensorize([of_three_turns(observations)], pad_id=0)
        values = torch.full(batch.mask_BT.shape, 123.0)  # whatever stands at environment tokens must not matter
        values[batch.mask_BT] = torch.tensor([0.1, 0.4, 0.2, 0.6, 0.5, 0.9])
        advantages, _ = gae(batch.rewards_BT, values, batch.mask_BT, gamma=gamma, lam=lam)
        found.append(advantages[batch.mask_BT])
        assert advantages[~batch.mask_BT].abs().max() == 0
    for other in found[1:]:
        torch.testing.assert_close(found[0], other)


@pytest.mark.parametrize("last", [[], [9, 9, 9]])
@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.7)])
def test_a_terminal_reward_is_never_lost(last: list[int], gamma: float, lam: float) -> None:
    """Also where the rollout ends on an observation; d A_0 / d r = (gamma lam)^n, n = distance in action tokens."""
    first = []
    for reward in (0.0, 1.0):
        batch = tensorize([of_three_turns([[5], [6, 6], last], reward)], pad_id=0)
        values = torch.where(batch.mask_BT, 0.3, 0.0)
        advantages, _ = gae(batch.rewards_BT, values, batch.mask_BT, gamma=gamma, lam=lam)
        first.append(advantages[batch.mask_BT][0].item())
    assert first[1] - first[0] == pytest.approx((gamma * lam) ** 5)


def test_turn_rewards_are_at_the_last_action_token_of_the_turn_that_earned_them() -> None:
    turns = (
        Turn((10, 11), (0.0, 0.0), "", observation_ids=(5, 5), reward=0.25),
        Turn((12,), (0.0,), "", reward=0.5),
    )
    batch = tensorize([Rollout(Question("q", "?"), (1,), turns, StopReason.ANSWERED, reward=1.0)], pad_id=0)
    assert batch.rewards_BT.tolist() == [[0, 0, 0.25, 0, 0, 1.5]]


def test_ragged_batches_equal_single_rollouts() -> None:
    torch.manual_seed(0)
    rollouts = [of_three_turns([[5], [6], []]), of_three_turns([[], [], [7] * 6], 0.3)]
    together = tensorize(rollouts, pad_id=0)
    values = torch.rand(together.mask_BT.shape)
    advantages, returns = gae(together.rewards_BT, values, together.mask_BT, gamma=0.95, lam=0.9)
    for index, single in enumerate(rollouts):
        alone = tensorize([single], pad_id=0)
        width = alone.mask_BT.shape[1]
        expected, expected_returns = gae(
            alone.rewards_BT, values[index : index + 1, :width], alone.mask_BT, gamma=0.95, lam=0.9
        )
        torch.testing.assert_close(advantages[index : index + 1, :width], expected)
        torch.testing.assert_close(returns[index : index + 1, :width], expected_returns)


def test_no_reward_one_turn_and_no_action() -> None:
    mask = torch.tensor([[False, True, True], [False, False, False]])
    advantages, returns = gae(torch.zeros(2, 3), torch.zeros(2, 3), mask, gamma=1.0, lam=1.0)
    assert advantages.abs().sum() == 0
    assert returns.abs().sum() == 0


def test_packing_inverts() -> None:
    torch.manual_seed(0)
    mask = torch.rand(4, 9) < 0.5
    values = torch.rand(4, 9) * mask
    assert torch.equal(unpack_actions(*pack_actions(values, mask), values), values)


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


def test_turn_level_gae_by_hand() -> None:
    """Two turns, V(first tokens) = 0.5 and 0.25, reward 1 on the second, gamma 0.5, lambda 0.8."""
    rollouts = tensorize([rollout([3, 2], 1.0)], pad_id=0)
    first = turn_starts(rollouts.mask_BT, rollouts.turn_ids_BT)
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


def test_turn_level_advantages_are_whitened_over_action_tokens() -> None:
    """A long turn counts as many times as it has tokens, as it does in the loss."""
    rollouts = [rollout([3, 1], 1.0), rollout([1, 7], 0.0), rollout([2], 0.5), rollout([5, 1, 1], 0.25)]
    batch = estimate(GAE(level="turn"), rollouts)
    advantages = batch.advantages_BT[batch.rollouts.mask_BT]
    assert advantages.mean().item() == pytest.approx(0, abs=1e-6)
    assert advantages.std(correction=0).item() == pytest.approx(1, abs=1e-5)


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
    batch = estimate(BatchBaseline(whiten=False), rollouts)
    pairs = zip(batch.advantages_BT, batch.rollouts.mask_BT, strict=True)
    assert [float(row[mask][0]) for row, mask in pairs] == pytest.approx([0.5, -0.5, 0.0])
    assert float(batch.returns_BT.abs().max()) == 0, "there is no critic to be taught"
    other = torch.tensor([1.0, 4.5, 4.5**2], dtype=torch.float64)  # another rank with one rollout of reward 4.5
    over_ranks, _ = BatchBaseline(whiten=False).estimate(batch.rollouts, batch.values_BT, lambda totals: totals + other)
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
