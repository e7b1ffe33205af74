"""Opens an index by its name: the folder of one, or the address of one that another process serves."""

import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from medagent.retrieval.errors import RetrievalError, RetrieverUnavailableError
from medagent.retrieval.filters import NO_FILTER, Filter
from medagent.retrieval.passages import Hit, Passage
from medagent.retrieval.retriever import DocumentPart, FilteringRetriever
from medagent.retrieval.search import HybridRetriever


class RemoteRetriever(FilteringRetriever):
    """A `Retriever` over HTTP. It repeats no failed call: `SearchBatcher` does that for its callers."""

    def __init__(self, url: str, timeout_s: float = 60.0, where: str = "") -> None:
        """`url` is the server's address, such as http://localhost:8001. The filter `where` holds for every search."""
        self.where = Filter.parse(where)
        self.url = url.rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise RetrievalError(f"retriever {url!r}: wanted an address such as http://localhost:8001.")
        self._timeout_s = timeout_s
        self._client = httpx.Client(timeout=timeout_s)
        weakref.finalize(self, self._client.close)

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

    def search_where(self, queries: Sequence[str], *, top_k: int, where: Filter) -> list[list[Hit]]:
        if isinstance(queries, str):
            raise TypeError(f"queries: found the text {queries[:40]!r}, wanted a list of texts. Give [query].")
        wanted = self.where & where
        body = {"queries": list(queries), "top_k": top_k}
        answer = self._post("/search", body if wanted.empty else {**body, "where": str(wanted)})
        return [[Hit(Passage.from_json(hit["passage"]), hit["score"]) for hit in hits] for hits in answer["results"]]

    def read(self, id: str, *, first: int | None, size: int, where: Filter = NO_FILTER) -> DocumentPart | None:
        """See `HybridRetriever.read`."""
        asked = {"id": id, "first": first, "size": size, "where": str(self.where & where)}
        part = self._post("/read", asked)["part"]
        return part and DocumentPart(tuple(map(Passage.from_json, part["passages"])), part["first"], part["total"])

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        try:
            response = self._client.post(self.url + path, json=body)
        except httpx.HTTPError as error:
            slow = isinstance(error, httpx.TimeoutException)
            what = f"did not answer within {self._timeout_s:.0f} s" if slow else f"cannot be reached ({error})"
            raise RetrieverUnavailableError(
                f"retriever {self.url}: {what}. Start it with: medagent index serve INDEX"
            ) from error
        if response.status_code >= 500 or response.status_code == 429:
            raise RetrieverUnavailableError(
                f"retriever {self.url}: answered {response.status_code}: {response.text[:300]}"
            )
        if response.status_code != 200:
            raise RetrievalError(
                f"retriever {self.url}: refused the request with {response.status_code}: {response.text[:300]}. Is "
                "it a `medagent index serve`?"
            )
        return response.json()


URL = ("http://", "https://")


def open_index(index: str, *, where: str = "") -> HybridRetriever | RemoteRetriever:
    """The retriever of an index folder or an address; the filter `where` holds for each search.

    Raises:
        RetrievalError: several folders are named.
    """
    if index.startswith(URL):
        return RemoteRetriever(index, where=where)
    return HybridRetriever(index_folder(index), where=where)


def index_folder(index: str) -> str:
    """The name of a folder; an error where it lists several."""
    if "," in index and not Path(index).exists():
        first, *others = (name.strip() for name in index.split(","))
        raise RetrievalError(
            f"index {index!r}: found {len(others) + 1} names, wanted one folder. Put the corpora into one index: "
            f"`medagent index add {first} CORPUS` for each; `index sync` follows each of them by itself."
        )
    return index
