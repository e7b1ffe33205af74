"""Names that a corpus knows, and those near a misspelt one: "tracoma" may mean trachoma."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from rapidfuzz import process
from rapidfuzz.distance import OSA

from medagent.evidence.words import folded, named_words

MOST_NAMES = 3
SHORTEST = 4  # letters; of shorter words too many are near
LONGEST_NAME = 8  # words; longer titles are sentences


def edits_allowed(word: str) -> int:
    """How many letters may be wrong in a word: one in four, rounded up, and three at most."""
    return min(3, (len(word) + 3) // 4)


class Names:
    """The titles of a corpus, looked up by their words.

    Each distinct title is held once, with its words, some hundred bytes. Longer titles than `LONGEST_NAME` words are
    left out: they name no one thing.
    """

    def __init__(self, titles: Iterable[str]) -> None:
        self._titles: dict[str, frozenset[str]] = {}
        with_word: dict[str, list[str]] = defaultdict(list)
        spelt: dict[str, str] = {}
        for title in titles:
            words = named_words(title)
            if title in self._titles or not words or len(words) > LONGEST_NAME:
                continue
            self._titles[title] = frozenset(form for form, _ in words)
            for form, word in words:
                with_word[form].append(title)
                spelt.setdefault(folded(word), form)
        self._with_word, self._spelt = dict(with_word), spelt
        self._by_length: dict[int, list[str]] = defaultdict(list)
        for word in spelt:
            self._by_length[len(word)].append(word)

    def __len__(self) -> int:
        """How many titles there are."""
        return len(self._titles)

    def near(self, subject: Mapping[str, str], missing: Sequence[str]) -> list[str]:
        """Titles that the subject of a question may mean, the nearest first, three at most.

        `subject` are the question's words by their forms. `missing` are the forms that a passage lacks. Those that no
        title spells so may be misspelt. A title counts that has a word near one. Of equally near titles those with more
        of the other words come first, then the shorter.
        """
        known = {form for form, word in subject.items() if folded(word) in self._spelt}
        ranked: dict[str, tuple[float, int, int, str]] = {}
        for word in (folded(subject[form]) for form in missing if form not in known):
            for other, distance in self._words_near(word):
                for title in self._with_word[self._spelt[other]]:
                    words = self._titles[title]
                    rank = (distance - len(words & known), len(words), len(title), title)
                    ranked[title] = min(rank, ranked.get(title, rank))
        nearest = sorted(ranked, key=lambda title: ranked[title])
        spelt: dict[str, str] = {}
        for title in nearest:
            spelt.setdefault(folded(title), title)
        return list(spelt.values())[:MOST_NAMES]

    def _words_near(self, word: str) -> list[tuple[str, float]]:
        """Words within the allowed distance: insertions, deletions, substitutions and swaps of neighbours."""
        if len(word) < SHORTEST:
            return []
        allowed = edits_allowed(word)
        near: list[tuple[str, float]] = []
        for length in range(len(word) - allowed, len(word) + allowed + 1):
            found = process.extract(
                word, self._by_length.get(length, ()), scorer=OSA.distance, score_cutoff=allowed, limit=None
            )
            near += [(other, distance) for other, distance, _ in found if distance < 2 or other[0] == word[0]]
        return near
