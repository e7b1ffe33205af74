"""Which kind of thing a question asks for (a treatment, a cause, a dose), and whether a text tells it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

import yaml

from medagent.evidence.words import folded

# Before these a question says what it asks for; after them, of what.
_OF_WHICH = re.compile(r"\b(?:whose|that|who|which (?:is|are|has|have)|caused by|results? from)\b")

_WITH_A = re.compile(r"\b(?:disease|condition|disorder|syndrome|infection|illness) (?:with|in which|where)\b")


@dataclass(frozen=True)
class QuestionKind:
    """A kind of question by its words, see question_kinds.yaml."""

    name: str
    asked: re.Pattern[str]
    said: re.Pattern[str]
    needed: bool = False
    follow_up: str = ""
    of: str = ""


@lru_cache(maxsize=1)
def question_kinds() -> tuple[QuestionKind, ...]:
    """The kinds of the packaged file."""
    rows = yaml.safe_load(files("medagent.evidence").joinpath("question_kinds.yaml").read_text(encoding="utf-8"))
    return tuple(
        QuestionKind(
            row["kind"],
            re.compile(row["asked"], re.IGNORECASE),
            re.compile(row["said"], re.IGNORECASE),
            row.get("needed", False),
            row.get("follow_up", ""),
            row.get("of", ""),
        )
        for row in rows
    )


def asked_for(question: str) -> tuple[QuestionKind, ...]:
    """The kinds of what a question asks for; those of its description of a subject are none.

    >>> [kind.name for kind in asked_for("Which drug treats the disease whose sign is Koplik spots?")]
    ['treatment']
    """
    for part in (what_is_asked(question), folded(question)):
        found = tuple(kind for kind in question_kinds() if kind.asked.search(part))
        if found:
            return found
    return ()


def what_is_asked(question: str) -> str:
    """The question, folded, up to where it describes its subject.

    >>> what_is_asked("Which drug treats the disease whose sign is swelling without hives?")
    'which drug treats the disease '
    """
    plain = folded(question)
    ends = [found.start() for pattern in (_OF_WHICH, _WITH_A) if (found := pattern.search(plain))]
    return plain[: min(ends, default=len(plain))]


def describes(question: str) -> bool:
    """Whether a question describes its subject instead of naming it: "the disease whose sign is ..."."""
    plain = folded(question)
    return bool(_OF_WHICH.search(plain) or _WITH_A.search(plain))


def tells(text: str, kinds: tuple[QuestionKind, ...]) -> bool:
    """Whether a text tells something of one of the kinds, and of all that are needed; true where no kind is known.

    "How is gout treated in pregnancy?" needs both: pregnancy alone tells of no treatment.
    """
    plain = folded(text)
    told = [kind for kind in kinds if kind.said.search(plain)]
    asked = [kind for kind in kinds if not kind.needed] or list(kinds)
    return not kinds or (any(kind in told for kind in asked) and all(kind in told for kind in kinds if kind.needed))


def without_kinds(question: str) -> str:
    """The question with spaces for the words of any kind; its other words stay where they are.

    >>> without_kinds("Which drug treats gout?").split()
    ['Which', 'gout?']
    """
    for kind in question_kinds():
        question = kind.asked.sub(lambda found: " " * len(found[0]), question)
    return question
