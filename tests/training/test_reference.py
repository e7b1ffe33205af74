"""Objectives against a reference of plain loops in double precision that shares no code with them.

Values and gradients to 1e-8.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import pytest
import torch

from medagent.training.objectives import clipped_surrogate, ratio_segments, reference_kl, value_loss

LOW, HIGH, DUAL = 0.2, 0.3, 1.6


@dataclass
class Token:
    """An action token of the reference: where it is, its turn, log-probs then and now, its advantage."""

    row: int
    place: int
    turn: int
    now: float
    then: float
    advantage: float
    factor: float


def ragged(seed: int) -> tuple[list[list[Token]], tuple[int, int]]:
    """Rollouts of one to four turns, each of one to five tokens.

    Observations of zero to three tokens stand between and after the turns.
    """
    rng = random.Random(seed)
    rollouts: list[list[Token]] = []
    width = 0
    for row in range(rng.randint(2, 5)):
        place, tokens = rng.randint(1, 3), []
        for turn in range(rng.randint(1, 4)):
            for _ in range(rng.randint(1, 5)):
                then = -rng.random() * 3
                now = then + rng.gauss(0, 0.5)
                tokens.append(Token(row, place, turn, now, then, rng.gauss(0, 1), rng.uniform(0.2, 2)))
                place += 1
            place += rng.randint(0, 3)
        rollouts.append(tokens)
        width = max(width, place)
    return rollouts, (len(rollouts), width)


def members(tokens: list[Token], token: Token, level: str) -> list[Token]:
    """The tokens that share a weight with `token`."""
    if level == "token":
        return [token]
    return tokens if level == "sequence" else [other for other in tokens if other.turn == token.turn]


def reference(rollouts: list[list[Token]], level: str, reduction: str, dual: float | None):
    """(J, dJ by place, C's scalar, dC by place, clipped tokens), by the formulas of the paper, a token at a time."""
    total = sum(len(tokens) for tokens in rollouts)
    value = bias = 0.0
    slope: dict[tuple[int, int], float] = {}
    bias_slope: dict[tuple[int, int], float] = {}
    clipped = 0
    for tokens in rollouts:
        for token in tokens:
            share = 1 / total if reduction == "token-mean" else 1 / (len(tokens) * len(rollouts))
            share *= token.factor
            group = members(tokens, token, level)
            weight = math.exp(sum(t.now - t.then for t in group) / len(group))
            gain = weight * token.advantage
            if token.advantage > 0 and weight > 1 + HIGH:
                value += share * (1 + HIGH) * token.advantage
                outside = True
            elif token.advantage < 0 and weight < 1 - LOW:
                value += share * (1 - LOW) * token.advantage
                outside = True
            elif dual is not None and token.advantage < 0 and weight > dual:
                value += share * dual * token.advantage
                outside = True
            else:
                value += share * gain
                outside = False
            clipped += outside
            bias += share * gain if outside else 0.0
            for other in group:  # the gradient of w_k runs through every token of its segment
                where = (other.row, other.place)
                target = bias_slope if outside else slope
                target[where] = target.get(where, 0.0) + share * gain / len(group)
    return value, slope, bias, bias_slope, clipped


def tensors(rollouts: list[list[Token]], shape: tuple[int, int]) -> dict[str, torch.Tensor]:
    made = {name: torch.zeros(shape, dtype=torch.float64) for name in ("now", "then", "advantage", "factor")}
    made["mask"] = torch.zeros(shape, dtype=torch.bool)
    made["turns"] = torch.full(shape, -1)
    noise = torch.Generator().manual_seed(1)
    for name in ("now", "then", "advantage"):  # whatever stands off the actions must not matter
        made[name] = torch.randn(shape, generator=noise, dtype=torch.float64)
    for token in (token for tokens in rollouts for token in tokens):
        where = (token.row, token.place)
        made["mask"][where], made["turns"][where] = True, token.turn
        for name in ("now", "then", "advantage", "factor"):
            made[name][where] = getattr(token, name)
    return made


def dense(slopes: dict[tuple[int, int], float], shape: tuple[int, int]) -> torch.Tensor:
    made = torch.zeros(shape, dtype=torch.float64)
    for where, slope in slopes.items():
        made[where] = slope
    return made


@pytest.mark.parametrize("dual", [None, DUAL])
@pytest.mark.parametrize("reduction", ["rollout-mean", "token-mean"])
@pytest.mark.parametrize("level", ["token", "turn", "sequence"])
def test_objective_bias_and_gradients_match_the_reference(level, reduction, dual) -> None:
    seen_clipped = seen_unclipped = seen_mixed = 0
    for seed in range(25):
        rollouts, shape = ragged(seed)
        value, slope, bias, bias_slope, clipped = reference(rollouts, level, reduction, dual)
        made = tensors(rollouts, shape)
        now = made["now"].requires_grad_(True)
        total = int(made["mask"].sum())
        if reduction == "rollout-mean":  # exactly: `loss_weights` works in float32
            weights = made["mask"] / made["mask"].sum(1, keepdim=True).double() / len(rollouts)
        else:
            weights = made["mask"] / torch.tensor(float(total), dtype=torch.float64)
        found = clipped_surrogate(
            now,
            old_logprobs_BT=made["then"],
            advantages_BT=made["advantage"],
            mask_BT=made["mask"],
            segments_BT=ratio_segments(level, made["mask"], made["turns"]),
            loss_weights_BT=weights,
            clip_low=LOW,
            clip_high=HIGH,
            dual_clip=dual,
            truncation_BT=made["factor"],
        )
        assert found.objective.item() == pytest.approx(value, abs=1e-8)
        assert found.clipped.item() == pytest.approx(bias, abs=1e-8)
        assert int(found.outside_BT.sum()) == clipped
        (gradient,) = torch.autograd.grad(found.objective, now, retain_graph=True)
        (bias_gradient,) = torch.autograd.grad(found.clipped, now)
        torch.testing.assert_close(gradient, dense(slope, shape), rtol=0, atol=1e-8)
        torch.testing.assert_close(bias_gradient, dense(bias_slope, shape), rtol=0, atol=1e-8)
        seen_clipped += clipped
        seen_unclipped += total - clipped
        seen_mixed += any(
            {t.advantage > 0 for t in members(tokens, token, level)} == {True, False}
            for tokens in rollouts
            for token in tokens
        )
    assert seen_clipped > 50
    assert seen_unclipped > 100
    assert level == "token" or seen_mixed > 10


@pytest.mark.parametrize("seed", range(5))
def test_kl_and_value_loss_match_the_reference(seed: int) -> None:
    rollouts, shape = ragged(seed)
    made = tensors(rollouts, shape)
    now = made["now"].requires_grad_(True)
    found = reference_kl(now, made["then"], made["mask"])
    expected, slopes = torch.zeros(shape, dtype=torch.float64), {}
    for token in (token for tokens in rollouts for token in tokens):
        gap = token.then - token.now
        expected[token.row, token.place] = math.exp(gap) - gap - 1
        slopes[token.row, token.place] = 1 - math.exp(gap)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)
    (gradient,) = torch.autograd.grad(found.sum(), now)
    torch.testing.assert_close(gradient, dense(slopes, shape), rtol=0, atol=1e-8)

    values = made["advantage"].detach().requires_grad_(True)
    weights = made["mask"].double() * 0.1
    loss = value_loss(values, old_values_BT=made["factor"], returns_BT=made["then"], loss_weights_BT=weights, clip=0.15)
    total, slopes = 0.0, {}
    for token in (token for tokens in rollouts for token in tokens):
        value, old, target = token.advantage, token.factor, token.then
        moved = old + max(-0.15, min(0.15, value - old))
        plain, held = (value - target) ** 2, (moved - target) ** 2
        total += 0.05 * max(plain, held)
        slopes[token.row, token.place] = 0.1 * (value - target) if plain >= held or moved == value else 0.0
    assert loss.item() == pytest.approx(total, abs=1e-8)
    (gradient,) = torch.autograd.grad(loss, values)
    torch.testing.assert_close(gradient, dense(slopes, shape), rtol=0, atol=1e-8)
