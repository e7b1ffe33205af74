"""How advantages are estimated, apart from how ratios are weighted and clipped: one class an estimator, each a setting of `data.advantage`.

Shapes: B rollouts, T tokens. An estimator sees this rank's whole rollout batch at once; `reduce` sums a tensor over ranks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from torch import Tensor

from medagent.errors import ConfigError
from training.advantages import gae, moments, whiten
from training.experience import Experience, first_of_turns
from training.objectives import segment_sum

Reduce = Callable[[Tensor], Tensor]


class AdvantageEstimator(ABC):
    """Fills `advantages_BT` and `returns_BT` from rewards, values and groups; 0 off the action tokens."""

    needs_critic: ClassVar[bool]
    needs_groups: ClassVar[bool] = False  # several rollouts of each question

    @abstractmethod
    def estimate(self, batch: Experience, reduce: Reduce) -> None:
        """Write the batch's advantages, and the critic's targets where there is a critic."""

    def value_mask(self, batch: Experience) -> Tensor:
        """[B, T] where the critic is read and taught; nowhere without one."""
        return torch.zeros_like(batch.mask_BT)


class GAE(AdvantageEstimator):
    """Generalised advantage estimation with the critic (arXiv 1506.02438).

    `level` "token": one delta an action token. "turn": one value a turn, read before its first action token, one delta a turn, and its advantage at
    every action token of the turn. `whiten` gives the action tokens of the batch zero mean and unit variance.
    """

    needs_critic = True

    def __init__(
        self, gamma: float = 1.0, lam: float = 1.0, level: Literal["token", "turn"] = "token", whiten: bool = True
    ) -> None:
        for name, value in (("gamma", gamma), ("lam", lam)):
            if not 0 <= value <= 1:
                raise ConfigError(f"GAE.{name}: found {value}, wanted a number from 0 to 1.")
        self.gamma, self.lam, self.level, self.whiten = gamma, lam, level, whiten

    def value_mask(self, batch: Experience) -> Tensor:
        """See `AdvantageEstimator.value_mask`."""
        return batch.mask_BT if self.level == "token" else first_of_turns(batch.mask_BT, batch.turn_ids_BT)

    def estimate(self, batch: Experience, reduce: Reduce) -> None:
        """See `AdvantageEstimator.estimate`."""
        rewards_BT, read_BT = batch.rewards_BT, self.value_mask(batch)
        if self.level == "turn":
            rewards_BT = torch.where(read_BT, segment_sum(rewards_BT, batch.turn_ids_BT), 0.0)
        advantages_BT, batch.returns_BT = gae(rewards_BT, batch.values_BT, read_BT, gamma=self.gamma, lam=self.lam)
        if self.level == "turn":
            advantages_BT = segment_sum(advantages_BT, batch.turn_ids_BT)
        if self.whiten:
            totals = reduce(moments(advantages_BT, batch.mask_BT))
            advantages_BT = whiten(advantages_BT, batch.mask_BT, totals)
        batch.advantages_BT = advantages_BT


class GroupNormalised(AdvantageEstimator):
    """(r_i - mean of the group) / (its sample standard deviation + 1e-6), at every action token: GRPO (arXiv 2402.03300).

    A group is the rollouts of one question; r_i is everything a rollout earned. Equal rewards give zero. With `divide` false only the mean is
    taken off (Dr. GRPO, arXiv 2503.20783).
    """

    needs_critic, needs_groups = False, True

    def __init__(self, divide: bool = True) -> None:
        self.divide = divide

    def estimate(self, batch: Experience, reduce: Reduce) -> None:
        """See `AdvantageEstimator.estimate`."""
        outcomes_B = batch.rewards_BT.double().sum(dim=1)
        counts_B, means_B = group_means(outcomes_B, batch.groups_B)
        advantages_B = outcomes_B - means_B
        if self.divide:
            # Taken from the deviations: a difference of large squares would leave noise where all rewards are equal.
            variance_B = _group_sums(advantages_B.square(), batch.groups_B) / (counts_B - 1).clamp(min=1)
            equal_B = advantages_B.abs() < 1e-9
            advantages_B = torch.where(equal_B, 0.0, advantages_B / (variance_B.sqrt() + 1e-6))
        batch.advantages_BT = _everywhere(advantages_B, batch)


class LeaveOneOut(AdvantageEstimator):
    """r_i less the mean of the group's other rollouts, at every action token: RLOO (arXiv 2402.14740)."""

    needs_critic, needs_groups = False, True

    def estimate(self, batch: Experience, reduce: Reduce) -> None:
        """See `AdvantageEstimator.estimate`."""
        outcomes_B = batch.rewards_BT.double().sum(dim=1)
        counts_B, means_B = group_means(outcomes_B, batch.groups_B)
        advantages_B = (outcomes_B - means_B) * counts_B / (counts_B - 1).clamp(min=1)
        batch.advantages_BT = _everywhere(advantages_B, batch)


class BatchBaseline(AdvantageEstimator):
    """r_i less the mean over all rollouts of the batch and of all ranks, at every action token: REINFORCE with a baseline.

    `whiten` divides by the standard deviation too, as REINFORCE++ does (arXiv 2501.03262).
    """

    needs_critic = False

    def __init__(self, whiten: bool = False) -> None:
        self.whiten = whiten

    def estimate(self, batch: Experience, reduce: Reduce) -> None:
        """See `AdvantageEstimator.estimate`."""
        outcomes_B = batch.rewards_BT.double().sum(dim=1)
        everyone_B = torch.ones_like(outcomes_B, dtype=torch.bool)
        totals = reduce(moments(outcomes_B, everyone_B))
        advantages_B = whiten(outcomes_B, everyone_B, totals) if self.whiten else outcomes_B - totals[1] / totals[0]
        batch.advantages_BT = _everywhere(advantages_B, batch)


def _group_sums(values_B: Tensor, groups_B: Tensor) -> Tensor:
    """The sum of each row's group, at each row."""
    return values_B.new_zeros(int(groups_B.max()) + 1).index_add(0, groups_B, values_B)[groups_B]


def group_means(values_B: Tensor, groups_B: Tensor) -> tuple[Tensor, Tensor]:
    """[B], [B]: how many rows each row's group has, and their mean."""
    counts_B = _group_sums(torch.ones_like(values_B), groups_B)
    return counts_B, _group_sums(values_B, groups_B) / counts_B


def _everywhere(advantages_B: Tensor, batch: Experience) -> Tensor:
    return torch.where(batch.mask_BT, advantages_B[:, None].to(batch.rewards_BT.dtype), 0.0)
