"""Hybrid search: dense vectors in Chroma and BM25, fused by reciprocal rank; callers see one `Retriever`."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from medagent.retrieval.access import ReadLock
from medagent.retrieval.analysis import Analyser
from medagent.retrieval.embedders import Embedder
from medagent.retrieval.errors import IndexMismatchError
from medagent.retrieval.filters import NO_FILTER, Filter
from medagent.retrieval.fusion import Ranking, drop_duplicates, evidence_level, fuse, nearest_rows
from medagent.retrieval.index import open_vectors
from medagent.retrieval.lexical import LexicalIndex
from medagent.retrieval.manifest import Manifest, embedder_of
from medagent.retrieval.passages import Hit, Passage
from medagent.retrieval.rerank import Reranker
from medagent.retrieval.retriever import DocumentPart, FilteringRetriever
from medagent.retrieval.settings import SearchSettings
from medagent.retrieval.store import PassageStore
from medagent.retrieval.vectors import exact_nearest

MAX_HITS = 50  # longer results are not cached, as the cache is bounded by its number of queries
K = TypeVar("K")
V = TypeVar("V")


class LRUCache(Generic[K, V]):
    """Loads once what many threads ask for, one thread at a time; it holds the last `size` values."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._held: OrderedDict[K, V] = OrderedDict()
        self._lock, self._load_lock = Lock(), Lock()

    def __len__(self) -> int:
        return len(self._held)

    def get(self, keys: Sequence[K], load: Callable[[list[K]], list[V]], *, keep: bool = True) -> list[V]:
        """The value of each key; `load` gives those of unknown keys, which are cached where `keep` says so."""
        with self._lock:
            known = {key: self._held[key] for key in keys if key in self._held}
            for key in known:
                self._held.move_to_end(key)
        missing = [key for key in dict.fromkeys(keys) if key not in known]
        if missing:
            with self._load_lock:
                loaded = dict(zip(missing, load(missing), strict=True))
            known |= loaded
            with self._lock:
                self._held |= loaded if keep else {}
                while len(self._held) > self._size:
                    self._held.popitem(last=False)
        return [known[key] for key in keys]


