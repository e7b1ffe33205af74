"""Whether passages state an answer, by the rules of words alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import Stemmer

from medagent.evidence.drugs_and_doses import named_in
from medagent.evidence.sentences import denies, stating_windows
from medagent.evidence.support import STOP, WORD, Item, Statement, windows_of
from medagent.evidence.words import asked_for, what_is_asked
from medagent.retrieval.passages import Passage

_EMPTY = frozenset("also do does did so such than then there these they may can will would most usually it".split())
_NEGATION = re.compile(r"\b(?:not|no|never|without|neither|nor|none|cannot|absent|rarely)\b|n't\b", re.IGNORECASE)
_ADJUNCT = re.compile(
    r"\b(?:in|for|of|during)\s+((?:[\w-]+\s*){1,4})(?=$|[.,;])|^(?:in|during)\s+((?:[\w-]+\s+){1,3})", re.IGNORECASE
)


@lru_cache(maxsize=4_096)
def _stems(text: str) -> frozenset[str]:
    words = [word for word in WORD.findall(text.lower()) if word not in STOP and word not in _EMPTY]
    return frozenset(Stemmer.Stemmer("english").stemWords(words))


@dataclass(frozen=True)
class LexicalRule:
    """Words alone.

    A name is stated by a sentence that has its words and does not deny it, unless the question asks for what is denied.
    A sentence is stated by one that has its word stems and numbers, and is denied if and only if it is. An adjunct
    ("in gout") may come from elsewhere.
    """

    label: ClassVar[str] = "rules"

    def judge_all(self, items: Sequence[Item]) -> list[bool]:
        """See `SupportJudge`."""
        return [self._states(statement, passages) for statement, passages in items]

    @staticmethod
    def _states(statement: Statement, passages: Sequence[Passage]) -> bool:
        if statement.name:
            return any(stating(statement.text, statement.question, passage.text) for passage in passages)
        text = "\n".join(passage.indexed_text for passage in passages)
        said = _NEGATION.sub(" ", statement.text)
        stems, adjuncts = _stems(said), _stems(" ".join(found[1] or found[2] for found in _ADJUNCT.finditer(said)))
        denied, named = bool(_NEGATION.search(statement.text)), named_in(statement.text)
        return bool(stems) and any(
            stems - adjuncts <= _stems(window)
            and stems <= _stems(text)
            and denied == bool(_NEGATION.search(window))
            and not named.beyond(named_in(window))
            for window in windows_of(text)
        )


def stating(name: str, question: str, text: str) -> list[str]:
    """The sentences of a text that state a name as the answer to a question."""
    denied = denies(what_is_asked(question))
    found = stating_windows(name, text, denied=denied)
    if any(kind.name == "lack" for kind in asked_for(question)):  # "does not make enough cortisol"
        found += stating_windows(name, text, denied=not denied)
    signed = _signed(name)
    return [window for window in found if signed <= _signed(window)]


def _signed(text: str) -> set[str]:
    """The words with a sign, as in "Rh-"."""
    return {word for word in WORD.findall(text.lower()) if word[-1] in "+-"}
