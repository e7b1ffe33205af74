"""Policy and value objectives as pure functions, and the policy losses that a YAML names.

Tokens of one segment share one importance weight, the geometric mean of their ratios: a token (PPO), a turn (Turn-PPO,
arXiv 2511.20718) or a rollout (GSPO, arXiv 2507.18071), as `ratio_segments_BT` says.

Shapes: B rollouts, T tokens. `loss_weights_BT` is each action token's share of the optimizer step, 0 elsewhere.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from medagent.errors import require
from medagent.training.experience import Experience
from medagent.training.forward import TokenScores

RatioLevel = Literal["token", "turn", "sequence"]
ROUNDING = 16  # units of the base's precision by which log-probs of two reads of one text differ on average
MAX_LOG_RATIO = 20.0
COMMON_CLIP = 0.2  # at which `policy/token_clip_fraction` compares weight levels and clip ranges


@dataclass(frozen=True)
class PolicyLossResult:
    """The policy loss of a micro-batch; scalars are sums with `loss_weights_BT`, so micro-batches add up."""

    objective: Tensor
    """[] J, to maximise, with the policy's gradient."""
    ratios_BT: Tensor
    """[B, T] the importance weight of each action token, without a gradient; not read off the mask."""
    outside_BT: Tensor
    """[B, T] True at action tokens whose gradient the loss drops: those outside the trust set."""
    clipped: Tensor | None
    """[] a scalar whose gradient is the clipping bias C, the dropped terms; none for a loss that clips nothing."""
    metrics: dict[str, Tensor]
    """Sums over action tokens of the loss's own; the trainer logs each per action token as `policy/NAME`."""


@dataclass(frozen=True)
class PolicyTerms:
    """A micro-batch's policy loss and what it was taken at, for callbacks that record it or differentiate it again."""

    result: PolicyLossResult
    logprobs_BT: Tensor
    """[B, T] the policy's log-probs, with gradient."""
    collision_BT: Tensor
    """[B, T] the sum of the squared probabilities of all tokens at each action token."""
    entropy_BT: Tensor
    """[B, T] the policy's entropy in nats."""
    batch: Experience
    """The rows that were read."""


class PolicyLoss(ABC):
    """The objective that the policy maximises: `model.policy_loss` names a subclass.

    `clips`: whether it drops terms. One that does returns their sum as `PolicyLossResult.clipped`.
    """

    clips: ClassVar[bool]

    @abstractmethod
    def __call__(self, policy_logprobs_BT: Tensor, batch: Experience) -> PolicyLossResult:
        """The objective at the present log-probs, [B, T] with gradient; everything in `batch` is a constant."""


def ratio_segments(level: RatioLevel, mask_BT: Tensor, turn_ids_BT: Tensor) -> Tensor:
    """[B, T] segment ids for a weight level, -1 off the mask; rows never share a segment in `segment_mean`.

    Example: mask [0, 1, 1, 0, 1] and turns [-1, 0, 0, -1, 1] give these ids:

    - token [-1, 1, 2, -1, 4]
    - turn [-1, 0, 0, -1, 1]
    - sequence [-1, 0, 0, -1, 0]
    """
    if level == "token":
        segments = torch.arange(mask_BT.shape[1], device=mask_BT.device).expand_as(mask_BT)
    elif level == "turn":
        segments = turn_ids_BT
    else:
        segments = torch.zeros_like(turn_ids_BT)
    return torch.where(mask_BT, segments, -1)


def segment_sum(values_BT: Tensor, segments_BT: Tensor) -> Tensor:
    """The sum over each segment, at each of its tokens; 0 where the segment is -1. Differentiable."""
    batch, width = values_BT.shape
    inside = segments_BT >= 0
    rows = torch.arange(batch, device=values_BT.device)[:, None] * width
    flat = (rows + segments_BT.clamp(min=0))[inside]
    sums = values_BT.new_zeros(batch * width).index_add(0, flat, values_BT[inside])
    return torch.zeros_like(values_BT).masked_scatter(inside, sums[flat])


