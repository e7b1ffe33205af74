"""Grading of rollouts, and therefore the reward. The strict reading decides; the lenient one is reported beside it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from evaluation.grading.option_named import Outcome, normalise, read_answer, read_reply
from medagent.protocol import citations
from medagent.types import Rollout, StopReason


class Verdict(StrEnum):
    """The outcome of a rollout's answer."""

    CORRECT = "correct"
    WRONG = "wrong"
    UNPARSED = "unparsed"  # answered, but naming no option
    MULTIPLE = "multiple"  # answered, naming several
    ABSTAINED = "abstained"  # declined to choose
    NO_ANSWER = "no_answer"  # stopped before an answer; the stop reason says whether a limit did it


_VERDICTS = {
    Outcome.UNPARSED: Verdict.UNPARSED,
    Outcome.MULTIPLE: Verdict.MULTIPLE,
    Outcome.ABSTAINED: Verdict.ABSTAINED,
    Outcome.TRUNCATED: Verdict.UNPARSED,
}


@dataclass(frozen=True)
class Grade:
    """The verdict of one rollout, and what was read in its answer.

    `letter` and `lenient_letter` are the options named strictly and leniently, None where none or several are. `cited`
    are the numbers of cited passages that were shown.
    """

    verdict: Verdict
    letter: str | None
    lenient_letter: str | None
    lenient_correct: bool
    cited: tuple[int, ...]

    @property
    def correct(self) -> bool:
        """True for the right option alone."""
        return self.verdict is Verdict.CORRECT

    @property
    def parsed(self) -> bool:
        """True where the answer names one option, right or wrong."""
        return self.verdict in (Verdict.CORRECT, Verdict.WRONG)


def grade(rollout: Rollout) -> Grade:
    """Grade a rollout against its question.

    Open questions (no options) are graded by normalised exact match with any accepted answer.
    """
    question, answer = rollout.question, rollout.answer
    if rollout.stop_reason is not StopReason.ANSWERED or answer is None:
        return Grade(Verdict.NO_ANSWER, None, None, False, ())
    shown = len(rollout.hits)
    cited = tuple(number for number in citations(answer) if 1 <= number <= shown)
    if not question.options:
        body = normalise(without_citations(answer))
        right = body in {normalise(text) for text in (question.answer, *question.aliases)}
        verdict = (Verdict.CORRECT if right else Verdict.WRONG) if body else Verdict.UNPARSED
        return Grade(verdict, None, None, verdict is Verdict.CORRECT, cited)
    reading = read_answer(answer, question.letters, question.options)
    lenient = reading.lenient or read_reply(answer, question.letters, question.options).lenient
    if reading.strict is None:
        verdict = _VERDICTS[reading.outcome]
    else:
        verdict = Verdict.CORRECT if reading.strict == question.answer else Verdict.WRONG
    return Grade(verdict, reading.strict, lenient, lenient == question.answer, cited)


def without_citations(answer: str) -> str:
    """An answer's text alone."""
    return re.sub(r"\[\d+\]", " ", answer)
