"""Rerankers read query and passage together. They are slower than fusion, so they see its first candidates only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from medagent.retrieval.errors import needs_model, needs_package
from medagent.retrieval.passages import Passage


class Reranker(Protocol):
    """Scores passages for a query."""

    num_candidates: int  # of the fused candidates, which it reads; more if more hits are asked for

    def scores(self, query: str, passages: Sequence[Passage]) -> list[float]:
        """One score per passage, higher is better."""


class CrossEncoderReranker:
    """A sentence-transformers cross-encoder by hub name or folder, such as ncbi/MedCPT-Cross-Encoder."""

    def __init__(self, model: str, num_candidates: int = 20, device: str | None = None, batch_size: int = 32) -> None:
        """`device` is torch's; none takes the GPU if there is one."""
        with needs_package(f"the reranker {model!r}", "sentence-transformers", "sentence-transformers"):
            from sentence_transformers import CrossEncoder
        with needs_model("reranker", model, "a folder, or a hub name that can be reached"):
            self._model = CrossEncoder(model, device=device)
        self.num_candidates, self._batch_size = num_candidates, batch_size

    def scores(self, query: str, passages: Sequence[Passage]) -> list[float]:
        """See `Reranker.scores`."""
        pairs = [(query, passage.indexed_text) for passage in passages]
        found = self._model.predict(pairs, batch_size=self._batch_size, show_progress_bar=False)
        return [float(score) for score in found]
