"""The words of a query against those of an index: which count, and how much of a query a text has.

A word that no passage has stands for the nearest that some have: typing errors, lost accents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from rapidfuzz import process
from rapidfuzz.distance import OSA

from medagent.retrieval.synonyms import Synonyms

SHORTEST, VOWELS_FROM, LONG = 5, 8, 12  # letters of a word that may differ, in a vowel, in two letters
MOST = 3  # words for one
_VOWELS = str.maketrans("eiouy", "aaaaa")
_OPPOSITES = (("hyper", "hypo"), ("intra", "inter"), ("infra", "intra"), ("supra", "sub"), ("ante", "anti"))


class QueryWords:
    """What an index knows of the words of queries."""

    def __init__(
        self,
        groups: Callable[[str], list[list[str]]],
        words: Callable[[], Iterable[str]],
        count: Callable[[str], int],
        num_passages: int,
        synonyms: Synonyms | None = None,
    ) -> None:
        """`groups` is the analyser's, `words` gives the index's, and `count` in how many passages a word is."""
        self._synonyms = synonyms or Synonyms(())
        self._groups, self._words, self._count, self._num_passages = groups, words, count, num_passages
        self._by_letter: dict[str, list[str]] | None = None
        self.near = lru_cache(maxsize=10_000)(self._near)

    def searched(self, query: str, *, near_words: bool) -> list[list[str]]:
        """The words to search for, in the query's order, and the same with synonyms; the best of them counts."""
        return [
            [each for word in words for each in self._meant(word, near_words)]
            for words in self._synonyms.variants(self._tokens(query), query)
        ]

    def replaced(self, query: str) -> dict[str, tuple[str, ...]]:
        """The words of a query that no passage has, with those that stand for them; words as they are compared."""
        return {word: near for word in self._tokens(query) if not self._count(word) and (near := self.near(word))}

    def coverage(self, query: str, texts: Iterable[str]) -> list[float]:
        """How much of a query each text has: the share of its words, each weighted by how rare it is (0 to 1).

        The weight is BM25's idf, log(1 + (N - n + 0.5) / (n + 0.5)) with n of N passages having the word. A word that
        no passage has counts most, and a near one does not stand for it: it may be another drug. A compound counts as
        one word where it is joined, or by its parts. Of a query and the same with synonyms the best counts.
        """
        groups = self._groups(query)
        plain = [word for group in groups for word in group]
        others = [[[word] for word in words] for words in self._synonyms.variants(plain, query)[1:]]
        held = [set(self._tokens(text)) for text in texts]
        return [max(self._covered(some, words) for some in (groups, *others)) for words in held]

    def _covered(self, groups: Sequence[Sequence[str]], held: set[str]) -> float:
        total = covered = 0.0
        for group in {tuple(group) for group in groups}:
            *parts, joined = group
            weights = {part: self._idf(part) for part in parts or group}
            whole = sum(weights.values())
            total += whole
            covered += whole if joined in held else sum(weight for part, weight in weights.items() if part in held)
        return covered / total if total else 1.0

    def _meant(self, word: str, near_words: bool) -> tuple[str, ...]:
        return (near_words and not self._count(word) and self.near(word)) or (word,)

    def _idf(self, word: str) -> float:
        held = self._count(word)
        return math.log(1 + (self._num_passages - held + 0.5) / (held + 0.5))

    def _tokens(self, text: str) -> list[str]:
        return [word for group in self._groups(text) for word in group]

    def _near(self, word: str) -> tuple[str, ...]:
        """At most three words of the index near a word that it lacks, those of most passages first.

        Near is a word of the same first letter with one letter more, less or swapped (Damerau, 1964). A vowel may
        stand for another in words of eight letters and more, and two letters may be more or less in those of
        twelve. Other letters do not stand for one another: "dysphagia" is not "dysphasia". Nor do opposites, such as
        "hyper" and "hypo". Short words and numbers have none: another dose is no typing error.
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
        likely = [(known, distance) for known, distance, _ in found if _is_error(word, known, int(distance))]
        least = min((distance for _, distance in likely), default=0)
        nearest = [known for known, distance in likely if distance == least]
        return tuple(sorted(nearest, key=lambda known: (-self._count(known), known))[:MOST])


def _is_error(word: str, known: str, distance: int) -> bool:
    """Whether a word within the distance is likelier a typing error than another word."""
    pairs = [*_OPPOSITES, *((b, a) for a, b in _OPPOSITES)]
    if any(word.startswith(a) and known.startswith(b) for a, b in pairs):
        return False
    if distance > 1 or len(word) != len(known):
        return abs(len(word) - len(known)) == distance
    swapped = sorted(word) == sorted(known)
    return swapped or (len(word) >= VOWELS_FROM and word.translate(_VOWELS) == known.translate(_VOWELS))
