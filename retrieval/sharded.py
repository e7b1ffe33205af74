"""Several indexes behind one retriever, with the results of one over all their passages; and an index by its name.

Rankings are merged before fusion: vectors by distance, BM25 with the statistics of all. Ties go by index, then row.
"""

from __future__ import annotations

import logging
import sqlite3
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from medagent.retrieval.embedders import Embedder, embedder_from_identity
from medagent.retrieval.errors import IndexMismatchError, RetrievalError
from medagent.retrieval.filters import NO_FILTER, Filter
from medagent.retrieval.fusion import Ranking, nearest_rows
from medagent.retrieval.lexical import LexicalShard
from medagent.retrieval.manifest import Manifest
from medagent.retrieval.passages import Passage
from medagent.retrieval.query_match import QueryWords, Synonyms, read_synonyms
from medagent.retrieval.remote import RemoteRetriever
from medagent.retrieval.rerank import Reranker
from medagent.retrieval.search import HybridRetriever, IndexRetriever, StoredPassages
from medagent.retrieval.settings import SearchSettings

log = logging.getLogger(__name__)
URL = ("http://", "https://")
Pairs = list[list[tuple[float, int]]]  # per query: (distance or score, row)
T = TypeVar("T")
_TWICE = tuple(
    f"SELECT row, id FROM main.passages WHERE {name} IN (SELECT {name} FROM other.passages)"  # noqa: S608 (constant)
    for name in ("id", "owner")
)
_NOTICED = "SELECT name FROM other.withdrawn WHERE kind = 'retracted'"
# The rule of `ingest_policy`: a document goes by any of its names, and one that was let back in by name stays.
_RETRACTED = f"""
SELECT row, id FROM main.passages AS held WHERE (held.owner IN ({_NOTICED})
  OR held.owner IN (SELECT name FROM main.aliases WHERE alias IN ({_NOTICED})))
AND NOT EXISTS (SELECT 1 FROM main.withdrawn AS said WHERE said.kind = 'allowed' AND (said.name = held.owner
  OR said.name IN (SELECT alias FROM main.aliases AS other_name WHERE other_name.name = held.owner)))
"""  # noqa: S608 (constant names)


