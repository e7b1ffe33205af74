"""A pass that reads what rollouts have in common once, such as the prompt of a question's samples.

The rows of a micro-batch are paths through one tree of tokens, packed without padding. Each token is read once, at its
own position, and sees what lies before it on its path. States and gradients are those of the rows read apart, up to
rounding. A row's attention is one call: its own tokens, the end of its path, are queries; its whole path is keys.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from medagent.errors import ConfigError
from medagent.models.causal_lm import hidden_states
from medagent.models.grouped_attention import attend_in_groups, grouped_attention, mask_of_groups

SHARED_PREFIXES = "shared_prefixes"  # name of the attention, to transformers


@dataclass(frozen=True)
class PrefixTree:
    """Rows as paths through one sequence of N tokens."""

    nodes_BT: Tensor
    """[B, T] integer: the place in the sequence of each token of a row; 0 at padding."""
    tokens_N: Tensor
    """[N] integer: the tokens."""
    positions_N: Tensor
    """[N] integer: their positions in their rows."""
    lengths: tuple[int, ...]
    """Tokens of each row."""
    shared: tuple[int, ...]
    """How many of them, from the first on, an earlier row has."""
    windows: list[int | None] = field(default_factory=list)
    """The window that each layer asked for, in their order."""
    masks: dict[tuple[int, int | None], Tensor | None] = field(default_factory=dict)
    """The inputs of attention, for a row and a window; filled when it is asked for, and the same in all layers."""

    @staticmethod
    def of(token_ids_BT: Tensor, attention_BT: Tensor) -> "PrefixTree":
        """The tree of right-padded rows, in their order."""
        shared = shared_with_earlier(token_ids_BT, attention_BT)
        lengths = attention_BT.sum(dim=1).tolist()
        nodes_BT = torch.zeros(token_ids_BT.shape, dtype=torch.long)
        places, size = [], 0
        for row, ((first, other), length) in enumerate(zip(shared, lengths, strict=True)):
            nodes_BT[row, :first] = nodes_BT[other, :first]
            nodes_BT[row, first:length] = torch.arange(size, size + length - first)
            places += [row * token_ids_BT.shape[1] + place for place in range(first, length)]
            size += length - first
        nodes_BT = nodes_BT.to(token_ids_BT.device)
        own_N = torch.tensor(places, device=token_ids_BT.device)
        return PrefixTree(
            nodes_BT,
            token_ids_BT.flatten()[own_N],
            own_N % token_ids_BT.shape[1],
            tuple(lengths),
            tuple(first for first, _ in shared),
        )

    def states(self, model: PreTrainedModel) -> Tensor:
        """[N, H] the last hidden state at every token of the sequence; `model` is one of `share_prefixes`."""
        none = torch.empty(1, 1, 0, 0, device=self.tokens_N.device)  # of four dimensions, so that no mask is made
        hidden_1NH = hidden_states(
            model,
            input_ids=self.tokens_N[None],
            position_ids=self.positions_N[None],
            attention_mask=none,
            use_cache=False,
            prefix_tree=self,
        )
        return hidden_1NH[0]

    def mask(self, row: int, window: int | None, *, together: int, dtype: torch.dtype) -> Tensor | None:
        """[1, 1, together own, length] to add to scores; `together` heads share keys; None if the row is causal."""
        if (row, window) not in self.masks:
            first, length = self.shared[row], self.lengths[row]
            self.masks[row, window] = None
            if first or (window is not None and window < length):
                places = torch.arange(length, device=self.tokens_N.device)
                behind = places[first:, None] - places[None, :]
                seen = (behind >= 0) if window is None else (behind >= 0) & (behind < window)
                hidden = torch.zeros(seen.shape, device=seen.device, dtype=dtype).masked_fill(~seen, -torch.inf)
                self.masks[row, window] = mask_of_groups(hidden[None, None], together)
        return self.masks[row, window]


def shared_with_earlier(token_ids_BT: Tensor, attention_BT: Tensor) -> list[tuple[int, int]]:
    """For each row the length of the longest prefix that an earlier row has, and the number of that row."""
    ids, there = token_ids_BT.cpu(), attention_BT.cpu()
    found = [(0, 0)]
    for row in range(1, len(ids)):
        common = common_prefixes(ids, there, slice(row), row)
        other = int(common.argmax())
        found.append((int(common[other]), other))
    return found


def common_prefixes(ids_BT: Tensor, there_BT: Tensor, rows: slice, row: int) -> Tensor:
    """How many first tokens each of `rows` has in common with `row`."""
    same = (ids_BT[rows] == ids_BT[row]) & there_BT[rows] & there_BT[row]
    return same.int().cumprod(dim=1).sum(dim=1)


def share_prefixes(base: PreTrainedModel) -> None:
    """Let a base read `PrefixTree`s, and all else as with sdpa; ConfigError if its attention cannot be exchanged."""
    if base.config._attn_implementation != "sdpa":
        raise ConfigError(
            f"model.execution.shared_prefixes: {type(base).__name__} attends with {base.config._attn_implementation}, "
            "wanted a model that can attend with sdpa. Set it to false."
        )
    AttentionInterface.register(SHARED_PREFIXES, _attention)
    AttentionMaskInterface.register(SHARED_PREFIXES, sdpa_mask)
    try:
        base.set_attn_implementation(SHARED_PREFIXES)
    except ValueError as error:
        raise ConfigError(
            f"model.execution.shared_prefixes: {type(base).__name__} has an attention of its own ({error}). Set it to "
            "false."
        ) from error
    if torch.cuda.is_available():
        # cuDNN plans a kernel for each shape, and hardly two rows have the same: 0.6 ms a call on an H200.
        torch.backends.cuda.enable_cudnn_sdp(False)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    prefix_tree: PrefixTree | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention along the paths of a tree, in transformers' interface: [1, heads, N, D] to [1, N, heads, D]."""
    if prefix_tree is None:
        return grouped_attention(
            module, query, key, value, attention_mask, scaling=scaling, sliding_window=sliding_window, **kwargs
        )
    tree = prefix_tree
    tree.windows.append(sliding_window)
    paths = torch.cat([nodes[:length] for nodes, length in zip(tree.nodes_BT, tree.lengths, strict=True)])
    keys, values = (each.index_select(2, paths).split(tree.lengths, dim=2) for each in (key, value))
    own = query.split([length - first for length, first in zip(tree.lengths, tree.shared, strict=True)], dim=2)
    together = query.shape[1] // key.shape[1]
    outputs = []
    for row, (length, first) in enumerate(zip(tree.lengths, tree.shared, strict=True)):
        if first == length:
            continue
        mask = tree.mask(row, sliding_window, together=together, dtype=query.dtype)
        if mask is not None:
            outputs.append(attend_in_groups(own[row], keys[row], values[row], mask, scaling=scaling))
        else:
            plain, _ = sdpa_attention_forward(module, own[row], keys[row], values[row], None, scaling=scaling)
            outputs.append(plain)
    return torch.cat(outputs, dim=1), None
