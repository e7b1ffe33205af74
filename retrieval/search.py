"""Hybrid search: dense vectors in Chroma and BM25, fused by reciprocal rank; callers see one `Retriever`.

Reciprocal rank fusion (Cormack et al., SIGIR 2009): score(d) = sum over rankings of weight / (k + rank of d), k = 60.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Protocol

import bm25s
import numpy as np

from retrieval.embedders import Embedder, HashedNgramEmbedder
from retrieval.errors import IndexMismatchError, NoIndexError, RetrieverUnavailableError
from retrieval.index import Manifest, lexical_tokens, load_passages, open_collection
from retrieval.passages import Hit, Passage

RRF_K = 60


class Retriever(Protocol):
    """Anything that answers queries with passages, many at a time."""

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Hit]]:
        """For each query at most `top_k` hits, best first. Raises `RetrieverUnavailableError` when down."""
        ...


class HybridRetriever:
    """Searches an index folder. Results are cached (queries repeat a great deal in training); safe to call from threads."""

    def __init__(
        self,
        index: str,
        embedder: Embedder | None = None,
        num_candidates: int = 20,
        dense_weight: float = 1.0,
        lexical_weight: float = 1.0,
        cache_size: int = 50_000,
    ) -> None:
        """`index` is a folder made by `medagent index build`; its embedder must be the given one (hashed n-grams by default)."""
        folder = self._folder = Path(index)
        self._embedder = embedder or HashedNgramEmbedder()
        manifest = Manifest.read(folder)
        if manifest.embedder != self._embedder.identity:
            raise IndexMismatchError(
                f"index {folder}: was built with the embedder {manifest.embedder!r}, and would be searched with "
                f"{self._embedder.identity!r}. Configure the embedder it was built with, or rebuild the index."
            )
        self._collection = open_collection(folder, manifest)
        self._lexical = bm25s.BM25.load(folder / "bm25", load_corpus=False)
        self._passages = load_passages(folder)
        self._row = {passage.id: row for row, passage in enumerate(self._passages)}
        self._candidates = min(num_candidates, len(self._passages))
        self._num_candidates = num_candidates
        self._weights = (dense_weight, lexical_weight)
        self._cache: OrderedDict[tuple[str, int], list[Hit]] = OrderedDict()
        self._cache_size = cache_size
        self._lock = Lock()

    @property
    def folder(self) -> Path:
        """The index folder."""
        return self._folder

    @property
    def embedder(self) -> Embedder:
        """What embeds the queries."""
        return self._embedder

    @property
    def num_candidates(self) -> int:
        """How many results of each ranking are fused."""
        return self._num_candidates

    @property
    def weights(self) -> tuple[float, float]:
        """(dense, lexical) weights of the fusion."""
        return self._weights

    def __len__(self) -> int:
        """Number of passages."""
        return len(self._passages)

    @property
    def passages(self) -> list[Passage]:
        """All passages, in row order."""
        return self._passages

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Hit]]:
        """See `Retriever.search`. Ties are broken by row, so equal calls give equal results."""
        with self._lock:
            missing = [query for query in dict.fromkeys(queries) if (query, top_k) not in self._cache]
            found = dict(zip(missing, self._search(missing, top_k), strict=True)) if missing else {}
            results = []
            for query in queries:
                if query in found:
                    self._cache[query, top_k] = found[query]
                self._cache.move_to_end((query, top_k))
                results.append(list(self._cache[query, top_k]))
            while len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
            return results

    def _search(self, queries: list[str], top_k: int) -> list[list[Hit]]:
        rankings = zip(self._dense(queries), self._bm25(queries), strict=True)
        return [self._fuse(*pair, top_k) for pair in rankings]

    def _dense(self, queries: list[str]) -> list[list[int]]:
        vectors = self._embedder.embed_queries(queries)
        try:
            answer = self._collection.query(
                query_embeddings=vectors, n_results=self._candidates + 1, include=["distances"]
            )
        except Exception as error:  # the one boundary at which Chroma's many failures become ours
            raise RetrieverUnavailableError(f"Chroma does not answer: {error!r}") from error
        found = zip(answer["ids"], answer["distances"] or [], strict=True)
        return [self._ranked(ids, distances) for ids, distances in found]

    def _ranked(self, ids: list[str], distances: list[float]) -> list[int]:
        """Rows by distance, then by number. Which of several equally distant ones Chroma gives last is chance: all go."""
        nearest = sorted((distance, self._row[id_]) for id_, distance in zip(ids, distances, strict=True))
        if len(nearest) > self._candidates and nearest[0][0] < nearest[-1][0]:
            nearest = [pair for pair in nearest if pair[0] < nearest[-1][0]]
        return [row for _, row in nearest][: self._candidates]

    def _bm25(self, queries: list[str]) -> list[list[int]]:
        rankings = []
        for words in lexical_tokens(queries):
            scores = self._lexical.get_scores(words) if words else np.zeros(len(self._passages))
            order = np.argsort(-scores, kind="stable")[: self._candidates]
            rankings.append([int(row) for row in order if scores[row] > 0])
        return rankings

    def _fuse(self, dense: list[int], lexical: list[int], top_k: int) -> list[Hit]:
        scores: dict[int, float] = {}
        for weight, ranking in zip(self._weights, (dense, lexical), strict=True):
            for rank, row in enumerate(ranking, start=1):
                scores[row] = scores.get(row, 0.0) + weight / (RRF_K + rank)
        best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:top_k]
        return [Hit(self._passages[row], score) for row, score in best]


class NoRetriever:
    """Stands where there is no index, for agents that never search: a search is an error, not an empty result."""

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Hit]]:
        """Raises `NoIndexError`."""
        raise NoIndexError("there is no index to search. Give one with --index (make it with `medagent index build`).")


class UnreliableRetriever:
    """Answers a share of the queries with unrelated passages: training with it teaches what to do when a search fails.

    Which queries fail is decided by their hash, so equal calls give equal results.
    """

    def __init__(self, retriever: HybridRetriever, share: float = 0.1, seed: int = 0) -> None:
        """`share` of distinct queries fail."""
        self.retriever = retriever
        self._unrelated = UnrelatedRetriever(retriever.passages, seed=seed)
        self._share, self._seed = share, seed

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Hit]]:
        """See `Retriever.search`."""
        failing = {q for q in queries if random.Random(f"fail:{self._seed}:{q}").random() < self._share}
        found = iter(self.retriever.search([q for q in queries if q not in failing], top_k=top_k))
        return [self._unrelated.search([q], top_k=top_k)[0] if q in failing else next(found) for q in queries]


class UnrelatedRetriever:
    """Answers every query with passages that have nothing to do with it: "search disabled", for controls."""

    def __init__(self, passages: Sequence[Passage], *, seed: int = 0) -> None:
        self._passages, self._seed = passages, seed

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Hit]]:
        """Passages drawn by the query's hash, none of which shares its title with the query's text."""
        results = []
        for query in queries:
            rng = random.Random(f"{self._seed}:{query}")
            drawn = rng.sample(self._passages, min(len(self._passages), 5 * top_k))
            strangers = [passage for passage in drawn if passage.title.lower() not in query.lower()]
            results.append([Hit(passage, 0.0) for passage in strangers[:top_k]])
        return results
