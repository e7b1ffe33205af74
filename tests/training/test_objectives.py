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
    reference_kl,
    segment_mean,
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


def test_segment_mean_by_hand_and_rows_apart() -> None:
    values = torch.tensor([[9.0, 1.0, 3.0, 9.0, 2.0, 4.0, 6.0, 9.0], [9.0, 5.0, 7.0, 9.0, 0.0, 0.0, 3.0, 9.0]])
    segments = ratio_segments("turn", MASK.expand(2, -1), TURNS.expand(2, -1))
    assert segment_mean(values, segments).tolist() == [[0, 2, 2, 0, 4, 4, 4, 0], [0, 6, 6, 0, 1, 1, 1, 0]]


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


def test_value_and_gradient_by_hand_token_level() -> None:
    """Ratios 1.5 and 0.5 with both signs: one side of each is clipped, the other keeps its gradient."""
    mask = torch.tensor([[False, True, True, True, True]])
    turns = torch.tensor([[-1, 0, 0, 0, 0]])
    old = torch.full((1, 5), -1.0, dtype=D)
    ratios = row(1.0, 1.5, 1.5, 0.5, 0.5)
    logprobs = (old + ratios.log()).requires_grad_()
    advantages = row(0.0, 2.0, -2.0, 2.0, -2.0)
    result = surrogate(logprobs, old, advantages, mask=mask, turns=turns)
    # min(1.5*2, 1.2*2) = 2.4 ; min(-3, -2.4) = -3 ; min(1, 1.6) = 1 ; min(-1, -1.6) = -1.6
    assert result.objective.item() == pytest.approx((2.4 - 3 + 1 - 1.6) / 4)
    result.objective.backward()
    assert logprobs.grad is not None
    # d(wA)/dlogp = wA where not clipped: positive advantage pushes up, negative pushes down.
    assert logprobs.grad[0].tolist() == pytest.approx([0, 0, -3 / 4, 1 / 4, 0])
    assert result.outside_BT.sum().item() == 2
    assert result.metrics["ratio_outside"].item() == 4
    assert result.ratios_BT.max().item() == pytest.approx(1.5)
    assert result.clipped.item() == pytest.approx((3 - 1) / 4)


def test_a_step_up_the_objective_makes_good_tokens_likelier() -> None:
    old = torch.full((1, 8), -1.0, dtype=D)
    logprobs = old.clone().requires_grad_()
    advantages = row(0, 1, -1, 0, 1, -1, 1, 0)
    surrogate(logprobs, old, advantages).objective.backward()
    assert logprobs.grad is not None
    assert torch.equal(logprobs.grad.sign(), advantages.sign() * MASK)


def test_turn_weight_is_the_geometric_mean() -> None:
    old = torch.zeros(1, 8, dtype=D)
    logprobs = row(5, 0.1, 0.3, 5, -0.1, 0.0, 0.4, 5)
    result = surrogate(logprobs, old, torch.ones(1, 8, dtype=D), level="turn", clip_high=9.0)
    w = [math.exp(0.2), math.exp(0.1)]
    assert result.objective.item() == pytest.approx((2 * w[0] + 3 * w[1]) / 5)


def test_one_token_turns_are_token_level_and_one_turn_is_sequence_level() -> None:
    torch.manual_seed(0)
    mask = torch.rand(3, 12) < 0.6
    mask[:, 0] = False
    each = torch.where(mask, mask.cumsum(1) - 1, -1)
    whole = torch.where(mask, 0, -1)
    logprobs, old, advantages = (torch.randn(3, 12, dtype=D) * 0.5 for _ in range(3))
    for turns, level in ((each, "token"), (whole, "sequence")):
        a = surrogate(logprobs, old, advantages, level="turn", mask=mask, turns=turns)
        b = surrogate(logprobs, old, advantages, level=level, mask=mask, turns=turns)
        assert a.objective.item() == pytest.approx(b.objective.item(), abs=1e-12)
        assert a.clipped.item() == pytest.approx(b.clipped.item(), abs=1e-12)


def test_asymmetric_range_and_dual_clip() -> None:
    mask = torch.tensor([[False, True, True]])
    turns = torch.tensor([[-1, 0, 0]])
    old = torch.zeros(1, 3, dtype=D)
    logprobs = row(0.0, math.log(1.25), math.log(5.0)).requires_grad_()
    result = surrogate(logprobs, old, row(0, 1, -1), mask=mask, turns=turns, clip_high=0.3, dual_clip=3.0)
    assert result.objective.item() == pytest.approx((1.25 - 3.0) / 2)
    result.objective.backward()
    assert logprobs.grad is not None
    assert logprobs.grad[0].tolist() == pytest.approx([0, 1.25 / 2, 0])
    assert result.outside_BT.sum().item() == 1
    assert result.clipped.item() == pytest.approx(-5 / 2)


def test_extreme_ratios_stay_finite_and_have_no_gradient() -> None:
    mask = torch.tensor([[False, True]])
    turns = torch.tensor([[-1, 0]])
    logprobs = row(0.0, 50.0).requires_grad_()
    result = surrogate(logprobs, row(0.0, -50.0), row(0, -1), mask=mask, turns=turns)
    result.objective.backward()
    assert result.objective.isfinite()
    assert logprobs.grad is not None
    assert logprobs.grad.abs().sum() == 0


