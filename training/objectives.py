"""Pure functions of the policy and value objectives; none knows which algorithm runs.

An algorithm shows only in `ratio_segments_BT`: tokens that share a segment share one importance weight, the geometric
mean of their ratios (a segment per token: PPO; per turn: Turn-PPO; per rollout: GSPO). Source: arXiv 2511.20718; GSPO
arXiv 2507.18071. Shapes: B rollouts, T tokens. `loss_weights_BT` is each action token's share of the optimizer step,
0 elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

RatioLevel = Literal["token", "turn", "sequence"]
MAX_LOG_RATIO = 20.0
COMMON_CLIP = 0.2  # at which `token_clip_fraction` compares weight levels and clip ranges


@dataclass(frozen=True)
class Surrogate:
    """The clipped surrogate of a micro-batch.

    `objective`: J, to maximise. `clipped`: a scalar whose gradient is the clipping bias C: the terms that clipping
    dropped. Both are sums with `loss_weights_BT`, so micro-batches add up. `metrics` are sums over action tokens or
    maxima.
    """

    objective: Tensor
    clipped: Tensor
    metrics: dict[str, Tensor]


def ratio_segments(level: RatioLevel, mask_BT: Tensor, turn_ids_BT: Tensor) -> Tensor:
    """[B, T] segment ids for a weight level, -1 off the mask; rows never share a segment in `segment_mean`.

    Example: mask [0, 1, 1, 0, 1], turns [-1, 0, 0, -1, 1]: token [-1, 1, 2, -1, 4], turn [-1, 0, 0, -1, 1],
    sequence [-1, 0, 0, -1, 0].
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
) -> Surrogate:
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
    with torch.no_grad():
        gap = gap_BT.detach()
        own_BT = gap.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()  # each token's ratio, whatever the level
        too_far_BT = ((advantages_BT > 0) & (own_BT > 1 + COMMON_CLIP)) | (
            (advantages_BT < 0) & (own_BT < 1 - COMMON_CLIP)
        )
        metrics = {
            "tokens": mask_BT.sum(),
            "clip_fraction": outside_BT.sum(),
            "ratio_outside": away_BT.sum(),
            "token_clip_fraction": (too_far_BT & mask_BT).sum(),
            "approx_kl": torch.where(mask_BT, torch.expm1(gap.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)) - gap, 0.0).sum(),
            "ratio_max": torch.where(mask_BT, ratio_BT, 0.0).max(),
        }
    return Surrogate(
        objective=(loss_weights_BT * term_BT).sum(),
        clipped=(loss_weights_BT * torch.where(outside_BT, unclipped_BT, 0.0)).sum(),
        metrics=metrics,
    )


def reference_kl(policy_logprobs_BT: Tensor, reference_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """[B, T] the k3 estimator of KL(policy || reference), exp(d) - d - 1 with d = reference - policy.

    0 off the mask.
    """
    gap_BT = torch.where(mask_BT, reference_logprobs_BT - policy_logprobs_BT, 0.0).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.expm1(gap_BT) - gap_BT


def value_loss(
    values_BT: Tensor,
    *,
    old_values_BT: Tensor,
    returns_BT: Tensor,
    loss_weights_BT: Tensor,
    clip: float | None = None,
) -> Tensor:
    """Half the weighted squared error of the critic; with `clip`, the worse of it and that of the clipped move."""
    error_BT = (values_BT - returns_BT).square()
    if clip is not None:
        moved_BT = old_values_BT + (values_BT - old_values_BT).clamp(-clip, clip)
        error_BT = torch.maximum(error_BT, (moved_BT - returns_BT).square())
    return 0.5 * (loss_weights_BT * error_BT).sum()


def logit_space_squares(coefficients_BT: Tensor, probability_BT: Tensor, collision_BT: Tensor) -> Tensor:
    """[B] each rollout's squared norm over the logits of a scalar whose derivative by log pi_t is c_t.

    Sum over t of c^2 (1 - 2 p_t + sum_v p_v^2).

    `probability_BT` is p_t of the sampled token, `collision_BT` sum_v p_v^2. Squares of rollouts, micro-batches and
    ranks add up.
    """
    # The squared length of the token's one-hot less pi, which rounding can make negative.
    length_BT = (1 - 2 * probability_BT + collision_BT).clamp(min=0)
    return (coefficients_BT.square() * length_BT).sum(dim=1)
