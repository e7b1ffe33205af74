"""Log-probs of action tokens under policy and reference, and the KL between the two over the whole vocabulary.

Both gradients with respect to the policy's state are made in the forward pass, as in `medagent.training.token_scores`.
So vocabulary scores exist for some rows at a time, and nothing is computed again.

Shapes: R rows, H hidden size, V vocabulary, U distinct states, B rollouts, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from medagent.models.causal_lm import project
from medagent.training.adapters import SharedBase
from medagent.training.execution import Execution
from medagent.training.heads import CPU_ROWS, frozen_head

Scores = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class PairScores:
    """Each [B, T], 0 off the mask."""

    logprobs_BT: Tensor  # under the policy, with gradient
    reference_logprobs_BT: Tensor
    kl_BT: Tensor  # KL(reference || policy) over the vocabulary, with gradient; 0 where it is not read


def pair_scores(
    shared_base: SharedBase,
    execution: Execution,
    token_ids_BT: Tensor,
    attention_BT: Tensor,
    mask_BT: Tensor,
    *,
    temperature: float,
    vocabulary: bool,
) -> PairScores:
    """Scores of the marked tokens at the sampling temperature. `vocabulary`: whether the KL is read."""
    reference_UH = shared_base.reference_states(token_ids_BT, attention_BT, mask_BT).states_UH
    # Last, so that the policy's adapter stays on.
    found = shared_base.policy_states(token_ids_BT, attention_BT, mask_BT)
    head, rows = frozen_head(shared_base.base), execution.logits_rows
    if head is not None:
        rows = min(rows, CPU_ROWS) if found.states_UH.device.type == "cpu" else rows
        apply: Callable[..., Scores] = _AgainstReference.apply
        scores = apply(
            found.states_UH, reference_UH, head.weight, head.bias, found.tokens_U, temperature, rows, vocabulary
        )
        return PairScores(*map(found.placed, scores))

    def score(states_RH: Tensor, reference_RH: Tensor, tokens_R: Tensor) -> Scores:
        ours_RV, theirs_RV = (
            torch.log_softmax(project(shared_base.base, each) / temperature, dim=-1)
            for each in (states_RH, reference_RH)
        )
        kl_R = divergence(theirs_RV.detach(), ours_RV) if vocabulary else ours_RV.new_zeros(len(tokens_R))
        return _at(ours_RV, tokens_R), _at(theirs_RV.detach(), tokens_R), kl_R

    parts = zip(found.states_UH.split(rows), reference_UH.split(rows), found.tokens_U.split(rows), strict=True)
    columns = zip(*(checkpoint(score, *part, use_reentrant=False) for part in parts), strict=True)
    return PairScores(*(found.placed(torch.cat(column)) for column in columns))


def exact_float(scores: Tensor) -> Tensor:
    """Scores in float32, or in float64 where they are."""
    return scores if scores.dtype == torch.float64 else scores.float()


def divergence(of_RV: Tensor, from_RV: Tensor) -> Tensor:
    """[R] KL(of || from) of rows of log-probs, in nats. A token that `of` never samples adds nothing."""
    least = torch.finfo(of_RV.dtype).min  # p log p is 0 at p = 0, where the log-prob may be -inf
    return (of_RV.exp() * (of_RV.clamp_min(least) - from_RV.clamp_min(least))).sum(dim=-1)


def _at(logprobs_RV: Tensor, tokens_R: Tensor) -> Tensor:
    return logprobs_RV.gather(1, tokens_R[:, None])[:, 0]


class _AgainstReference(torch.autograd.Function):
    """(log-probs, reference's log-probs, KL), each [R].

    With z the policy's scores and T the temperature, d log p(token) / dz = (onehot - p) / T, and
    d KL(q || p) / dz = (p - q) / T.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states_RH: Tensor,
        reference_RH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        tokens_R: Tensor,
        temperature: float,
        rows: int,
        vocabulary: bool,
    ) -> Scores:
        needed = ctx.needs_input_grad[0]
        slope_RH = torch.empty_like(states_RH) if needed else None
        kl_slope_RH = torch.empty_like(states_RH) if needed and vocabulary else None
        parts = []
        for start in range(0, max(1, len(states_RH)), rows):  # once where there are none
            part = slice(start, start + rows)
            tokens = tokens_R[part]
            ours, theirs = (
                torch.log_softmax(exact_float(linear(each[part], weight_VH, bias_V)) / temperature, dim=-1)
                for each in (states_RH, reference_RH)
            )
            kl = divergence(theirs, ours) if vocabulary else ours.new_zeros(len(tokens))
            parts.append((_at(ours, tokens), _at(theirs, tokens), kl))
            if slope_RH is not None:
                mean = ours.exp().to(weight_VH.dtype) @ weight_VH
                slope_RH[part] = (weight_VH[tokens] - mean) / temperature
                if kl_slope_RH is not None:
                    kl_slope_RH[part] = (ours.exp() - theirs.exp()).to(weight_VH.dtype) @ weight_VH / temperature
        ctx.save_for_backward(slope_RH, kl_slope_RH)
        chosen_R, reference_R, kl_R = (torch.cat(column) for column in zip(*parts, strict=True))
        ctx.mark_non_differentiable(reference_R)
        return chosen_R, reference_R, kl_R

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient_R: Tensor, reference_R: Tensor, kl_R: Tensor) -> tuple[Tensor | None, ...]:
        slope_RH, kl_slope_RH = ctx.saved_tensors
        gradient_RH = gradient_R[:, None] * slope_RH
        if kl_slope_RH is not None:
            gradient_RH = gradient_RH + kl_R[:, None] * kl_slope_RH
        return (gradient_RH.to(slope_RH.dtype), *(None,) * 7)
