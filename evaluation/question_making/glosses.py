"""Terms in brackets after what they mean, as "a small head size (microcephaly)".

How far the meaning reaches to the left is read off the index: it is the longest run of words that stands before the
same term in `SEEN` passages or more, after different words.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from evaluation.question_making.verbs import PLURAL, THIRD_PERSON

SEEN = 3
SAME_BEFORE = 0.7  # share of the occurrences with one word before it from which that word belongs to the meaning
LONGEST = 6  # words of a meaning
_GLOSS = re.compile(r"((?:[A-Za-z'’-]+ ){2,7})\(([a-z]{5,}(?: [a-z]{5,})?)\)")
_NO_START = frozenset(
    "look mutations change waste previously and or of in to for with by on from at as is are was has have "
    "that which who can may the their its his her "
    "including called such be cause causes when if but a an more people affected often also usually include not "
    "experience substance substances abnormally very increased decreased risk "
    "numbers number signaling area type types form forms condition disorder one two both some most lead leads result "
    "results develop develops being become becomes known loss other those these this severe mild".split()
)
_NO_END = frozenset(
    "and or of in to for with by on from at as is are the a an called small large low high abnormal abnormally "
    "away skills noncancerous cancerous flexible normal".split()
)
_NO_TERM = (
    "ing",
    "ed",
    "ly",
    "al",
    "ic",
    "ar",
    "ary",
    "ive",
    "ous",
    "able",
    "ible",
    "ile",
    "ign",
    "ant",
    "ent",
    "er",
    "es",
)


class Glosses:
    """The meanings of bracketed terms, counted over passages."""

    def __init__(self) -> None:
        self._before: dict[str, Counter[str]] = defaultdict(Counter)

    def add(self, text: str) -> None:
        """Count one passage."""
        met = {(term, phrase) for term, phrases in glosses_in(text) for phrase in phrases}
        for term, phrase in met:
            self._before[term][phrase] += 1

    def meaning(self, term: str, phrases: list[str]) -> str:
        """The longest of these phrases, which grow to the left, that is a meaning of the term; empty for none."""
        counts = self._before.get(term, Counter())
        for number in range(len(phrases) - 1, 0, -1):  # one word alone is rather a synonym or an adjective
            phrase = phrases[number]
            longer = max(
                (counts[other] for other in counts if other.endswith(f" {phrase}") and _one_longer(other, phrase)),
                default=0,
            )
            first = phrase.split(" ", 1)[0].lower()
            barred = first in _NO_START or first in PLURAL | THIRD_PERSON or first.endswith("ly") or " into " in phrase
            if counts[phrase] >= SEEN and longer <= SAME_BEFORE * counts[phrase] and not barred:
                return phrase
        return ""


def _one_longer(other: str, phrase: str) -> bool:
    return other.count(" ") == phrase.count(" ") + 1


def glosses_in(text: str) -> Iterator[tuple[str, list[str]]]:
    """(term, runs of words before its bracket, shortest first)."""
    for match in _GLOSS.finditer(text):
        words, term = match.group(1).split(), match.group(2)
        if term.endswith(_NO_TERM) or words[-1].lower() in _NO_END:
            continue
        yield term, [" ".join(words[-size:]) for size in range(1, min(len(words), LONGEST) + 1)]
