"""Where a text states a name: the clauses and sentences that hold all of it and do not deny it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from medagent.evidence.support import content_words, windows_of
from medagent.evidence.words import folded, forms
from medagent.retrieval.chunking import sentence_spans
from medagent.unsupported import named_in

_CLAUSE = re.compile(r"[,;:]\s+|\b(?:but|whereas|although|while|rather than|instead of|unlike|as opposed to|and not)\b")
_AFTER_NAME = re.compile(r"\b(?:but|whereas|although|while)\b|;\s+")
DENIAL = re.compile(
    r"\b(?:not|no|never|without|neither|nor|none|cannot|contraindicat\w*|avoid\w*|ineffective|useless|unsafe|harmful|"
    r"instead of|rather than|unlike|except|excluding|rul\w+ out|dangerous|no longer|least)\b|n['\u2019]t\b",
    re.IGNORECASE,
)
_QUESTION = re.compile(r"\?[\s\"'\u2019\u201d)\]]*$")  # a sentence that asks states nothing
SUPPOSED = re.compile(
    r"\b(?:(?:some|many|most|researchers|scientists|doctors|experts|physicians) (?:\w+ )?(?:believe|think|suspect)|"
    r"(?:is|are|was|were) (?:believed|thought|suspected)|(?:not|un)(?: yet)? ?(?:known|clear|certain|proven)|"
    r"(?:may|might|could) result from|possible causes?|one theory|theor(?:y|ies)|hypothes\w+|speculat\w+)\b",
    re.IGNORECASE,
)
_NUMBER_WITH_WORD = re.compile(r"\b(\d[\d.,]*)[\s-]+([^\W\d_]+)")


def denies(text: str) -> bool:
    """Whether a text denies, warns or excepts."""
    return bool(DENIAL.search(text))


def supposes(text: str) -> bool:
    """Whether a text gives what it says as a belief or a guess. "May" alone is none: "symptoms may include"."""
    return bool(SUPPOSED.search(text))


def stating_windows(name: str, text: str, *, denied: bool) -> list[str]:
    """The sentences of a text that state a name; `denied`: the question asks for what is denied.

    A clause that holds all words of the name decides whether it is denied, else the whole sentence. A sentence that
    points back takes the one before it along. Numbers stand with their units and the word after them.
    """
    wanted, named = forms(name), named_in(name)
    if not wanted:
        return []
    found = []
    for window in windows_of(text):
        if (
            _QUESTION.search(window)
            or not wanted <= forms(window)
            or named.beyond(named_in(window))
            or not _numbers_fit(name, window)
        ):
            continue
        own = re.compile(re.escape(name), re.IGNORECASE)  # "ECG without P waves" denies nothing
        if any(denies(own.sub(" ", each)) == denied for each in _deciding(wanted, window)):
            found.append(window)
    return found


def _deciding(wanted: frozenset[str], window: str) -> Sequence[str]:
    """The smallest parts of a sentence that hold all of the name, each with the word that opens its clause."""
    for border in (_CLAUSE, _AFTER_NAME):
        starts = [0, *(match.start() for match in border.finditer(window)), len(window)]
        clauses = [window[start:end] for start, end in itertools.pairwise(starts)]
        holding = [clause for clause in clauses if wanted <= forms(clause)]
        if holding:
            return holding
    return [window]


def _numbers_fit(name: str, window: str) -> bool:
    """Whether each number of the name stands before the same word in the window: "2 tablets" is not "2 weeks"."""
    plain = folded(window)
    for number, word in _NUMBER_WITH_WORD.findall(folded(name)):
        if named_in(f"{number} {word}").doses:
            continue  # compared with their units already
        stem = re.escape(word[: max(3, len(word) - 2)])
        if not re.search(rf"(?<![\d.,]){re.escape(number)}[\s-]+(?:\w+\s+)?{stem}", plain):
            return False
    return True


def near_sentences(text: str, claim: str) -> str:
    """The sentence of a text that shares most words with a claim, with its neighbours."""
    spans = sentence_spans(text) or [(0, len(text))]
    wanted = content_words(claim)
    best = max(range(len(spans)), key=lambda at: len(wanted & content_words(text[slice(*spans[at])])))
    return text[spans[max(0, best - 1)][0] : spans[min(len(spans) - 1, best + 1)][1]]
