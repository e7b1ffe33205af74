"""The interface of every retriever: queries in, passages out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from retrieval.passages import Hit


@dataclass(frozen=True)
class Filter:
    """Which passages may be found.

    Sources are exact, or end in * as in "PubMed*". Years go from `year_from` to `year_to`. A passage without a year is
    left out where a year is asked for.
    """

    sources: tuple[str, ...] = ()
    year_from: int | None = None
    year_to: int | None = None

    @property
    def empty(self) -> bool:
        """Whether everything may be found."""
        return not self.sources and self.year_from is None and self.year_to is None


EVERYTHING = Filter()


class Retriever(Protocol):
    """Anything that answers queries with passages, many at a time."""

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Hit]]:
        """For each query at most `top_k` hits, best first. Raises `RetrieverUnavailableError` when down."""
        ...
