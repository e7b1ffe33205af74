"""Terms in brackets after what they mean, as "a small head size (microcephaly)".

How far the meaning reaches to the left is read off the index: it is the longest run of words that stands before the
same term in `SEEN` passages or more, after different words.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from medagent.evaluation.question_making.verbs import PLURAL, THIRD_PERSON

SEEN = 3
SAME_BEFORE = 0.7  # share of the occurrences with one word before it from which that word belongs to the meaning
JOINED = 0.25  # share of the occurrences after "of" or "the" from which the meaning begins further left
LONGEST = 6  # words of a meaning
_GLOSS = re.compile(r"((?:[A-Za-z'’-]+ ){2,7})\(([a-z]{5,}(?: [a-z]{5,})?)\)")
_NO_START = frozenset(
    "under reach characterized syndrome identification look mutations change waste previously "
    "and or of in to for with by on from at as is are was has have "
    "that which who can may the their its his her "
    "including called such be cause causes when if but a an more people affected often also usually include not "
    "experience substance substances abnormally very increased decreased risk "
    "numbers number signaling area type types form forms condition disorder one two both some most lead leads result "
    "results develop develops being become becomes known loss other those these this severe mild".split()
)
_JOINING = frozenset("of in to for between the with on from at within around under about through".split())
_NOUNS_IN_ING = frozenset(
    "bleeding swelling yellowing drooping bulging scarring thinning hardening clouding wasting vomiting itching "
    "thickening narrowing stiffening softening ringing hearing wrinkling blistering peeling crying reddening".split()
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
        """The longest of these phrases, which grow to the left, that is a meaning of the term; empty for none.

        A meaning stands after different words, and seldom after one that joins it to what is before, such as "of".
        """
        counts = self._before.get(term, Counter())
        for phrase in reversed(phrases[1:]):  # one word alone is rather a synonym or an adjective
            often = counts[phrase]
            if often < SEEN or not _can_begin(phrase):
                continue
            longer = {other.split(" ", 1)[0].lower(): counts[other] for other in counts if _one_longer(other, phrase)}
            joined = sum(number for word, number in longer.items() if word in _JOINING)
            telling = [number for word, number in longer.items() if word not in ("a", "an")]
            if max(telling, default=0) <= SAME_BEFORE * often and joined <= JOINED * often:
                return phrase
        return ""


def _can_begin(phrase: str) -> bool:
    """Whether a phrase begins as a noun phrase, and has no verb in it that this module knows."""
    words = phrase.lower().split()
    first = words[0]
    return not (
        first in _NO_START
        or first in PLURAL | THIRD_PERSON
        or first.endswith("ly")
        or (first.endswith("ing") and first not in _NOUNS_IN_ING)
        or (first.endswith("ed") and words[1:2] == ["by"])
        or {"into", "is", "are", "their", "his", "her"}.intersection(words)
    )


def _one_longer(other: str, phrase: str) -> bool:
    return other.endswith(f" {phrase}") and other.count(" ") == phrase.count(" ") + 1


def glosses_in(text: str) -> Iterator[tuple[str, list[str]]]:
    """(term, runs of words before its bracket, shortest first)."""
    for match in _GLOSS.finditer(text):
        words, term = match.group(1).split(), match.group(2)
        if (term.endswith(_NO_TERM) and not term.endswith(("aly", "yly"))) or words[-1].lower() in _NO_END:
            continue
        yield term, [" ".join(words[-size:]) for size in range(1, min(len(words), LONGEST) + 1)]
