"""Strict grading, and therefore the reward: one well-formed answer naming one option, and never a default letter."""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from enum import StrEnum

from medagent.protocol import citations, marked_letters
from medagent.records import Question, Rollout, StopReason

_BARE_LETTER = re.compile(r"\(?([A-J])\)?[.:)]?(?:\s.*)?", re.DOTALL)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


class Verdict(StrEnum):
    """What became of a rollout's answer."""

    CORRECT = "correct"
    WRONG = "wrong"
    UNPARSED = "unparsed"  # answered, but naming no option or several
    NO_ANSWER = "no_answer"  # stopped before an answer


@dataclass(frozen=True)
class Grade:
    """The verdict, the option named (None where none or several), and the passage numbers cited that were shown."""

    verdict: Verdict
    letter: str | None
    cited: tuple[int, ...]

    @property
    def correct(self) -> bool:
        """True for the right option alone."""
        return self.verdict is Verdict.CORRECT

    @property
    def parsed(self) -> bool:
        """True where the answer names one option, right or wrong."""
        return self.verdict in (Verdict.CORRECT, Verdict.WRONG)


def named_option(answer: str, question: Question) -> str | None:
    """The one option that an answer names, or None.

    Accepted: exactly one option letter in parentheses anywhere ("doxycycline (B) [1]"), or an answer that begins with a bare
    letter ("B", "B.", "B) doxycycline"). A letter that names no option, two letters, or none: None.
    """
    marked = marked_letters(answer)
    if len(marked) == 1:
        return marked[0] if marked[0] in question.letters else None
    if marked:
        return None
    bare = _BARE_LETTER.fullmatch(answer.strip())
    if bare is None or bare[1] not in question.letters:
        return None
    rest = answer.strip()[1:]
    # "A patient with ..." begins with an article, not with a letter that names an option.
    return bare[1] if not rest or rest[0] in ".:)" else None


def normalise(text: str) -> str:
    """Lower case without articles, punctuation and extra space (SQuAD's normalisation, arXiv 1606.05250)."""
    plain = "".join(" " if character in string.punctuation else character for character in text.lower())
    return " ".join(_ARTICLES.sub(" ", plain).split())


def grade(rollout: Rollout) -> Grade:
    """Grade a rollout against its question; open questions (no options) by normalised exact match."""
    question, answer = rollout.question, rollout.answer
    if rollout.stop_reason is not StopReason.ANSWERED or answer is None:
        return Grade(Verdict.NO_ANSWER, None, ())
    shown = len(rollout.hits)
    cited = tuple(number for number in citations(answer) if 1 <= number <= shown)
    if not question.options:
        body = normalise(re.sub(r"\[\d+\]", " ", answer))
        verdict = Verdict.CORRECT if body == normalise(question.answer) else Verdict.WRONG
        return Grade(verdict if body else Verdict.UNPARSED, None, cited)
    letter = named_option(answer, question)
    if letter is None:
        return Grade(Verdict.UNPARSED, None, cited)
    return Grade(Verdict.CORRECT if letter == question.answer else Verdict.WRONG, letter, cited)
