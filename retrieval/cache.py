"""A cache of search results by query, depth and filter, as queries repeat often in training."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock

from medagent.retrieval.filters import Filter
from medagent.retrieval.passages import Hit

MAX_HITS = 50  # longer results are not cached, as the cache is bounded by its number of queries
Search = Callable[[list[str], int, Filter], list[list[Hit]]]


class HitCache:
    """Searches once for queries that many threads ask for; `size` bounds the number of cached queries."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._found: OrderedDict[tuple[str, int, Filter], list[Hit]] = OrderedDict()
        self._lock, self._search_lock = Lock(), Lock()

    def __len__(self) -> int:
        """How many queries are cached."""
        return len(self._found)

    def hits(self, queries: Sequence[str], top_k: int, where: Filter, search: Search) -> list[list[Hit]]:
        """The hits of each query; `search` is called for the unknown ones, each once, by one thread at a time."""
        if isinstance(queries, str):
            raise TypeError(f"queries: found the text {queries[:40]!r}, wanted a list of texts. Give [query].")
        with self._lock:
            known = {}
            for query in queries:
                if (query, top_k, where) in self._found:
                    self._found.move_to_end((query, top_k, where))
                    known[query] = self._found[query, top_k, where]
        missing = [query for query in dict.fromkeys(queries) if query not in known]
        if missing:
            with self._search_lock:
                found = dict(zip(missing, search(missing, top_k, where), strict=True))
            known |= found
            with self._lock:
                for query, hits in found.items() if top_k <= MAX_HITS else ():
                    self._found[query, top_k, where] = hits
                while len(self._found) > self._size:
                    self._found.popitem(last=False)
        return [list(known[query]) for query in queries]
