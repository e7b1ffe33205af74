"""The experts that a sampler chose for each token it read, as a turn carries them to the trainer."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class RoutingRecord:
    """The experts of tokens that lie side by side, [tokens, L, K], as bytes, so that records compare exactly."""

    data: bytes
    layers: int
    top_k: int
    dtype: str = "uint8"

    @staticmethod
    def of(experts_TLK: NDArray[Any]) -> RoutingRecord:
        """The record of an array of uint8 or int16."""
        _, layers, top_k = experts_TLK.shape
        return RoutingRecord(experts_TLK.tobytes(), layers, top_k, str(experts_TLK.dtype))

    @staticmethod
    def joined(parts: Iterable[RoutingRecord | None]) -> RoutingRecord | None:
        """Records one after the other; none where there is none."""
        found = [part for part in parts if part is not None]
        if not found:
            return None
        data = b"".join(part.data for part in found)
        return RoutingRecord(data, found[0].layers, found[0].top_k, found[0].dtype)

    def __len__(self) -> int:
        """The number of tokens."""
        return len(self.data) // (self.layers * self.top_k * np.dtype(self.dtype).itemsize)

    @property
    def experts(self) -> NDArray[Any]:
        """[tokens, L, K] the numbers of the experts."""
        return np.frombuffer(self.data, dtype=self.dtype).reshape(-1, self.layers, self.top_k)


@dataclass(frozen=True)
class RoutingShape:
    """The places of the routers in a model's layers, and the type of their records."""

    layers: tuple[int, ...]
    dtype: str

    def record(self, sent: str, *, tokens: int, kept: int) -> RoutingRecord:
        """The record of the first `kept` of so many tokens, out of what vLLM sent: the base64 of an .npy file.

        Raises:
            ValueError: it is of other tokens or layers, or no such file.
        """
        rows = np.load(io.BytesIO(base64.b64decode(sent)), allow_pickle=False)
        if rows.ndim != 3 or len(rows) != tokens or max(self.layers) >= rows.shape[1]:
            wanted = f"{tokens} tokens and {max(self.layers) + 1} layers or more"
            raise ValueError(f"found experts of shape {rows.shape}, wanted those of {wanted}")
        return RoutingRecord.of(np.ascontiguousarray(rows[:kept, list(self.layers)].astype(self.dtype)))
