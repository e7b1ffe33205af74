"""Grouped heads give what transformers' own attention gives, forward and backward."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from medagent.models import grouped_attention as grouped
from medagent.models.grouped_attention import GROUPED, grouped_attention, use_grouped_attention
from tests.medagent.policies.support import tiny_model

ROWS, KEYS, SIZE = 3, 7, 8


def inputs(heads: int, groups: int, queries: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(heads + queries)
    shapes = [(ROWS, heads, queries, SIZE), (ROWS, groups, KEYS, SIZE), (ROWS, groups, KEYS, SIZE)]
    return [torch.randn(shape, generator=draw).requires_grad_() for shape in shapes]


def mask_of(queries: int, rows: int) -> torch.Tensor:
    lengths = torch.tensor([KEYS, 4, 5])[:rows]
    seen = torch.arange(KEYS) < lengths[:, None, None, None]
    return (seen & (torch.arange(KEYS) <= torch.arange(queries)[:, None] + KEYS - queries)).clone() | (
        torch.arange(KEYS) == 0
    )


@pytest.mark.parametrize("rows", [ROWS, 1])
@pytest.mark.parametrize("queries", [1, 4])
@pytest.mark.parametrize(("heads", "groups"), [(6, 2), (4, 1), (4, 4)])
@pytest.mark.parametrize("scaling", [None, 0.7])
def test_it_gives_the_numbers_of_transformers(heads, groups, queries, rows, scaling) -> None:
    module = SimpleNamespace(num_key_value_groups=heads // groups, is_causal=True)
    found = []
    for attention in (sdpa_attention_forward, grouped_attention):
        query, key, value = tensors = inputs(heads, groups, queries)
        output, weights = attention(module, query, key, value, mask_of(queries, rows), scaling=scaling)
        assert weights is None
        assert output.shape == (ROWS, queries, heads, SIZE)
        (output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum().backward()
        found.append([output, *(tensor.grad for tensor in tensors)])
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mask", ["none", "a mask per head"])
def test_without_a_mask_for_all_heads_transformers_attends(mask, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(grouped, "sdpa_attention_forward", lambda *given, **settings: asked.append(given[4]))
    query, key, value = inputs(6, 2, 4)
    given = None if mask == "none" else mask_of(4, ROWS).expand(-1, 6, -1, -1)
    grouped_attention(SimpleNamespace(), query, key, value, given)
    assert len(asked) == 1
    assert asked[0] is given


def test_a_model_with_sdpa_is_switched_and_reads_the_same() -> None:
    model = tiny_model("llama", 60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    ids = torch.arange(20).view(2, 10)
    with torch.no_grad():
        wanted = model(input_ids=ids).logits
        use_grouped_attention(model)
        assert model.config._attn_implementation == GROUPED
        torch.testing.assert_close(model(input_ids=ids).logits, wanted, rtol=1e-5, atol=1e-5)


def test_an_attention_that_was_chosen_stays() -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = tiny_model("llama", 60, attention="eager", **sizes)
    use_grouped_attention(model)
    assert model.config._attn_implementation == "eager"
