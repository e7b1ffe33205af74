"""Searches an index that another process serves (`medagent index serve`), with timeouts and a circuit breaker."""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from threading import Lock
from typing import Any

import httpx

from medagent.retrieval.errors import RetrievalError, RetrieverUnavailableError
from medagent.retrieval.filters import NO_FILTER, Filter
from medagent.retrieval.passages import Hit, Passage


class CircuitBreaker:
    """After `threshold` failures in a row, refuses for `cooldown_s` seconds; then one call may try and decides."""

    def __init__(self, threshold: int = 3, cooldown_s: float = 5.0) -> None:
        self._threshold, self._cooldown_s = threshold, cooldown_s
        self._failures = 0
        self._closed_again = 0.0
        self._lock = Lock()

    def allows(self) -> bool:
        """Whether a call may be made now; after the cool-down one caller may try."""
        with self._lock:
            if self._failures < self._threshold:
                return True
            if time.monotonic() < self._closed_again:
                return False
            self._closed_again = time.monotonic() + self._cooldown_s
            return True

    def succeeded(self) -> None:
        """Close the circuit."""
        with self._lock:
            self._failures = 0

    def failed(self) -> None:
        """Count a failure; enough of them open the circuit."""
        with self._lock:
            self._failures += 1
            self._closed_again = time.monotonic() + self._cooldown_s


class RemoteRetriever:
    """A `Retriever` over HTTP. It repeats no failed call: `SearchBatcher` does that for its callers."""

    def __init__(
        self, url: str, timeout_s: float = 60.0, threshold: int = 3, cooldown_s: float = 5.0, where: str = ""
    ) -> None:
        """`url` is the server's address, such as http://localhost:8001.

        `timeout_s` bounds one call, `threshold` and `cooldown_s` the circuit breaker. `where` is a filter
        (`medagent.retrieval.filters`) that holds for every search.
        """
        self.where = Filter.parse(where)
        self.url = url.rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise RetrievalError(f"retriever {url!r}: wanted an address such as http://localhost:8001.")
        self._timeout_s = timeout_s
        self._client = httpx.Client(timeout=timeout_s)
        weakref.finalize(self, self._client.close)
        self._breaker = CircuitBreaker(threshold, cooldown_s)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    @property
    def version(self) -> str:
        """The version of the index that is served."""
        try:
            response = self._client.get(f"{self.url}/healthz")
            return str(response.raise_for_status().json()["version"])
        except (httpx.HTTPError, ValueError, KeyError) as error:
            raise RetrieverUnavailableError(
                f"retriever {self.url}: does not say what it serves ({error!r})."
            ) from error

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Hit]]:
        """See `Retriever.search`."""
        return self.search_where(queries, top_k=top_k, where=NO_FILTER)

    def search_where(self, queries: Sequence[str], *, top_k: int, where: Filter) -> list[list[Hit]]:
        """Search only the passages that `where` lets through."""
        if isinstance(queries, str):
            raise TypeError(f"queries: found the text {queries[:40]!r}, wanted a list of texts. Give [query].")
        wanted = self.where & where
        body = {"queries": list(queries), "top_k": top_k}
        answer = self._post("/search", body if wanted.empty else {**body, "where": str(wanted)})
        return [[Hit(Passage.from_json(hit["passage"]), hit["score"]) for hit in hits] for hits in answer["results"]]

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        if not self._breaker.allows():
            raise RetrieverUnavailableError(
                f"retriever {self.url}: is down (several calls in a row failed). Start it with: medagent index serve "
                "INDEX"
            )
        try:
            response = self._client.post(self.url + path, json=body)
        except httpx.HTTPError as error:
            self._breaker.failed()
            slow = isinstance(error, httpx.TimeoutException)
            what = f"did not answer within {self._timeout_s:.0f} s" if slow else f"cannot be reached ({error})"
            raise RetrieverUnavailableError(
                f"retriever {self.url}: {what}. Start it with: medagent index serve INDEX"
            ) from error
        if response.status_code >= 500 or response.status_code == 429:
            self._breaker.failed()
            raise RetrieverUnavailableError(
                f"retriever {self.url}: answered {response.status_code}: {response.text[:300]}"
            )
        self._breaker.succeeded()
        if response.status_code != 200:
            raise RetrievalError(
                f"retriever {self.url}: refused the request with {response.status_code}: {response.text[:300]}. Is "
                "it a `medagent index serve`?"
            )
        return response.json()
