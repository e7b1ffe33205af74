"""A preallocated KV cache in the form that transformers wants. Rows write at their own positions.

A head's positions lie side by side in memory, as attention reads them. The other order takes about twice the time on a
CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class _BufferLayer(CacheLayerMixin):
    """One layer's view of the buffer; writes at each row's own positions."""

    def __init__(self, keys: Tensor, values: Tensor, positions_BQ: Tensor, reach: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._stored, self._positions, self._reach = (keys, values), positions_BQ, reach
        self._rows = torch.arange(positions_BQ.shape[0], device=positions_BQ.device)[:, None]

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the buffer exists."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Store [B, heads, Q, D] and return all keys and values up to the furthest position."""
        views = []
        for stored, new in zip(self._stored, (key_states, value_states), strict=True):
            stored[self._rows, :, self._positions] = new.transpose(1, 2)
            views.append(stored[:, :, : self._reach])
        return views[0], views[1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(key length, offset)."""
        return self._reach, 0

    def get_seq_length(self) -> int:
        """Tokens before this step, of the longest row."""
        return self._reach - int(self._positions.shape[1])

    def get_max_length(self) -> int:
        """The buffer's capacity."""
        return int(self._stored[0].shape[2])


class BufferCache(Cache):
    """The buffer behind the cache interface of transformers."""

    def __init__(self, buffer: Tensor, positions_BQ: Tensor, reach: int) -> None:
        super().__init__(layers=[_BufferLayer(layer[0], layer[1], positions_BQ, reach) for layer in buffer])
