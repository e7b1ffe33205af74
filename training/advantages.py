"""Advantages: pure functions over action tokens, and one class per estimator, each a setting of `data.advantage`.

Shapes: B rollouts, T tokens, A action tokens of the longest rollout. The environment's tokens are skipped. `reduce`
sums a tensor over ranks. Nothing here has a gradient.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from torch import Tensor

from medagent.errors import require
from medagent.training.experience import RolloutTensors, turn_starts
from medagent.training.objectives import segment_sum

Reduce = Callable[[Tensor], Tensor]
EQUAL = 1e-6  # outcomes of a group that differ by less are equal: sums of rewards are rounded to float32


def pack_actions(values_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Move each row's action entries to the front: (values_BA, valid_BA, positions_BA in T)."""
    width = max(1, int(mask_BT.sum(dim=1).max()))
    order_BT = torch.argsort((~mask_BT).to(torch.int8), dim=1, stable=True)
    positions_BA = order_BT[:, :width]
    return values_BT.gather(1, positions_BA), mask_BT.gather(1, positions_BA), positions_BA


def gae(rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, *, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al., arXiv 1506.02438, eq. 16) over action tokens.

    `values_BT[:, t]` is V before token t. The successor of a turn's last token is the first action token of the next
    turn; after the last action token the value is 0. Returns (advantages_BT, returns_BT), zero off the mask.

    Example: a rollout has mask [0, 1, 0, 1] and reward 1 at the last token. With V = 0 and gamma = lam = 1 its
    advantages are [0, 1, 0, 1].
    """
    rewards_BA, valid_BA, positions_BA = pack_actions(rewards_BT, mask_BT)
    values_BA = torch.where(valid_BA, values_BT.gather(1, positions_BA), 0.0)
    rewards_BA = torch.where(valid_BA, rewards_BA, 0.0)
    advantages_BA = torch.zeros_like(values_BA)
    running_B = torch.zeros_like(values_BA[:, 0])
    next_value_B = torch.zeros_like(running_B)
    for step in reversed(range(values_BA.shape[1])):
        delta_B = rewards_BA[:, step] + gamma * next_value_B - values_BA[:, step]
        running_B = delta_B + gamma * lam * running_B
        # Behind a row's last action everything is zero, so the row starts there with nothing carried over.
        advantages_BA[:, step] = running_B
        next_value_B = values_BA[:, step]
    advantages_BT = torch.zeros_like(values_BT).scatter(1, positions_BA, torch.where(valid_BA, advantages_BA, 0.0))
    return advantages_BT, torch.where(mask_BT, advantages_BT + values_BT, 0.0)


def moments(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """[3] count, sum and sum of squares over the mask, in float64; those of several ranks add up."""
    chosen = values_BT[mask_BT].double()
    return torch.stack([torch.tensor(float(chosen.numel()), dtype=torch.float64), chosen.sum(), chosen.square().sum()])


def whiten(values_BT: Tensor, mask_BT: Tensor, totals: Tensor) -> Tensor:
    """Zero mean and unit variance over all entries that `totals` (see `moments`) counts; zero off the mask."""
    count = totals[0].clamp(min=1)
    mean = totals[1] / count
    scale = (totals[2] / count - mean.square()).clamp(min=0).sqrt().clamp(min=1e-8)
    return torch.where(mask_BT, (values_BT - mean) / scale, 0.0).to(values_BT.dtype)


class AdvantageEstimator(ABC):
    """From rewards, values and groups to advantages: `data.advantage` names a subclass.

    `needs_critic`: whether it reads values. `needs_groups`: whether it compares several rollouts of each question.
    """

    needs_critic: ClassVar[bool]
    needs_groups: ClassVar[bool] = False

    @abstractmethod
    def estimate(self, rollouts: RolloutTensors, values_BT: Tensor, reduce: Reduce) -> tuple[Tensor, Tensor]:
        """(advantages_BT, returns_BT), both [B, T]: 0 off the action tokens, returns 0 where no critic is taught.

        `rollouts` are all of this rank's, with KL penalty and bootstrap in their rewards. `values_BT` is the critic's
        value before each token that `value_mask` marks, 0 elsewhere. `reduce` sums a tensor over ranks.
        """

    def value_mask(self, mask_BT: Tensor, turn_ids_BT: Tensor) -> Tensor:
        """[B, T] where the critic is read and taught; nowhere without one."""
        return torch.zeros_like(mask_BT)


class GAE(AdvantageEstimator):
    """Generalised advantage estimation with the critic (arXiv 1506.02438).

    `level` "token": one delta per action token. "turn": one value per turn, read before its first action token, and one
    delta per turn. Every action token of the turn gets the turn's advantage.

    `whiten` gives the action tokens of the batch zero mean and unit variance.
    """

    needs_critic = True

    def __init__(
        self, gamma: float = 1.0, lam: float = 1.0, level: Literal["token", "turn"] = "token", whiten: bool = True
    ) -> None:
        for name, value in (("gamma", gamma), ("lam", lam)):
            require(0 <= value <= 1, f"GAE.{name}", value, "a number from 0 to 1")
        self.gamma, self.lam, self.level, self.whiten = gamma, lam, level, whiten

    def value_mask(self, mask_BT: Tensor, turn_ids_BT: Tensor) -> Tensor:
        return mask_BT if self.level == "token" else turn_starts(mask_BT, turn_ids_BT)

    def estimate(self, rollouts: RolloutTensors, values_BT: Tensor, reduce: Reduce) -> tuple[Tensor, Tensor]:
        mask_BT, turn_ids_BT, rewards_BT = rollouts.mask_BT, rollouts.turn_ids_BT, rollouts.rewards_BT
        value_mask_BT = self.value_mask(mask_BT, turn_ids_BT)
        if self.level == "turn":
            rewards_BT = torch.where(value_mask_BT, segment_sum(rewards_BT, turn_ids_BT), 0.0)
        advantages_BT, returns_BT = gae(rewards_BT, values_BT, value_mask_BT, gamma=self.gamma, lam=self.lam)
        if self.level == "turn":
            advantages_BT = segment_sum(advantages_BT, turn_ids_BT)
        if self.whiten:
            totals = reduce(moments(advantages_BT, mask_BT))
            advantages_BT = whiten(advantages_BT, mask_BT, totals)
        return advantages_BT, returns_BT


class GroupNormalised(AdvantageEstimator):
    """GRPO (arXiv 2402.03300): (r_i - mean) / (standard deviation + 1e-6) in a group, at every action token.

    A group is the rollouts of one question. r_i is everything that a rollout earned, and the deviation is the sample's.
    Equal rewards give zero. With `divide` false only the mean is taken off (Dr. GRPO, arXiv 2503.20783).
    """

    needs_critic, needs_groups = False, True

    def __init__(self, divide: bool = True) -> None:
        self.divide = divide

    def estimate(self, rollouts: RolloutTensors, values_BT: Tensor, reduce: Reduce) -> tuple[Tensor, Tensor]:
        outcomes_B = rollouts.rewards_BT.double().sum(dim=1)
        counts_B, means_B = group_means(outcomes_B, rollouts.groups_B)
        advantages_B = outcomes_B - means_B
        if self.divide:
            # Taken from the deviations: a difference of large squares would leave noise where all rewards are equal.
            variance_B = _group_sums(advantages_B.square(), rollouts.groups_B) / (counts_B - 1).clamp(min=1)
            equal_B = advantages_B.abs() < EQUAL
            advantages_B = torch.where(equal_B, 0.0, advantages_B / (variance_B.sqrt() + 1e-6))
        return _everywhere(advantages_B, rollouts), torch.zeros_like(values_BT)


class LeaveOneOut(AdvantageEstimator):
    """RLOO (arXiv 2402.14740): r_i less the mean of the group's other rollouts, at every action token."""

    needs_critic, needs_groups = False, True

    def estimate(self, rollouts: RolloutTensors, values_BT: Tensor, reduce: Reduce) -> tuple[Tensor, Tensor]:
        outcomes_B = rollouts.rewards_BT.double().sum(dim=1)
        counts_B, means_B = group_means(outcomes_B, rollouts.groups_B)
        advantages_B = (outcomes_B - means_B) * counts_B / (counts_B - 1).clamp(min=1)
        return _everywhere(advantages_B, rollouts), torch.zeros_like(values_BT)


