"""Gathers the waiting queries of many callers into batches for one retriever, with retries and statistics."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection
from copy import copy
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from chromadb.errors import ChromaError
from httpx import HTTPError

from medagent.retrieval.errors import RetrievalError, RetrieverUnavailableError
from medagent.retrieval.filters import NO_FILTER, Filter
from medagent.retrieval.passages import Hit, is_named
from medagent.retrieval.retriever import DocumentPart, FilteringRetriever, ReadingRetriever, Retriever

T = TypeVar("T")
SPARE_HITS = 8  # by which a search is deeper at first for each document that it leaves out
MAX_DEPTH = 4_096


@dataclass
class SearchStats:
    """Durations of searches in seconds, from a query to its result; the last 10,000 are kept."""

    num_queries: int = 0
    num_batches: int = 0
    num_retries: int = 0
    waits_s: deque[float] = field(default_factory=lambda: deque(maxlen=10_000))

    def metrics(self) -> dict[str, float]:
        """Mean and 95th percentile of the wait, queries per batch, and retries."""
        waits = np.array(self.waits_s) if self.waits_s else np.zeros(1)
        return {
            "time/search": float(waits.mean()),
            "time/search_p95": float(np.quantile(waits, 0.95)),
            "throughput/queries_per_search": self.num_queries / max(self.num_batches, 1),
            "rollout/search_retries": float(self.num_retries),
        }


@dataclass(frozen=True)
class _Waiting:
    query: str
    top_k: int
    where: Filter
    future: asyncio.Future[list[Hit]]
    since: float
    asker: str


class SearchBatcher:
    """Gathers the searches of concurrent callers: while one batch is out, the next collects."""

    def __init__(
        self,
        retriever: Retriever,
        *,
        top_k: int,
        max_batch: int = 256,
        retries: int = 5,
        backoff_s: float = 0.5,
        timeout_s: float = 120.0,
        stats: SearchStats | None = None,
    ) -> None:
        """A batch that fails is retried `retries` times, after `backoff_s` and then twice as long each time."""
        self._retriever, self._top_k, self._max_batch = retriever, top_k, max_batch
        self._retries, self._backoff_s, self._timeout_s = retries, backoff_s, timeout_s
        self.stats = stats or SearchStats()
        self._queue: deque[_Waiting] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._where, self._base = NO_FILTER, self

    @property
    def filters(self) -> bool:
        """Whether the retriever takes filters."""
        return isinstance(self._retriever, FilteringRetriever)

    @property
    def waiting(self) -> int:
        """How many queries wait for the next batch."""
        return len(self._queue)

    def within(self, where: Filter) -> "SearchBatcher":
        """A view of this batcher, whose searches all have that filter as well; it fills the same batches."""
        view = copy(self)
        view._where = self._where & where
        return view

    async def search(
        self,
        query: str,
        *,
        top_k: int | None = None,
        where: Filter = NO_FILTER,
        without: Collection[str] = (),
        asker: str = "",
    ) -> list[Hit]:
        """Hits for one query, none of them of the passages and documents named in `without`. Errors name `asker`."""
        wanted, where = top_k or self._top_k, self._where & where
        if not without:
            return await self._search_one(query, wanted, where, asker)
        asked = wanted + SPARE_HITS * len(without)
        while True:  # deeper, until enough is left: a large document may fill the first ranks
            found = await self._search_one(query, asked, where, asker)
            kept = [hit for hit in found if not is_named(hit.passage, without)][:wanted]
            if len(kept) == wanted or len(found) < asked or asked >= MAX_DEPTH:
                return kept
            asked *= 4

    async def read(self, id: str, *, first: int | None, size: int, where: Filter = NO_FILTER) -> DocumentPart | None:
        """See `HybridRetriever.read`. Documents are not batched. Raises ValueError where there are none."""
        corpus = self._retriever
        if not isinstance(corpus, ReadingRetriever):
            raise ValueError("the documents of this corpus cannot be read, only searched")
        where = self._where & where
        return await self._retried(lambda: corpus.read(id, first=first, size=size, where=where), "a document")

    async def _search_one(self, query: str, top_k: int, where: Filter, asker: str) -> list[Hit]:
        future: asyncio.Future[list[Hit]] = asyncio.get_running_loop().create_future()
        self._queue.append(_Waiting(query, top_k, where, future, time.perf_counter(), asker))
        if self._base._worker is None or self._base._worker.done():
            self._base._worker = asyncio.create_task(self._base._work())
        return await future

    async def _work(self) -> None:
        while self._queue:
            await asyncio.sleep(0)  # let every caller that is ready put its query in
            batch = self._next_batch()
            if not batch:
                continue
            try:
                results = await self._search(batch)
            except Exception as error:  # handed to every waiting caller; nothing is swallowed
                for waiting in batch:
                    if not waiting.future.done():
                        waiting.future.set_exception(error)
                continue
            now = time.perf_counter()
            for waiting, hits in zip(batch, results, strict=True):
                self.stats.waits_s.append(now - waiting.since)
                if not waiting.future.done():
                    waiting.future.set_result(hits)
            self.stats.num_queries += len(batch)
            self.stats.num_batches += 1

    def _next_batch(self) -> list[_Waiting]:
        """The longest waiting query, and those that can be searched with it; callers that gave up are left out."""
        batch: list[_Waiting] = []
        later: list[_Waiting] = []
        while self._queue and len(batch) < self._max_batch:
            waiting = self._queue.popleft()
            if waiting.future.done():
                continue
            alike = not batch or (waiting.top_k, waiting.where) == (batch[0].top_k, batch[0].where)
            (batch if alike else later).append(waiting)
        self._queue.extendleft(reversed(later))
        return batch

    async def _search(self, batch: list[_Waiting]) -> list[list[Hit]]:
        retriever, queries = self._retriever, [waiting.query for waiting in batch]
        top_k, where = batch[0].top_k, batch[0].where
        if not where.empty and not isinstance(retriever, FilteringRetriever):
            raise RetrievalError(
                f"filter {where}: {type(retriever).__name__} takes none. Search an index, or ask for all."
            )

        def call() -> list[list[Hit]]:
            try:
                if isinstance(retriever, FilteringRetriever) and not where.empty:
                    return retriever.search_where(queries, top_k=top_k, where=where)
                return retriever.search(queries, top_k=top_k)
            except Exception as error:
                cause = error.__cause__ if isinstance(error, RetrievalError) else error
                raise self._explained(error, batch) from cause

        return await self._retried(call, f"{len(batch)} queries")

    async def _retried(self, call: Callable[[], T], what: str) -> T:
        for attempt in range(self._retries + 1):
            try:
                return await asyncio.wait_for(asyncio.to_thread(call), self._timeout_s)
            except TimeoutError as error:
                failure = RetrieverUnavailableError(
                    f"the retriever did not answer {what} within {self._timeout_s:.0f} s. See whether it is overloaded."
                )
                failure.__cause__ = error
            except RetrieverUnavailableError as error:
                failure = error
            if attempt < self._retries:
                self.stats.num_retries += 1
                await asyncio.sleep(self._backoff_s * 2**attempt)
        raise RetrieverUnavailableError(f"{failure} It was tried {self._retries + 1} times.") from failure

    def _explained(self, error: Exception, batch: list[_Waiting]) -> RetrievalError:
        """What a call raised, with the retriever, a query, and who asked it; whether it passes says its class."""
        failed = getattr(error, "query", None)
        first = next((waiting for waiting in batch if waiting.query == failed), batch[0])
        by = f" ({first.asker})" if first.asker else ""
        if isinstance(error, RetrievalError):
            return error if failed is None else type(error)(f"{error} Asked by {first.asker or 'a caller'}.")
        name = type(self._retriever).__name__
        what = f"{name}.search: {type(error).__name__}: {error}, for {len(batch)} queries, of which the first is"
        if passes(error):
            return RetrieverUnavailableError(f"{what} {first.query!r}{by}.")
        return RetrievalError(f"{what} {first.query!r}{by}. Mend the class; only an OSError is tried again.")


def passes(error: BaseException | None) -> bool:
    """Whether it may not happen again: an `OSError`, or what a client of Chroma or HTTP raises for one."""
    if isinstance(error, ChromaError):
        return error.code() == 429 or error.code() >= 500
    return isinstance(error, OSError | HTTPError) or (error is not None and passes(error.__cause__))
