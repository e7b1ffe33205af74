"""Sampling in blocks picks the tokens that one long cumulative sum picks."""

from __future__ import annotations

import pytest
import torch

from medagent.policies.inversion import BLOCK, sample_tokens

ALMOST_ONE = 1 - 2.0**-53  # the largest number that a generator draws


def drawn(rows: int, number: int, *, seed: int = 0) -> torch.Tensor:
    return torch.rand(rows, number, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("vocabulary", [3, BLOCK, BLOCK + 1, 5 * BLOCK - 7])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_it_is_the_inverse_of_the_cumulative_distribution(vocabulary: int, temperature: float) -> None:
    logits = 3 * torch.randn(6, vocabulary, generator=torch.Generator().manual_seed(1))
    logprobs = torch.log_softmax(logits.double() / temperature, dim=-1)
    draws = drawn(6, 50)
    wanted = torch.searchsorted(logprobs.exp().cumsum(-1), draws, right=True).clamp(max=vocabulary - 1)
    tokens, found = sample_tokens(logits.clone(), torch.full((6,), temperature), draws)
    assert torch.equal(tokens, wanted)
    assert torch.allclose(found.double(), logprobs.gather(1, wanted), atol=1e-5)
    assert len(tokens.unique()) > 1


def test_rows_keep_their_own_temperatures_and_greedy_ones_take_the_likeliest() -> None:
    logits = torch.randn(3, 700, generator=torch.Generator().manual_seed(2))
    temperatures, draws = torch.tensor([0.0, 1.0, 2.0]), drawn(3, 9)
    tokens, found = sample_tokens(logits.clone(), temperatures, draws)
    assert (tokens[0] == logits[0].argmax()).all()
    assert torch.allclose(found[0], torch.log_softmax(logits[0], -1).max().expand(9), atol=1e-5)
    for row in (1, 2):
        alone, _ = sample_tokens(logits[row : row + 1].clone(), temperatures[row : row + 1], draws[row : row + 1])
        assert torch.equal(tokens[row], alone[0])


@pytest.mark.parametrize("draw", [0.0, 0.5, ALMOST_ONE])
def test_what_has_no_probability_is_never_sampled(draw: float) -> None:
    rows = 200  # whose sums round in different ways
    logits = torch.full((rows, 3 * BLOCK), -torch.inf)
    allowed = [BLOCK + 3, BLOCK + 7, 2 * BLOCK - 40]  # blocks of zeros before and behind, and zeros beside them
    logits[:, allowed] = torch.randn(rows, 3, generator=torch.Generator().manual_seed(4)) * torch.tensor([1.0, 20, 1])
    tokens, found = sample_tokens(logits, torch.ones(rows), torch.full((rows, 1), draw, dtype=torch.float64))
    assert torch.isin(tokens, torch.tensor(allowed)).all()
    assert torch.isfinite(found).all()


@pytest.mark.parametrize("damage", [torch.nan, torch.inf])
def test_a_row_without_a_distribution_has_no_finite_log_prob(damage: float) -> None:
    logits = torch.zeros(3, 300)
    logits[0, 5] = damage
    logits[1] = -torch.inf
    _, found = sample_tokens(logits, torch.ones(3), drawn(3, 2))
    assert not torch.isfinite(found[:2]).any()
    assert torch.isfinite(found[2]).all()
