"""The interface of every retriever: queries in, passages out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from medagent.retrieval.filters import NO_FILTER, Filter
from medagent.retrieval.passages import Hit, Passage


class Retriever(Protocol):
    """Anything that answers queries with passages, many at a time."""

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Hit]]:
        """For each query at most `top_k` hits, best first. Raises `RetrieverUnavailableError` when down."""


@runtime_checkable
class FilteringRetriever(Retriever, Protocol):
    """A retriever that can search only some of its passages."""

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Hit]]:
        return self.search_where(queries, top_k=top_k, where=NO_FILTER)

    def search_where(self, queries: Sequence[str], *, top_k: int, where: Filter) -> list[list[Hit]]:
        """As `search`, over the passages that `where` lets through."""


@dataclass(frozen=True)
class DocumentPart:
    """Passages of a document in order. The first is its `first`-th, from 1, of `total`."""

    passages: tuple[Passage, ...]
    first: int
    total: int


@runtime_checkable
class ReadingRetriever(Retriever, Protocol):
    """A retriever whose documents can be read."""

    def read(self, id: str, *, first: int | None, size: int, where: Filter) -> DocumentPart | None:
        """See `HybridRetriever.read`."""


@runtime_checkable
class WordReplacing(Protocol):
    """A retriever that searches a near word where no passage has a query's word."""

    def replaced(self, query: str) -> dict[str, tuple[str, ...]]:
        """Words of a query that no passage has, and the near ones that are searched instead."""
