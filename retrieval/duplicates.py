"""Hits that repeat a better one: overlapping chunks, syndicated pages, abstracts that two files hold."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from medagent.retrieval.passages import Passage

_WORD = re.compile(r"\w+")
SHINGLE = 3


class Repeats:
    """Remembers passages and tells whether another repeats one of them.

    Two passages repeat each other when they hold the same numbers, and the Jaccard similarity of their runs of three
    words is at least `threshold`. A dose or a date that differs is a difference, however long the rest.
    """

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._known: list[tuple[frozenset[tuple[str, ...]], Counter[str]]] = []

    def is_new(self, passage: Passage) -> bool:
        """Whether it repeats none before it; what is new is remembered."""
        words = _WORD.findall(passage.indexed_text.lower())
        shingles = frozenset(zip(*(words[i:] for i in range(SHINGLE)), strict=False)) or frozenset([tuple(words)])
        numbers = Counter(word for word in words if any(char.isdigit() for char in word))
        for known, known_numbers in self._known:
            # Similarity cannot exceed the ratio of the sizes, which costs nothing to see.
            small, large = sorted((len(known), len(shingles)))
            if small < self._threshold * large or numbers != known_numbers:
                continue
            common = len(known & shingles)
            if common >= self._threshold * (len(known) + len(shingles) - common):
                return False
        self._known.append((shingles, numbers))
        return True


def without_repeats(ranked: Iterable[tuple[Passage, float]], threshold: float) -> Iterator[tuple[Passage, float]]:
    """The (passage, score) pairs that repeat none before them; all of them where `threshold` is 0."""
    repeats = Repeats(threshold)
    return (pair for pair in ranked if not threshold or repeats.is_new(pair[0]))
