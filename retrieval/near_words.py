"""The words of a query against those of an index: which count, and how much of a query a text has.

A word that no passage has stands for the nearest that some have: typing errors, lost accents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from rapidfuzz import process
from rapidfuzz.distance import OSA

from retrieval.synonyms import Synonyms

SHORTEST, LONG = 5, 9  # letters from which one letter may differ, and two
MOST = 3  # words for one


class QueryWords:
    """What an index knows of the words of queries."""

    def __init__(
        self,
        tokens: Callable[[str], list[str]],
        words: Callable[[], Iterable[str]],
        count: Callable[[str], int],
        num_passages: int,
        synonyms: Synonyms | None = None,
    ) -> None:
        """`tokens` is the analyser's, `words` gives the index's, and `count` in how many passages a word is."""
        self._synonyms = synonyms or Synonyms((), tokens)
        self._tokens, self._words, self._count, self._num_passages = tokens, words, count, num_passages
        self._by_letter: dict[str, list[str]] | None = None
        self.near = lru_cache(maxsize=10_000)(self._near)

    def searched(self, query: str, *, near_words: bool) -> list[list[str]]:
        """The words to search for, in the query's order, and the same with synonyms; the best of them counts."""
        return [
            [each for word in words for each in self._meant(word, near_words)]
            for words in self._synonyms.variants(self._tokens(query))
        ]

    def coverage(self, query: str, texts: Iterable[str], *, near_words: bool) -> list[float]:
        """How much of a query each text has: the share of its words, each weighted by how rare it is (0 to 1).

        The weight is BM25's idf, log(1 + (N - n + 0.5) / (n + 0.5)) with n of N passages having the word. A word that
        no passage has counts most. Of a query and the same with synonyms the best counts.
        """
        variants = self._synonyms.variants(self._tokens(query))
        return [max(self._covered(words, set(self._tokens(text)), near_words) for words in variants) for text in texts]

    def _covered(self, words: Sequence[str], held: set[str], near_words: bool) -> float:
        meant = {word: set(self._meant(word, near_words)) for word in words}
        weights = {word: max(map(self._idf, same)) for word, same in meant.items()}
        total = sum(weights.values())
        return sum(weight for word, weight in weights.items() if meant[word] & held) / total if total else 1.0

    def _meant(self, word: str, near_words: bool) -> tuple[str, ...]:
        return (near_words and not self._count(word) and self.near(word)) or (word,)

    def _idf(self, word: str) -> float:
        held = self._count(word)
        return math.log(1 + (self._num_passages - held + 0.5) / (held + 0.5))

    def _near(self, word: str) -> tuple[str, ...]:
        """At most three words of the index near a word that it lacks, those of most passages first.

        Near is a word of the same first letter that differs by one letter more, less, other or swapped; of long words
        two may differ (Damerau, 1964; optimal string alignment). Only the nearest count. Short words and numbers have
        none: another dose is no typing error.
        """
        if len(word) < SHORTEST or not word.isalpha():
            return ()
        if self._by_letter is None:
            by_letter: dict[str, list[str]] = {}
            for known in self._words():
                if len(known) >= SHORTEST - 1 and known.isalpha():
                    by_letter.setdefault(known[0], []).append(known)
            self._by_letter = by_letter
        most = 2 if len(word) >= LONG else 1
        found = process.extract(
            word, self._by_letter.get(word[0], ()), scorer=OSA.distance, score_cutoff=most, limit=None
        )
        least = min((distance for _, distance, _ in found), default=0)
        nearest = [known for known, distance, _ in found if distance == least]
        return tuple(sorted(nearest, key=lambda known: (-self._count(known), known))[:MOST])
