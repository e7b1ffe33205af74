"""Retrievers for controls: one is missing, one fails on a share of the queries, one returns unrelated passages."""

import random
from collections.abc import Sequence

from medagent.retrieval.errors import NoIndexError
from medagent.retrieval.filters import NO_FILTER, Filter
from medagent.retrieval.passages import Hit, Passage
from medagent.retrieval.retriever import DocumentPart, FilteringRetriever, Retriever, WordReplacing
from medagent.retrieval.search import HybridRetriever


class NoRetriever:
    """Stands in where there is no index, for agents that never search: a search is an error, not an empty result."""

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Hit]]:
        """Raises `NoIndexError`."""
        raise NoIndexError("there is no index to search. Give one with --index (make it with `medagent index build`).")


class UnreliableRetriever(FilteringRetriever):
    """Answers a share of the queries with unrelated passages, so that training teaches what to do then.

    Which queries fail is decided by their hash, so equal calls give equal results.
    """

    def __init__(self, retriever: HybridRetriever, share: float = 0.1, seed: int = 0) -> None:
        """`share` of distinct queries fail."""
        self.retriever = retriever
        self._unrelated = UnrelatedRetriever(retriever.passages, seed=seed)
        self._share, self._seed = share, seed

    def reseeded(self, seed: int) -> "UnreliableRetriever":
        """The same retriever with other failing queries."""
        return UnreliableRetriever(self.retriever, self._share, seed)

    def read(self, id: str, *, first: int | None, size: int, where: Filter = NO_FILTER) -> DocumentPart | None:
        """See `HybridRetriever.read`."""
        return self.retriever.read(id, first=first, size=size, where=where)

    def search_where(self, queries: Sequence[str], *, top_k: int, where: Filter) -> list[list[Hit]]:
        """As `search`. Unrelated passages need not fit the filter."""
        failing = {q for q in queries if random.Random(f"fail:{self._seed}:{q}").random() < self._share}
        found = iter(self.retriever.search_where([q for q in queries if q not in failing], top_k=top_k, where=where))
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
            strangers = [
                passage for passage in drawn if not passage.title or passage.title.lower() not in query.lower()
            ]
            results.append([Hit(passage, 0.0) for passage in strangers[:top_k]])
        return results


def corpus_of(retriever: Retriever) -> Retriever:
    """The retriever without failures that training injects, as an agent in use has it."""
    return corpus_of(retriever.retriever) if isinstance(retriever, UnreliableRetriever) else retriever


def replaced_words(retriever: Retriever, query: str) -> dict[str, tuple[str, ...]]:
    """See `WordReplacing.replaced`, of the corpus; nothing where it cannot tell, as one that is served elsewhere."""
    corpus = corpus_of(retriever)
    return corpus.replaced(query) if isinstance(corpus, WordReplacing) else {}