class HybridRetriever(FilteringRetriever):
    """Searches an index folder, with the last results cached; safe to call from threads.

    Ties are broken by row, so equal calls give equal results.
    """

    def __init__(
        self,
        index: str,
        embedder: Embedder | None = None,
        settings: SearchSettings | None = None,
        reranker: Reranker | None = None,
        cache_size: int = 50_000,
        where: str = "",
    ) -> None:
        """`index` is the folder; without `embedder` or `settings` those that it names are taken.

        `cache_size` bounds the number of cached queries. The filter `where` holds for every search.

        Raises:
            RetrievalError: `where` is no filter, or no passage fits it.
        """
        self.where = Filter.parse(where)
        self.folder = folder = Path(index)
        Manifest.read(folder)  # an error where there is no index to hold open
        self._reading = ReadLock(folder)
        try:
            manifest = self.manifest = Manifest.read(folder)
            self.embedder = embedder_of(folder, manifest, embedder)
            self._vectors = open_vectors(folder, manifest)
            self.lexical = LexicalIndex.load(folder, Analyser(manifest.settings.analyser))
            self._store = PassageStore(folder, manifest.dimension)
        except BaseException:
            self._reading.close()
            raise
        self.settings = settings or manifest.settings.search
        self.words, self._reranker = self.lexical.words, reranker
        self._cache: LRUCache[tuple[str, int, Filter], list[Hit]] = LRUCache(cache_size)
        self._passages: LRUCache[int, Passage] = LRUCache(4 * self.settings.num_candidates + cache_size)
        self._matching = lru_cache(maxsize=16)(self._store.matching)
        if not self.where.empty and not len(self.rows_matching(self.where)):
            self.close()
            raise IndexMismatchError(f"index {folder}: no passage fits the filter {self.where}.")

    def close(self) -> None:
        """Let the index be changed again; no search after this."""
        self._store.close()
        self._vectors.close()
        self._reading.close()

    def __len__(self) -> int:
        return self.manifest.num_passages

    @property
    def passages(self) -> "StoredPassages":
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

    def read(self, id: str, *, first: int | None, size: int, where: Filter = NO_FILTER) -> DocumentPart | None:
        """At most `size` passages of the document that holds the passage `id`, or has this id itself.

        They begin with the `first`-th. Without it, `id` is in the middle. None: no such passage is let through.
        """
        self._reading.check()
        held = self.fetch(self._store.rows_of_document(id)[:1])
        if not held:
            return None
        where = self.where & where
        rows = self._store.rows_of_document(held[0].document or self._store.owners([held[0].id])[held[0].id])
        rows = rows if where.empty else np.intersect1d(rows, self.rows_matching(where)).tolist()
        at = self._store.rows_of([id]).get(id, rows[0] if rows else -1)
        if at not in rows:
            return None
        start = max(rows.index(at) - size // 2, 0) if first is None else first - 1
        return DocumentPart(tuple(self.fetch(rows[start : start + size])), start + 1, len(rows))

    def replaced(self, query: str) -> dict[str, tuple[str, ...]]:
        """Words of a query that no passage has, and the near ones that are searched instead."""
        return self.words.replaced(query) if self.settings.near_words else {}

    def search_where(self, queries: Sequence[str], *, top_k: int, where: Filter) -> list[list[Hit]]:
        if isinstance(queries, str):
            raise TypeError(f"queries: found the text {queries[:40]!r}, wanted a list of texts. Give [query].")
        where = self.where & where

        def search(keys: list[tuple[str, int, Filter]]) -> list[list[Hit]]:
            return self._search([query for query, _, _ in keys], top_k, where)

        found = self._cache.get([(query, top_k, where) for query in queries], search, keep=top_k <= MAX_HITS)
        return [list(hits) for hits in found]

    def _search(self, queries: list[str], top_k: int, where: Filter) -> list[list[Hit]]:
        depth = max(self.settings.num_candidates, top_k)
        dense, lexical = self.rankings(queries, num_candidates=depth, where=where)
        return [self._hits(*each, top_k) for each in zip(queries, dense, lexical, strict=True)]

    def _hits(self, query: str, dense: Ranking, lexical: Ranking, top_k: int) -> list[Hit]:
        """At most `top_k` hits without repeats and those below the floor, best first; a reranker orders last."""
        settings = self.settings
        fused = fuse(dense, lexical, settings)
        if self._reranker is not None:
            rows = [row for row, _ in fused[: max(self._reranker.num_candidates, top_k)]]
            scored = zip(rows, self._reranker.scores(query, self.fetch(rows)), strict=True)
            fused = sorted(scored, key=lambda item: -item[1])
        elif settings.evidence_weight:
            passages = self.fetch([row for row, _ in fused])
            levels = [settings.evidence_weight * evidence_level(passage.about.types) for passage in passages]
            weighed = [(row, score * (1 + level)) for (row, score), level in zip(fused, levels, strict=True)]
            fused = sorted(weighed, key=lambda item: (-item[1], item[0]))
        ranked = self._passages_of(fused, top_k)
        if settings.floor:
            ranked = (pair for pair in ranked if self.words.coverage(query, pair[0].indexed_text) >= settings.floor)
        return [Hit(*pair) for _, pair in zip(range(top_k), drop_duplicates(ranked, settings.collapse), strict=False)]

    def _passages_of(self, ranked: list[tuple[int, float]], size: int) -> Iterator[tuple[Passage, float]]:
        """Passages with their scores, `size` at a time, as mostly the first of them are enough."""
        for start in range(0, len(ranked), size):
            some = ranked[start : start + size]
            yield from zip(self.fetch([row for row, _ in some]), (score for _, score in some), strict=True)

    def rankings(
        self, queries: Sequence[str], *, num_candidates: int, where: Filter = NO_FILTER
    ) -> tuple[list[Ranking], list[Ranking]]:
        """(dense, lexical) rankings of row numbers before fusion."""
        self._reading.check()
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
        return self._passages.get(rows, self._read)

    def rows_matching(self, where: Filter) -> NDArray[np.int64]:
        """Row numbers that a filter lets through, in order."""
        return self._matching(where)


class StoredPassages(Sequence[Passage]):
    """Passages of indexes as a sequence that does not hold them in memory."""

    def __init__(self, fetch: Callable[[Sequence[int]], list[Passage]], rows: NDArray[np.int64]) -> None:
        """`rows` are those that `fetch` takes, in order."""
        self._fetch, self._rows = fetch, rows

    def drawn(self, number: int, seed: int) -> "StoredPassages":
        """So many of them, in an order that follows from the seed."""
        return StoredPassages(self._fetch, np.random.default_rng(seed).permutation(self._rows)[:number])

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Passage: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Passage]: ...
    def __getitem__(self, index: int | slice) -> Passage | Sequence[Passage]:
        if isinstance(index, slice):
            return self._fetch(self._rows[index].tolist())
        return self._fetch([int(self._rows[index])])[0]

    def __iter__(self) -> Iterator[Passage]:
        """All of them, a thousand at a time in memory."""
        return (passage for start in range(0, len(self), 1000) for passage in self[start : start + 1000])
