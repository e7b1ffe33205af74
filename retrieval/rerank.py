"""Rerankers read query and passage together. They are slower than fusion, so they see its first candidates only."""

import math
from collections.abc import Sequence
from typing import Protocol

from medagent.retrieval.errors import RetrievalError, needs_model, needs_package
from medagent.retrieval.http_service import BATCH, HttpService
from medagent.retrieval.passages import Passage


class Reranker(Protocol):
    """Scores passages for a query."""

    num_candidates: int  # of the fused candidates, which it reads; more if more hits are asked for

    def scores(self, query: str, passages: Sequence[Passage]) -> list[float]:
        """One score per passage, higher is better."""


class CrossEncoderReranker(Reranker):
    """A sentence-transformers cross-encoder by hub name or folder, such as ncbi/MedCPT-Cross-Encoder."""

    def __init__(self, model: str, num_candidates: int = 20, device: str | None = None, batch_size: int = 32) -> None:
        """`device` is torch's; none takes the GPU if there is one."""
        with needs_package(f"the reranker {model!r}", "sentence-transformers", "sentence-transformers"):
            from sentence_transformers import CrossEncoder
        with needs_model("reranker", model, "a folder, or a hub name that can be reached"):
            self._model = CrossEncoder(model, device=device)
        self.num_candidates, self._batch_size = num_candidates, batch_size

    def scores(self, query: str, passages: Sequence[Passage]) -> list[float]:
        pairs = [(query, passage.indexed_text) for passage in passages]
        found = self._model.predict(pairs, batch_size=self._batch_size, show_progress_bar=False)
        return [float(score) for score in found]


class EndpointReranker(Reranker):
    """A service with POST /rerank: TEI's, or with a `model` that of Cohere, Jina and vLLM."""

    def __init__(self, url: str, model: str = "", *, num_candidates: int = 20) -> None:
        """`url` is what stands before /rerank, such as http://localhost:8080 or https://api.jina.ai/v1."""
        self._service, self._model = HttpService(url, f"the reranker {model!r}" if model else "the reranker"), model
        self.num_candidates = num_candidates

    def scores(self, query: str, passages: Sequence[Passage]) -> list[float]:
        texts = [passage.indexed_text for passage in passages]
        return [score for start in range(0, len(texts), BATCH) for score in self._some(query, texts[start:][:BATCH])]

    def _some(self, query: str, texts: list[str]) -> list[float]:
        own = {"model": self._model, "documents": texts} if self._model else {"texts": texts, "truncate": True}
        answer = self._service.post("rerank", {"query": query, **own})
        try:
            rows = answer["results"] if self._model else answer
            found = {row["index"]: float(row["relevance_score" if self._model else "score"]) for row in rows}
            scores = [found[number] for number in range(len(texts))]
        except (KeyError, TypeError, ValueError):
            scores = []
        if len(scores) != len(texts) or not all(map(math.isfinite, scores)):
            raise self._service.unexpected(f"one score for each of {len(texts)} texts")
        return scores


def reranker_named(name: str, device: str | None = None) -> Reranker:
    """A cross-encoder by hub name or folder, or a service: "tei|URL" or "cohere|URL|MODEL"."""
    kind, *rest = name.split("|")
    if (kind, len(rest)) in (("tei", 1), ("cohere", 2)):
        return EndpointReranker(*rest)
    if rest:
        raise RetrievalError(f"reranker {name!r}: unknown. Wanted a hub name, a folder, tei|URL or cohere|URL|MODEL.")
    return CrossEncoderReranker(name, device=device)
