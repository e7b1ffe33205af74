"""Strict grading, and therefore the reward: one well-formed answer naming one option, and never a default letter."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from medagent.protocol import citations, marked_letters
from medagent.records import Question, Rollout, StopReason

_BARE_LETTER = re.compile(r"(?:^|\bor\s+|\band\s+|[,;/]\s*)([A-J])(?=[.:),;/]|\s+(?:or|and)\b)")
_ARTICLE = re.compile(r"^(a|an|the) ")
_PUNCTUATION = re.compile(r"[^\w\s+<>=%.-]|(?<![\w])[.-](?!\w)|\.(?!\d)|(?<!\w)-(?=\D)")


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

    Accepted marks: a letter in parentheses anywhere ("doxycycline (B) [1]"), and a bare letter with ".", ")" or ":" at the start or in
    an enumeration ("B.", "B) doxycycline", "B. or C."), or alone ("B"). Marks that differ, name no option, or are missing: None.
    """
    text = answer.strip()
    named = {*marked_letters(text), *_BARE_LETTER.findall(text)}
    if not named and text in question.letters:
        named = {text} if text else set()
    return named.pop() if len(named) == 1 and named <= set(question.letters) else None


def normalise(text: str) -> str:
    """Lower case without a leading article, punctuation and extra space.

    Like SQuAD's normalisation (arXiv 1606.05250), but signs that carry meaning beside letters or digits stay: "Rh+" is not "Rh-".
    """
    plain = _PUNCTUATION.sub(" ", text.lower())
    return _ARTICLE.sub("", " ".join(plain.split()))


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
