"""Attention in which query heads that share keys and values read them together.

transformers copies keys and values for each query head wherever there is a mask. With a KV cache, whose rows need one,
that copy is most of a step on a CPU.
"""

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
    """The result of `sdpa_attention_forward`, in its interface. Without a mask per row, that is called.

    Query [B, H, Q, D], key and value [B, G, K, D], mask [B or 1, 1, Q, K] boolean; the output is [B, Q, H, D].
    """
    heads, groups = query.shape[1], key.shape[1]
    plain = attention_mask is None or attention_mask.ndim != 4 or attention_mask.shape[1] != 1
    if plain or heads == groups or heads % groups or kwargs.get("position_bias") is not None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs
        )
    assert attention_mask is not None
    mask = mask_of_groups(attention_mask, heads // groups)
    output = attend_in_groups(query, key, value, mask, scaling=scaling, dropout=dropout)
    return output, None


def mask_of_groups(mask: Tensor, together: int) -> Tensor:
    """[B, 1, together Q, K] of a mask [B, 1, Q, K] for all heads: the queries of a group stand one after the other."""
    batch, _, queries, keys = mask.shape
    expanded = mask[:, :, None].expand(batch, 1, together, queries, keys)
    return expanded.reshape(batch, 1, together * queries, keys)


def attend_in_groups(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *, scaling: float | None, dropout: float = 0.0
) -> Tensor:
    """[B, Q, H, D] attention, with a mask of `mask_of_groups`; each group of heads has one head of keys and values."""
    batch, heads, queries, size = query.shape
    groups = key.shape[1]
    output = scaled_dot_product_attention(
        query.reshape(batch, groups, heads // groups * queries, size),
        key,
        value,
        attn_mask=mask,
        dropout_p=dropout,
        scale=scaling,
    )
    return output.reshape(batch, heads, queries, -1).transpose(1, 2).contiguous()


def use_grouped_attention(model: PreTrainedModel) -> None:
    """Let a model that attends with sdpa do it so; another keeps its own."""
    if model.config._attn_implementation != "sdpa" or not model._can_set_attn_implementation():
        return
    AttentionInterface.register(GROUPED, grouped_attention)
    AttentionMaskInterface.register(GROUPED, sdpa_mask)
    model.set_attn_implementation(GROUPED)
