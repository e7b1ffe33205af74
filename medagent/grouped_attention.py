"""Attention in which query heads that share keys and values read them together.

transformers copies keys and values for each query head wherever there is a mask. With a KV cache, whose rows need one,
that copy is most of a step on a CPU.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

GROUPED = "grouped_sdpa"  # its name, to transformers


def grouped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What `sdpa_attention_forward` computes, in its interface; without a mask per row it is called.

    Query [B, H, Q, D], key and value [B, G, K, D], mask [B or 1, 1, Q, K] boolean; the output is [B, Q, H, D].
    """
    batch, heads, queries, size = query.shape
    groups, keys = key.shape[1], key.shape[2]
    plain = attention_mask is None or attention_mask.ndim != 4 or attention_mask.shape[1] != 1
    if plain or heads == groups or heads % groups or kwargs.get("position_bias") is not None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs
        )
    assert attention_mask is not None
    together = heads // groups
    # A mask for each head of a group: its queries stand one after the other.
    mask = attention_mask[:, :, None].expand(-1, 1, together, queries, keys).reshape(-1, 1, together * queries, keys)
    output = scaled_dot_product_attention(
        query.reshape(batch, groups, together * queries, size),
        key,
        value,
        attn_mask=mask,
        dropout_p=dropout,
        scale=scaling,
    )
    return output.reshape(batch, heads, queries, -1).transpose(1, 2).contiguous(), None


def use_grouped_attention(model: PreTrainedModel) -> None:
    """Let a model that attends with sdpa do it so; another keeps its own."""
    if model.config._attn_implementation != "sdpa" or not model._can_set_attn_implementation():
        return
    AttentionInterface.register(GROUPED, grouped_attention)
    AttentionMaskInterface.register(GROUPED, sdpa_mask)
    model.set_attn_implementation(GROUPED)
