"""Hybrid search: dense vectors in Chroma and BM25, fused by reciprocal rank; callers see one `Retriever`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import overload

import numpy as np
from numpy.typing import NDArray

from medagent.retrieval.analysis import Analyser
from medagent.retrieval.cache import HitCache
from medagent.retrieval.embedders import Embedder
from medagent.retrieval.errors import IndexMismatchError
from medagent.retrieval.filters import NO_FILTER, Filter
from medagent.retrieval.fusion import Fetch, Ranking, fused_hits, nearest_rows
from medagent.retrieval.index import open_vectors
from medagent.retrieval.lexical import LexicalIndex
from medagent.retrieval.locking import ReadLock
from medagent.retrieval.manifest import Manifest, embedder_of
from medagent.retrieval.passages import Hit, Passage
from medagent.retrieval.query_match import QueryWords
from medagent.retrieval.rerank import Reranker
from medagent.retrieval.settings import SearchSettings
from medagent.retrieval.store import PassageStore
from medagent.retrieval.vectors import exact_nearest


class IndexRetriever(ABC):
    """The searches of indexes on this machine, one or several as one, cached; safe to call from threads."""

    words: QueryWords  # what is known of the words of queries

    def __init__(
        self, embedder: Embedder, settings: SearchSettings, reranker: Reranker | None, cache_size: int, where: Filter
    ) -> None:
        self.embedder, self.settings, self.where = embedder, settings, where
        self._reranker, self._cache = reranker, HitCache(cache_size)

    @abstractmethod
    def close(self) -> None:
        """Let the indexes be changed again; no search after this."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of passages that can be found."""

    @abstractmethod
    def fetch(self, rows: Sequence[int]) -> list[Passage]:
        """The passages of rows, in their order."""

    @abstractmethod
    def passage(self, id: str) -> Passage | None:
        """The passage of that id, None where there is none."""

    @abstractmethod
    def rankings(
        self, queries: Sequence[str], *, num_candidates: int, where: Filter = NO_FILTER
    ) -> tuple[list[Ranking], list[Ranking]]:
        """(dense, lexical) rankings of row numbers before fusion."""

    def replaced(self, query: str) -> dict[str, tuple[str, ...]]:
        """Words of a query that no passage has, and the near ones that are searched instead."""
        return self.words.replaced(query) if self.settings.near_words else {}

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Hit]]:
        """See `Retriever.search`. Ties are broken by row, so equal calls give equal results."""
        return self.search_where(queries, top_k=top_k, where=NO_FILTER)

    def search_where(self, queries: Sequence[str], *, top_k: int, where: Filter) -> list[list[Hit]]:
        """Search only the passages that `where` lets through."""
        return self._cache.hits(queries, top_k, self.where & where, self._search)

    def _search(self, queries: list[str], top_k: int, where: Filter) -> list[list[Hit]]:
        depth = max(self.settings.num_candidates, top_k)
        dense, lexical = self.rankings(queries, num_candidates=depth, where=where)
        return [
            fused_hits(
                query,
                *pair,
                top_k=top_k,
                settings=self.settings,
                fetch=self.fetch,
                words=self.words,
                reranker=self._reranker,
            )
            for query, *pair in zip(queries, dense, lexical, strict=True)
        ]