def segment_mean(values_BT: Tensor, segments_BT: Tensor) -> Tensor:
    """The mean of each segment, at each of its tokens; 0 where the segment is -1. Differentiable."""
    counts_BT = segment_sum(torch.ones_like(values_BT), segments_BT).clamp(min=1)
    return segment_sum(values_BT, segments_BT) / counts_BT


def clipped_surrogate(
    policy_logprobs_BT: Tensor,
    *,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    segments_BT: Tensor,
    loss_weights_BT: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    truncation_BT: Tensor | None = None,
) -> PolicyLossResult:
    """J = sum of loss_weight * min(w A, clip(w, 1 - clip_low, 1 + clip_high) A), with w per segment.

    `truncation_BT`, where given, is a constant factor of every term (truncated importance sampling). With `dual_clip`
    c > 1, terms of negative advantage are bounded below by c A (arXiv 1912.09729, eq. 5).
    """
    gap_BT = torch.where(mask_BT, policy_logprobs_BT - old_logprobs_BT, 0.0)
    log_weight_BT = segment_mean(gap_BT, segments_BT).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    weight_BT = log_weight_BT.exp()
    if truncation_BT is not None:
        loss_weights_BT = loss_weights_BT * truncation_BT
    unclipped_BT = weight_BT * advantages_BT
    term_BT = torch.minimum(unclipped_BT, weight_BT.clamp(1 - clip_low, 1 + clip_high) * advantages_BT)
    ratio_BT = weight_BT.detach()
    outside_BT = ((advantages_BT > 0) & (ratio_BT > 1 + clip_high)) | ((advantages_BT < 0) & (ratio_BT < 1 - clip_low))
    if dual_clip is not None:
        floored_BT = (advantages_BT < 0) & (ratio_BT > dual_clip)
        term_BT = torch.where(floored_BT, dual_clip * advantages_BT, term_BT)
        outside_BT = outside_BT | floored_BT
    outside_BT = outside_BT & mask_BT
    away_BT = mask_BT & ((ratio_BT > 1 + clip_high) | (ratio_BT < 1 - clip_low))
    return PolicyLossResult(
        objective=(loss_weights_BT * term_BT).sum(),
        ratios_BT=ratio_BT,
        outside_BT=outside_BT,
        clipped=(loss_weights_BT * torch.where(outside_BT, unclipped_BT, 0.0)).sum(),
        metrics={"ratio_outside": away_BT.sum()},
    )


class ClippedSurrogate(PolicyLoss):
    """PPO's clipped surrogate (arXiv 1707.06347, eq. 7), at the level that `ratio_segments_BT` says.

    A ratio r counts between 1 - `clip_low` and 1 + `clip_high`. With `dual_clip` c, a term of negative advantage A is
    at least c A (arXiv 1912.09729, eq. 5).

    Raises:
        ConfigError: wanted are 0 < `clip_low` < 1, 0 < `clip_high`, and `dual_clip` none or above 1 + `clip_high`.
    """

    clips = True

    def __init__(self, clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float | None = None) -> None:
        for name, value, holds, wanted in (
            ("clip_low", clip_low, 0 < clip_low < 1, "a number between 0 and 1"),
            ("clip_high", clip_high, clip_high > 0, "a positive number"),
            ("dual_clip", dual_clip, dual_clip is None or dual_clip > 1 + clip_high, "none, or above 1 + clip_high"),
        ):
            require(holds, f"ClippedSurrogate.{name}", value, wanted)
        self.clip_low, self.clip_high, self.dual_clip = clip_low, clip_high, dual_clip

    def __call__(self, policy_logprobs_BT: Tensor, batch: Experience) -> PolicyLossResult:
        return clipped_surrogate(
            policy_logprobs_BT,
            old_logprobs_BT=batch.old_logprobs_BT,
            advantages_BT=batch.advantages_BT,
            mask_BT=batch.mask_BT,
            segments_BT=batch.ratio_segments_BT,
            loss_weights_BT=batch.loss_weights_BT,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            dual_clip=self.dual_clip,
            truncation_BT=batch.truncation_BT,
        )