class BatchBaseline(AdvantageEstimator):
    """REINFORCE with a baseline: r_i less the mean over the batch and over ranks, at every action token.

    `whiten` divides by the standard deviation, as REINFORCE++ does (arXiv 2501.03262).
    """

    needs_critic = False

    def __init__(self, whiten: bool = True) -> None:
        self.whiten = whiten

    def estimate(self, rollouts: RolloutTensors, values_BT: Tensor, reduce: Reduce) -> tuple[Tensor, Tensor]:
        outcomes_B = rollouts.rewards_BT.double().sum(dim=1)
        everyone_B = torch.ones_like(outcomes_B, dtype=torch.bool)
        totals = reduce(moments(outcomes_B, everyone_B))
        advantages_B = whiten(outcomes_B, everyone_B, totals) if self.whiten else outcomes_B - totals[1] / totals[0]
        return _everywhere(advantages_B, rollouts), torch.zeros_like(values_BT)


def _group_sums(values_B: Tensor, groups_B: Tensor) -> Tensor:
    """The sum of each row's group, at each row."""
    return values_B.new_zeros(int(groups_B.max()) + 1).index_add(0, groups_B, values_B)[groups_B]


def group_means(values_B: Tensor, groups_B: Tensor) -> tuple[Tensor, Tensor]:
    """[B], [B]: how many rows each row's group has, and their mean."""
    counts_B = _group_sums(torch.ones_like(values_B), groups_B)
    return counts_B, _group_sums(values_B, groups_B) / counts_B


def _everywhere(advantages_B: Tensor, rollouts: RolloutTensors) -> Tensor:
    return torch.where(rollouts.mask_BT, advantages_B[:, None].to(rollouts.rewards_BT.dtype), 0.0)