class HybridRetriever(IndexRetriever):
    """Searches an index folder."""

    def __init__(
        self,
        index: str,
        embedder: Embedder | None = None,
        settings: SearchSettings | None = None,
        reranker: Reranker | None = None,
        cache_size: int = 50_000,
        where: str = "",
    ) -> None:
        """`index` is the folder that `medagent index build` made.

        Without `embedder` or `settings` those that the index names are taken. `cache_size` bounds the number of
        cached queries; 0 caches none. `where` is a filter (`medagent.retrieval.filters`) that holds for every search.

        Raises:
            RetrievalError: `where` is no filter, or no passage fits it.
        """
        only = Filter.parse(where)
        self.folder = folder = Path(index)
        Manifest.read(folder)  # an error where there is no index to hold open
        self._reading = ReadLock(folder)
        try:
            manifest = self.manifest = Manifest.read(folder)
            embedder = embedder_of(folder, manifest, embedder)
            self._vectors = open_vectors(folder, manifest)
            self.lexical = LexicalIndex.load(folder, Analyser(manifest.settings.analyser))
            self._store = PassageStore(folder, manifest.dimension)
        except BaseException:
            self._reading.release()
            raise
        super().__init__(embedder, settings or manifest.settings.search, reranker, cache_size, only)
        self.words = self.lexical.words
        self._passages: OrderedDict[int, Passage] = OrderedDict()
        self._matching = lru_cache(maxsize=16)(self._store.matching)
        self._max_passages = 4 * self.settings.num_candidates + cache_size
        self._lock = Lock()
        if not self.where.empty and not len(self.rows_matching(self.where)):
            self.close()
            raise IndexMismatchError(f"index {folder}: no passage fits the filter {self.where}.")

    def close(self) -> None:
        """Let the index be changed again; no search after this."""
        self._store.close()
        self._reading.release()

    def __len__(self) -> int:
        """Number of passages."""
        return self.manifest.num_passages

    @property
    def passages(self) -> Sequence[Passage]:
        """All passages, in row order, each read from disk when it is looked at."""
        return StoredPassages(self._read, self._store.rows())

    def _read(self, rows: Sequence[int]) -> list[Passage]:
        found = self._store.fetch(rows)
        return [found[row] for row in rows]

    def titles(self, *, limit: int) -> list[str]:
        """Distinct titles of the passages, so many at most."""
        return self._store.titles(limit=limit)

    def sources(self, *, limit: int) -> list[str]:
        """The sources with the most passages, largest first."""
        return [name for name, _ in self._store.tally("source", limit=limit, where=self.where) if name]

    def num_sources(self) -> int:
        """How many distinct sources there are."""
        return self._store.num_sources(self.where)

    def years(self) -> tuple[int, int] | None:
        """The first and the last year of a passage, None where no passage has one."""
        return self._store.years(self.where)

    def passage(self, id: str) -> Passage | None:
        """The passage of that id, None where there is none."""
        rows = self._store.rows_of([id])
        return self.fetch([rows[id]])[0] if rows else None

    def rankings(
        self, queries: Sequence[str], *, num_candidates: int, where: Filter = NO_FILTER
    ) -> tuple[list[Ranking], list[Ranking]]:
        """(dense, lexical) rankings of row numbers before fusion."""
        where = self.where & where
        allowed = None if where.empty else self.rows_matching(where)
        near_words = self.settings.near_words
        return (
            self._dense(queries, num_candidates, allowed),
            self.lexical.search(queries, top_k=num_candidates, allowed=allowed, near_words=near_words),
        )

    def nearest(
        self, vectors: NDArray[np.float32], *, top_k: int, allowed: NDArray[np.int64] | None = None
    ) -> list[list[tuple[float, int]]]:
        """For each [D] vector at most `top_k` (distance, row) pairs, nearest first; of the rows `allowed`, if given."""
        if allowed is not None:
            # Chroma's filters walk the graph past what they exclude and may come back with too few; few rows are
            # compared one by one.
            return exact_nearest(vectors, self._store.vectors(), allowed, space=self.embedder.space, top_k=top_k)
        return self._vectors.nearest(vectors, top_k=min(top_k, len(self)))

    def _dense(self, queries: Sequence[str], top_k: int, allowed: NDArray[np.int64] | None) -> list[Ranking]:
        if not queries:
            return []
        vectors = self.embedder.embed_queries(queries)
        if allowed is not None:
            return [[row for _, row in pairs] for pairs in self.nearest(vectors, top_k=top_k, allowed=allowed)]
        return [nearest_rows(pairs, top_k) for pairs in self.nearest(vectors, top_k=top_k + 1)]

    def fetch(self, rows: Sequence[int]) -> list[Passage]:
        """The passages of rows. The last ones are cached, as a few are found again and again."""
        with self._lock:
            held = {row: self._passages[row] for row in rows if row in self._passages}
        held |= self._store.fetch([row for row in rows if row not in held])
        with self._lock:
            for row in rows:
                self._passages[row] = held[row]
                self._passages.move_to_end(row)
            while len(self._passages) > self._max_passages:
                self._passages.popitem(last=False)
        return [held[row] for row in rows]

    def rows_matching(self, where: Filter) -> NDArray[np.int64]:
        """Row numbers that a filter lets through, in order."""
        return self._matching(where)


class StoredPassages(Sequence[Passage]):
    """Passages of indexes as a sequence that does not hold them in memory."""

    def __init__(self, fetch: Fetch, rows: NDArray[np.int64]) -> None:
        """`rows` are those that `fetch` takes, in order."""
        self._fetch, self._rows = fetch, rows

    def __len__(self) -> int:
        """How many there are."""
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Passage: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Passage]: ...
    def __getitem__(self, index: int | slice) -> Passage | Sequence[Passage]:
        """One passage, or several."""
        if isinstance(index, slice):
            return self._fetch(self._rows[index].tolist())
        return self._fetch([int(self._rows[index])])[0]

    def __iter__(self) -> Iterator[Passage]:
        """All of them, a thousand at a time in memory."""
        return (passage for start in range(0, len(self), 1000) for passage in self[start : start + 1000])
