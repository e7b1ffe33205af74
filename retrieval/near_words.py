"""Words of a query that no passage has, and the nearest words that some passages have: typing errors, lost accents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from rapidfuzz import process
from rapidfuzz.distance import OSA

SHORTEST, LONG = 5, 9  # letters from which one letter may differ, and two
MOST = 3  # words for one


class NearWords:
    """Finds words of a vocabulary near a word that it lacks.

    Near is a word of the same first letter that differs by one letter more, less, other or swapped; of long words two
    may differ (Damerau 1964; optimal string alignment). Only the nearest count.
    """

    def __init__(self, vocabulary: Mapping[str, int], count: Callable[[int], int]) -> None:
        """`vocabulary` gives each word its number, and `count` for a number in how many passages the word is."""
        self._vocabulary, self._count = vocabulary, count
        self._by_letter: dict[str, list[str]] | None = None
        self.near = lru_cache(maxsize=10_000)(self._near)

    def _near(self, word: str) -> tuple[str, ...]:
        """Three words at most, those of most passages first; none for short words and for numbers."""
        if len(word) < SHORTEST or not word.isalpha():
            return ()
        if self._by_letter is None:
            self._by_letter = {}
            for known in self._vocabulary:
                if len(known) >= SHORTEST - 1 and known.isalpha():
                    self._by_letter.setdefault(known[0], []).append(known)
        most = 2 if len(word) >= LONG else 1
        found = process.extract(
            word, self._by_letter.get(word[0], ()), scorer=OSA.distance, score_cutoff=most, limit=None
        )
        if not found:
            return ()
        least = min(distance for _, distance, _ in found)
        nearest = [known for known, distance, _ in found if distance == least]
        return tuple(sorted(nearest, key=lambda known: (-self._count(self._vocabulary[known]), known))[:MOST])
