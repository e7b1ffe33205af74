from __future__ import annotations

import pytest
import torch

from medagent.types import Question, Rollout, StopReason, Turn
from training.advantages import gae, moments, pack_actions, unpack_actions, whiten
from training.experience import tensorize


def one(values) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


def test_by_hand() -> None:
    mask = torch.tensor([[False, True, True, False, True]])
    advantages, returns = gae(one([0, 0, 0, 0, 1.0]), one([9, 0.5, 0.2, 9, 0.4]), mask, gamma=0.9, lam=0.5)
    d2 = 1 - 0.4
    d1 = 0.9 * 0.4 - 0.2
    d0 = 0.9 * 0.2 - 0.5
    a1 = d1 + 0.45 * d2
    expected = [0, d0 + 0.45 * a1, a1, 0, d2]
    assert advantages[0].tolist() == pytest.approx(expected)
    assert returns[0].tolist() == pytest.approx([0, expected[1] + 0.5, a1 + 0.2, 0, d2 + 0.4])


def rollout(observations: list[list[int]], reward: float = 1.0) -> Rollout:
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
        batch = tensorize([rollout(observations)], pad_id=0)
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
        batch = tensorize([rollout([[5], [6, 6], last], reward)], pad_id=0)
        values = torch.where(batch.mask_BT, 0.3, 0.0)
        advantages, _ = gae(batch.rewards_BT, values, batch.mask_BT, gamma=gamma, lam=lam)
        first.append(advantages[batch.mask_BT][0].item())
    assert first[1] - first[0] == pytest.approx((gamma * lam) ** 5)


def test_turn_rewards_sit_on_the_turn_that_earned_them() -> None:
    turns = (
        Turn((10, 11), (0.0, 0.0), "", observation_ids=(5, 5), reward=0.25),
        Turn((12,), (0.0,), "", reward=0.5),
    )
    batch = tensorize([Rollout(Question("q", "?"), (1,), turns, StopReason.ANSWERED, reward=1.0)], pad_id=0)
    assert batch.rewards_BT.tolist() == [[0, 0, 0.25, 0, 0, 1.5]]


def test_ragged_batches_equal_single_rollouts() -> None:
    torch.manual_seed(0)
    rollouts = [rollout([[5], [6], []]), rollout([[], [], [7] * 6], 0.3)]
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
