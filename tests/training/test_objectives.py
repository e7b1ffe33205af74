"""The objective against hand-worked numbers, and the lemmas of arXiv 2511.20718 as gradient identities."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from medagent.training.objectives import (
    clipped_surrogate,
    logit_space_squares,
    ratio_segments,
    token_ratio_metrics,
    value_loss,
)

D = torch.float64
MASK = torch.tensor([[0, 1, 1, 0, 1, 1, 1, 0]], dtype=torch.bool)
TURNS = torch.tensor([[-1, 0, 0, -1, 1, 1, 1, -1]])


def surrogate(logprobs, old, advantages, *, level="token", mask=MASK, turns=TURNS, weights=None, **kwargs):
    if weights is None:
        weights = mask.to(D) / mask.sum(dim=1, keepdim=True) / mask.shape[0]
    settings = {"clip_low": 0.2, "clip_high": 0.2, **kwargs}
    return clipped_surrogate(
        logprobs,
        old_logprobs_BT=old,
        advantages_BT=advantages,
        mask_BT=mask,
        segments_BT=ratio_segments(level, mask, turns),
        loss_weights_BT=weights,
        **settings,
    )


def row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=D)


def test_segments() -> None:
    assert ratio_segments("token", MASK, TURNS).tolist() == [[-1, 1, 2, -1, 4, 5, 6, -1]]
    assert ratio_segments("turn", MASK, TURNS).tolist() == [[-1, 0, 0, -1, 1, 1, 1, -1]]
    assert ratio_segments("sequence", MASK, TURNS).tolist() == [[-1, 0, 0, -1, 0, 0, 0, -1]]


def test_what_each_token_s_own_ratio_says_by_hand() -> None:
    """Ratios 1.5, 0.5, 1.1, 0.7 and 1.3 with A = 1, -1, 1, 1 and -1: token weights at 0.2 clip the first two."""
    ratios = row(9.0, 1.5, 0.5, 9.0, 1.1, 0.7, 1.3, 9.0)
    found = token_ratio_metrics(
        ratios.log() - 1,
        old_logprobs_BT=torch.full((1, 8), -1.0, dtype=D),
        advantages_BT=row(1.0, 1.0, -1.0, 1.0, 1.0, 1.0, -1.0, 1.0),
        mask_BT=MASK,
    )
    assert found["token_clip_fraction"].item() == 2
    expected = sum(ratio - 1 - math.log(ratio) for ratio in (1.5, 0.5, 1.1, 0.7, 1.3))
    assert found["approx_kl"].item() == pytest.approx(expected)


def test_extreme_ratios_stay_finite_and_have_no_gradient() -> None:
    mask = torch.tensor([[False, True]])
    turns = torch.tensor([[-1, 0]])
    logprobs = row(0.0, 50.0).requires_grad_()
    result = surrogate(logprobs, row(0.0, -50.0), row(0, -1), mask=mask, turns=turns)
    result.objective.backward()
    assert result.objective.isfinite()
    assert logprobs.grad is not None
    assert logprobs.grad.abs().sum() == 0


def test_logit_space_norm_is_the_norm_of_the_gradient_by_the_logits() -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 6, 11, dtype=D, requires_grad=True)
    chosen = torch.randint(11, (2, 6))
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[:, 0] = False
    scores = logits.log_softmax(-1)
    logprobs = scores.gather(-1, chosen[..., None])[..., 0]
    old = logprobs.detach() + torch.randn(2, 6, dtype=D)
    turns = torch.where(mask, (torch.arange(6) // 3).expand(2, -1), -1)
    result = surrogate(logprobs, old, torch.randn(2, 6, dtype=D), level="turn", mask=mask, turns=turns)
    (exact,) = torch.autograd.grad(result.clipped, logits, retain_graph=True)
    (coefficients,) = torch.autograd.grad(result.clipped, logprobs, retain_graph=True)
    collision = scores.exp().square().sum(-1)
    square = logit_space_squares(coefficients, logprobs.exp(), collision).sum()
    assert square.sqrt().item() == pytest.approx(exact.norm().item(), rel=1e-10)


def test_value_loss_by_hand() -> None:
    weights = row(0.5, 0.5, 0.0)
    loss = value_loss(
        row(1.0, 0.0, 7.0), old_values_BT=row(0.0, 0.0, 0.0), returns_BT=row(0.0, 2.0, 0.0), loss_weights_BT=weights
    )
    assert loss.item() == pytest.approx(0.5 * (0.5 * 1 + 0.5 * 4))
    clipped = value_loss(
        row(1.0, 0.0, 7.0),
        old_values_BT=row(0.0, 0.0, 0.0),
        returns_BT=row(2.0, 2.0, 0.0),
        loss_weights_BT=weights,
        clip=0.5,
    )
    assert clipped.item() == pytest.approx(0.5 * (0.5 * max(1.0, 1.5**2) + 0.5 * 4))