class ShardedRetriever(IndexRetriever):
    """Searches several index folders as if they were one.

    They need the same embedder and settings. Documents and passages of which an earlier index holds the id are left
    out and counted nowhere, and so are those of whose retraction another index has read. While it is open none of the
    indexes can be changed.
    """

    def __init__(
        self,
        indexes: list[str],
        embedder: Embedder | None = None,
        settings: SearchSettings | None = None,
        reranker: Reranker | None = None,
        cache_size: int = 50_000,
        where: str = "",
    ) -> None:
        """`indexes` are folders, in the order in which ids and ties are decided; see `HybridRetriever` for the rest.

        Raises:
            IndexMismatchError: an index is named twice, differs in embedder or settings, or has no passage that fits.
        """
        only = Filter.parse(where)
        folders = [Path(index) for index in indexes]
        manifests = _alike(folders, any_search=settings is not None)
        embedder = embedder_from_identity(manifests[0].embedder) if embedder is None else embedder
        settings = settings or manifests[0].settings.search
        super().__init__(embedder, settings, reranker, cache_size, only)
        with ExitStack() as opened:
            each = []
            for folder in folders:
                each.append(HybridRetriever(str(folder), self.embedder, self.settings, cache_size=cache_size))
                opened.callback(each[-1].close)
            self._shards = [_Shard(one, folders) for one in each]
            self._threads = ThreadPoolExecutor(len(folders), thread_name_prefix="search")
            opened.callback(self._threads.shutdown)
            allowed = self._of_each(lambda shard: shard.allowed(self.where))
            if not self.where.empty and not any(rows is not None and len(rows) for rows in allowed):
                raise IndexMismatchError(f"indexes {', '.join(indexes)}: no passage fits the filter {self.where}.")
            self._opened = opened.pop_all()
        numbers = np.cumsum([0, *(int(shard.index.lexical.rows[-1]) + 1 for shard in self._shards)])
        self._firsts: list[int] = numbers[:-1].tolist()  # the number of each index's row 0
        analyser = self._shards[0].index.lexical.analyser
        synonyms = Synonyms([group for folder in self.folders for group in read_synonyms(folder)])
        self.words = QueryWords(analyser.groups, self._vocabulary, self._num_passages_with, len(self), synonyms)

    def close(self) -> None:
        """Let the indexes be changed again; no search after this."""
        self._opened.close()

    @property
    def folders(self) -> tuple[Path, ...]:
        """The index folders, in their order."""
        return tuple(shard.index.folder for shard in self._shards)

    def __len__(self) -> int:
        """Number of passages that can be found; those that are left out are not counted."""
        return sum(len(shard.index) - len(shard.excluded) for shard in self._shards)

    @property
    def passages(self) -> Sequence[Passage]:
        """All passages that can be found, in the order of their rows, each read from disk when it is looked at."""
        rows = [shard.rows + first for shard, first in zip(self._shards, self._firsts, strict=True)]
        return StoredPassages(self.fetch, np.concatenate(rows))

    def passage(self, id: str) -> Passage | None:
        """The passage of that id, None where there is none."""
        found = (shard.index.passage(id) for shard in self._shards if id not in shard.excluded_ids)
        return next((passage for passage in found if passage is not None), None)

    def rankings(
        self, queries: Sequence[str], *, num_candidates: int, where: Filter = NO_FILTER
    ) -> tuple[list[Ranking], list[Ranking]]:
        """(dense, lexical) rankings before fusion; rows are numbered on from one index to the next."""
        allowed = self._of_each(lambda shard: shard.allowed(where))
        return self._dense(queries, num_candidates, allowed), self._lexical(queries, num_candidates, allowed)

    def _dense(self, queries: Sequence[str], top_k: int, allowed: list[NDArray[np.int64] | None]) -> list[Ranking]:
        if not queries:
            return []
        vectors = self.embedder.embed_queries(queries)
        if allowed[0] is not None:
            merged = self._merged(
                self._of_each(lambda shard, rows: shard.index.nearest(vectors, top_k=top_k, allowed=rows), allowed)
            )
            return [[row for _, row in sorted(pairs)[:top_k]] for pairs in merged]
        merged = self._merged(self._of_each(lambda shard: shard.nearest(vectors, top_k + 1)))
        return [nearest_rows(sorted(pairs)[: top_k + 1], top_k) for pairs in merged]

    def _lexical(self, queries: Sequence[str], top_k: int, allowed: list[NDArray[np.int64] | None]) -> list[Ranking]:
        asked = [self.words.searched(query, near_words=self.settings.near_words) for query in queries]
        known = {token for variants in asked for tokens in variants for token in tokens}
        of_all = reduce(add, self._of_each(lambda shard: shard.words.statistics(known)))
        merged = self._merged(
            self._of_each(
                lambda shard, rows: [shard.words.best(some, of_all, top_k=top_k, allowed=rows) for some in asked],
                allowed,
            )
        )
        return [[row for _, row in sorted(pairs, key=lambda pair: (-pair[0], pair[1]))[:top_k]] for pairs in merged]

    def _vocabulary(self) -> Iterable[str]:
        """The words of passages that can be found, each once."""
        words = {word for shard in self._shards for word in shard.index.lexical.vocabulary()}
        return (word for word in words if self._num_passages_with(word))

    def _num_passages_with(self, word: str) -> int:
        return sum(shard.words.num_passages_with(word) for shard in self._shards)

    def _of_each(self, call: Callable[..., T], *values: Sequence[Any]) -> list[T]:
        """The results of a function for each index, in threads."""
        return list(self._threads.map(call, self._shards, *values))

    def _merged(self, found: Sequence[Pairs]) -> Pairs:
        """Per query the pairs of all indexes, with rows numbered on from one to the next."""
        numbered = [
            [[(value, first + row) for value, row in pairs] for pairs in of_one]
            for first, of_one in zip(self._firsts, found, strict=True)
        ]
        return [[pair for pairs in of_query for pair in pairs] for of_query in zip(*numbered, strict=True)]

    def fetch(self, rows: Sequence[int]) -> list[Passage]:
        """The passages of rows, which are numbered on from one index to the next."""
        asked: dict[int, list[int]] = defaultdict(list)
        for row in rows:
            asked[bisect_right(self._firsts, row) - 1].append(row)
        found: dict[int, Passage] = {}
        for number, some in asked.items():
            passages = self._shards[number].index.fetch([row - self._firsts[number] for row in some])
            found |= dict(zip(some, passages, strict=True))
        return [found[row] for row in rows]