@torch.no_grad()
def token_ratio_metrics(
    policy_logprobs_BT: Tensor, *, old_logprobs_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor
) -> dict[str, Tensor]:
    """Sums over action tokens of the k3 estimate of KL(old || policy), and of tokens that PPO would clip at 0.2."""
    gap_BT = torch.where(mask_BT, policy_logprobs_BT - old_logprobs_BT, 0.0)
    bounded_BT = gap_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio_BT = bounded_BT.exp()
    above_BT = (advantages_BT > 0) & (ratio_BT > 1 + COMMON_CLIP)
    below_BT = (advantages_BT < 0) & (ratio_BT < 1 - COMMON_CLIP)
    return {
        "approx_kl": torch.where(mask_BT, torch.expm1(bounded_BT) - gap_BT, 0.0).sum(),
        "token_clip_fraction": ((above_BT | below_BT) & mask_BT).sum(),
    }


@torch.no_grad()
def policy_metrics(result: PolicyLossResult, scores: TokenScores, batch: Experience) -> dict[str, Tensor]:
    """Sums of a pass that the trainer logs: the loss as it is, everything else per action token."""
    ratio_metrics = token_ratio_metrics(
        scores.logprobs_BT,
        old_logprobs_BT=batch.old_logprobs_BT,
        advantages_BT=batch.advantages_BT,
        mask_BT=batch.mask_BT,
    )
    return {
        "policy/loss": -result.objective,
        "tokens": batch.mask_BT.sum(),
        "policy/clip_fraction": result.outside_BT.sum(),
        **{f"policy/{name}": value for name, value in {**result.metrics, **ratio_metrics}.items()},
        "policy/entropy": scores.entropy_BT.sum(),
    }


def reference_kl(policy_logprobs_BT: Tensor, reference_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """[B, T] the k3 estimator of KL(policy || reference), exp(d) - d - 1 with d = reference - policy."""
    gap_BT = torch.where(mask_BT, reference_logprobs_BT - policy_logprobs_BT, 0.0).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.expm1(gap_BT) - gap_BT


@torch.no_grad()
def teaches(scores: TokenScores, batch: Experience, *, kl_coef: float, entropy_coef: float, eps: float) -> bool:
    """Whether a part of a step has an advantage, an entropy bonus, or a KL above the rounding of a base of `eps`."""
    if entropy_coef or bool(batch.advantages_BT.any()):
        return True
    gap_BT = torch.where(batch.mask_BT, scores.logprobs_BT - batch.reference_logprobs_BT, 0.0)
    return bool(kl_coef) and float(gap_BT.abs().sum()) > ROUNDING * eps * int(batch.mask_BT.sum())


def value_loss(
    values_BT: Tensor, *, old_values_BT: Tensor, returns_BT: Tensor, loss_weights_BT: Tensor, clip: float | None = None
) -> Tensor:
    """Half the weighted squared error of the critic; with `clip` the larger of it and the clipped move's."""
    error_BT = (values_BT - returns_BT).square()
    if clip is not None:
        moved_BT = old_values_BT + (values_BT - old_values_BT).clamp(-clip, clip)
        error_BT = torch.maximum(error_BT, (moved_BT - returns_BT).square())
    return 0.5 * (loss_weights_BT * error_BT).sum()


def logit_space_squares(coefficients_BT: Tensor, probability_BT: Tensor, collision_BT: Tensor) -> Tensor:
    """[B] sum over t of c^2 (1 - 2 p_t + sum_v p_v^2): squared norms over logits of scalars with d/d log pi_t = c_t.

    `probability_BT` is p_t, `collision_BT` sum_v p_v^2. Squares of rollouts, micro-batches and ranks add up.
    """
    # The squared length of the token's one-hot less pi, which rounding can make negative.
    length_BT = (1 - 2 * probability_BT + collision_BT).clamp(min=0)
    return (coefficients_BT.square() * length_BT).sum(dim=1)
