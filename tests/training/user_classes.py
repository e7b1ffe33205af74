"""Classes as a user might write them, named in the tests' YAML files."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from medagent.retrieval.passages import Hit
from medagent.training.advantages import AdvantageEstimator
from medagent.training.experience import Experience
from medagent.training.objectives import PolicyLoss, PolicyLossResult
from medagent.types import Rollout


class PlainReinforce(PolicyLoss):
    """J = the sum of weight * log pi * A times `scale`: no importance weight, so nothing to clip."""

    clips = False

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def __call__(self, policy_logprobs_BT: Tensor, batch: Experience) -> PolicyLossResult:
        terms_BT = batch.loss_weights_BT * policy_logprobs_BT * batch.advantages_BT
        return PolicyLossResult(
            objective=self.scale * terms_BT.sum(),
            ratios_BT=batch.mask_BT.float(),
            outside_BT=torch.zeros_like(batch.mask_BT),
            clipped=None,
            metrics={"negative": (batch.mask_BT & (batch.advantages_BT < 0)).sum()},
        )


class SaysClipsAndDoesNot(PlainReinforce):
    """A mistake that the correction must name."""

    clips = True


class EvenTokens:
    """The share of even tokens among those sampled, for policies that never answer."""

    def __call__(self, rollout: Rollout) -> Rollout:
        sampled = [token for token, acts in zip(rollout.token_ids, rollout.loss_mask, strict=True) if acts]
        return rollout.graded(sum(token % 2 == 0 for token in sampled) / max(1, len(sampled)), success=False)


class Unannotated:
    """Fits Reward by names alone."""

    def __call__(self, rollout):
        return rollout.graded(1.0, success=True)


class OtherName:
    """Its parameter has another name than the protocol's."""

    def __call__(self, episode: Rollout) -> Rollout:
        return episode


class WithoutCall:
    """A reward that lacks the method."""

    def grade(self, rollout: Rollout) -> Rollout:
        return rollout


class Swapped:
    """A retriever whose `top_k` is fixed."""

    def search(self, queries: Sequence[str]) -> list[list[Hit]]:
        return [[] for _ in queries]


class NotDerived:
    """An estimator that is no subclass."""

    needs_critic = False

    def estimate(self, rollouts, values_BT, reduce):
        return rollouts.rewards_BT, values_BT


class OtherParameters(AdvantageEstimator):
    """An estimator whose method lacks parameters that the trainer gives."""

    needs_critic = False

    def estimate(self, rollouts):
        return rollouts.rewards_BT, rollouts.rewards_BT


class Unfinished(PolicyLoss):
    """A subclass without its method."""

    clips = False