class _Shard:
    """One of the indexes, without what is left out of it."""

    def __init__(self, index: HybridRetriever, folders: Sequence[Path]) -> None:
        """`folders` are those of all indexes."""
        self.index, folder, place = index, index.folder, folders.index(index.folder)
        twice = _rows(folder, folders[:place], *_TWICE)
        gone = twice | _rows(folder, [other for other in folders if other != folder], _RETRACTED)
        self.excluded, self.excluded_ids = np.array(sorted(gone), dtype=np.int64), frozenset(gone.values())
        self.words = LexicalShard(folder, index.lexical, self.excluded)
        reasons = ("an index before it holds their ids", "another says they are retracted")
        for reason, number in zip(reasons, (len(twice), len(gone) - len(twice)), strict=True):
            if number:
                log.warning("index %s: %d of its %d passages are left out: %s.", folder, number, len(index), reason)

    @property
    def rows(self) -> NDArray[np.int64]:
        """The rows that are not left out."""
        return np.setdiff1d(self.index.lexical.rows, self.excluded)

    def allowed(self, where: Filter) -> NDArray[np.int64] | None:
        """The rows that a filter lets through, None where there is no filter."""
        return None if where.empty else np.setdiff1d(self.index.rows_matching(where), self.excluded)

    def nearest(self, vectors: NDArray[np.float32], top_k: int) -> Pairs:
        """For each vector at most `top_k` (distance, row) pairs, nearest first."""
        asked, gone = top_k, set(self.excluded.tolist())
        while True:  # deeper, until enough is left: Chroma does not know what is left out
            found = self.index.nearest(vectors, top_k=asked)
            kept = [[pair for pair in pairs if pair[1] not in gone] for pairs in found]
            if asked >= len(self.index) or min(map(len, kept)) >= top_k:
                return kept
            asked *= 4


def _alike(folders: Sequence[Path], *, any_search: bool) -> list[Manifest]:
    """The manifests of indexes that can be searched as one, else an error that says what differs."""
    if not folders or len({folder.resolve() for folder in folders}) < len(folders):
        raise IndexMismatchError(
            f"indexes: found {[str(folder) for folder in folders]}, wanted one folder or more, each once. Name every "
            "index once."
        )
    manifests = [Manifest.read(folder) for folder in folders]
    first, *others = [_must_match(manifest, any_search=any_search) for manifest in manifests]
    for folder, other in zip(folders[1:], others, strict=True):
        for name, wanted in first.items():
            if other[name] != wanted:
                raise IndexMismatchError(
                    f"index {folder}: found {name} {other[name]!r}, wanted {wanted!r} as in {folders[0]}, for they are "
                    "searched as one. Build one of them again with what the other has, or search them apart."
                )
    return manifests


def _must_match(manifest: Manifest, *, any_search: bool) -> dict[str, object]:
    """The settings that must be equal: not the place of the vectors, nor the fusion if the caller sets it."""
    settings = {name: value for name, value in asdict(manifest.settings).items() if name != "chroma"}
    if any_search:
        del settings["search"]
    return {"embedder": manifest.embedder, "dimension": manifest.dimension, "space": manifest.space, **settings}


def _rows(folder: Path, others: Sequence[Path], *queries: str) -> dict[int, str]:
    """Rows and ids that queries give over an index (`main`) and each other one (`other`).

    Those by document are left out where one of the two is of format 2, which does not know them.
    """
    found: dict[int, str] = {}
    for other in others:
        with closing(sqlite3.connect(folder / "passages.sqlite")) as database:
            database.execute("ATTACH ? AS other", (str(other / "passages.sqlite"),))
            columns = [database.execute(f"PRAGMA {schema}.table_info(passages)") for schema in ("main", "other")]
            known = all("owner" in {row[1] for row in each} for each in columns)
            for query in queries:
                found |= database.execute(query) if known or "owner" not in query else ()
    return found


def open_index(index: str, *, where: str = "") -> HybridRetriever | RemoteRetriever | ShardedRetriever:
    """The retriever of an index folder, several ("indexes/a,indexes/b") or an address; `where` filters each search."""
    if index.startswith(URL) and "," not in index:
        return RemoteRetriever(index, where=where)
    folders = index_folders(index)
    if len(folders) > 1:
        return ShardedRetriever(folders, where=where)
    return HybridRetriever(folders[0], where=where)


def index_folders(index: str) -> list[str]:
    """The folders of a name; a folder whose own name has a comma is one. An address among several is an error."""
    if "," not in index or Path(index).exists():
        return [index]
    names = [name.strip() for name in index.split(",")]
    if any(name.startswith(URL) for name in names):
        raise RetrievalError(
            f"index {index!r}: found an address among several names, wanted folders. Serve each of them, and give one "
            "address; or give folders of this machine."
        )
    return names