def policy_problem(seed: int, level: str):
    """A toy policy with shared parameters: logits of 7 actions from random features, 3 ragged rollouts."""
    generator = torch.Generator().manual_seed(seed)
    batch, width, actions = 3, 14, 7
    features = torch.randn(batch, width, 5, generator=generator, dtype=D)
    theta = (torch.randn(5, actions, generator=generator, dtype=D) * 0.4).requires_grad_()
    chosen = torch.randint(actions, (batch, width), generator=generator)
    mask = torch.rand(batch, width, generator=generator) < 0.7
    mask[:, 0] = False
    mask[0, 5] = mask[1, 5:] = False
    turns = torch.where(mask, (torch.arange(width) // 4).expand(batch, -1), -1)
    scores = torch.log_softmax(features @ theta, -1)
    logprobs = scores.gather(-1, chosen[..., None])[..., 0]
    old = logprobs.detach() + 0.6 * torch.randn(batch, width, generator=generator, dtype=D)
    advantages = torch.randn(batch, width, generator=generator, dtype=D)
    return theta, scores, logprobs, old, advantages, mask, turns


@pytest.mark.parametrize("seed", range(5))
def test_lemma_4_1_turn_level_gradient_without_clipping(seed: int) -> None:
    theta, _, logprobs, old, advantages, mask, turns = policy_problem(seed, "turn")
    result = surrogate(logprobs, old, advantages, level="turn", mask=mask, turns=turns, clip_low=0.999, clip_high=1e9)
    (gradient,) = torch.autograd.grad(result.objective, theta, retain_graph=True)
    expected = torch.zeros_like(theta)
    for b in range(3):
        length = int(mask[b].sum())
        for k in turns[b][mask[b]].unique().tolist():
            tokens = [t for t in range(mask.shape[1]) if mask[b, t] and turns[b, t] == k]
            w = math.exp(sum(float((logprobs[b, t] - old[b, t]).detach()) for t in tokens) / len(tokens))
            push = sum(float(advantages[b, t]) for t in tokens)
            score = sum(torch.autograd.grad(logprobs[b, t], theta, retain_graph=True)[0] for t in tokens)
            expected += w * push / len(tokens) * score / length / 3
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("level", ["token", "turn", "sequence"])
@pytest.mark.parametrize("seed", range(5))
def test_lemma_4_2_clipped_gradient_is_the_unclipped_one_less_the_bias(seed: int, level: str) -> None:
    theta, _, logprobs, old, advantages, mask, turns = policy_problem(seed, level)
    clipped = surrogate(logprobs, old, advantages, level=level, mask=mask, turns=turns)
    # All tokens kept: sum of w A without any clipping.
    gaps = torch.where(mask, logprobs - old, 0.0)
    weight = segment_mean(gaps, ratio_segments(level, mask, turns)).exp()
    share = mask.to(D) / mask.sum(1, keepdim=True) / 3
    (whole,) = torch.autograd.grad((share * weight * advantages).sum(), theta, retain_graph=True)
    (kept,) = torch.autograd.grad(clipped.objective, theta, retain_graph=True)
    (bias,) = torch.autograd.grad(clipped.clipped, theta, retain_graph=True)
    if level != "sequence":
        assert bias.abs().max() > 0, "the case must clip something"
    torch.testing.assert_close(kept, whole - bias, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("level", ["token", "turn"])
def test_the_bias_equals_its_formula_with_mixed_signs_inside_a_turn(level: str) -> None:
    theta, _, logprobs, old, advantages, mask, turns = policy_problem(3, level)
    result = surrogate(logprobs, old, advantages, level=level, mask=mask, turns=turns)
    (bias,) = torch.autograd.grad(result.clipped, theta, retain_graph=True)
    expected = torch.zeros_like(theta)
    mixed = 0
    for b in range(3):
        length = int(mask[b].sum())
        groups = {}
        for t in range(mask.shape[1]):
            if mask[b, t]:
                groups.setdefault(t if level == "token" else int(turns[b, t]), []).append(t)
        for tokens in groups.values():
            w = math.exp(sum(float((logprobs[b, t] - old[b, t]).detach()) for t in tokens) / len(tokens))
            outside = [t for t in tokens if (advantages[b, t] > 0 and w > 1.2) or (advantages[b, t] < 0 and w < 0.8)]
            mixed += 0 < len(outside) < len(tokens)
            push = sum(float(advantages[b, t]) for t in outside)
            score = sum(torch.autograd.grad(logprobs[b, t], theta, retain_graph=True)[0] for t in tokens)
            expected += w * push / len(tokens) * score / length / 3
    assert level == "token" or mixed > 0
    torch.testing.assert_close(bias, expected, rtol=1e-10, atol=1e-12)


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


def test_environment_tokens_have_exactly_no_gradient() -> None:
    for level in ("token", "turn", "sequence"):
        _, _, logprobs, old, advantages, mask, turns = policy_problem(1, level)
        leaf = logprobs.detach().requires_grad_()
        result = surrogate(leaf, old, advantages, level=level, mask=mask, turns=turns)
        (result.objective + result.clipped + reference_kl(leaf, old, mask).sum()).backward()
        assert leaf.grad is not None
        assert leaf.grad[~mask].abs().max() == 0
        assert leaf.grad[mask].abs().max() > 0


def test_reference_kl_by_hand() -> None:
    mask = torch.tensor([[True, True, False]])
    kl = reference_kl(row(-1.0, -2.0, 0.0), row(-1.0, -1.5, 9.0), mask)
    assert kl[0].tolist() == pytest.approx([0.0, math.exp(0.5) - 0.5 - 1, 0.0])


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
