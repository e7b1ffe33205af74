"""Grading of rollouts, and therefore the reward. The strict reading decides; the lenient one is reported beside it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from evaluation.grading.open_answers import abstains, first_answer, list_score, rank_of_right, same
from evaluation.grading.option_named import Outcome, read_answer
from evaluation.grading.replies import read_reply
from medagent.answer_forms import entries, without_citations
from medagent.protocol import citations
from medagent.types import Question, Rollout, StopReason


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

    Open questions (no options) are graded by exact match with any right answer (`open_answers.same`). Of ranked answers
    the first decides, and the lenient reading takes any of the five. A list is correct where it names every item and
    nothing else.
    """
    question, answer = rollout.question, rollout.answer
    if rollout.stop_reason is not StopReason.ANSWERED or answer is None:
        return Grade(Verdict.NO_ANSWER, None, None, False, ())
    shown = len(rollout.hits)
    cited = tuple(number for number in citations(answer) if 1 <= number <= shown)
    if not question.options:
        verdict, lenient_correct = _open_verdict(question, answer)
        return Grade(verdict, None, None, lenient_correct, cited)
    reading = read_answer(answer, question.letters, question.options)
    lenient = reading.lenient or read_reply(answer, question.letters, question.options).lenient
    if reading.strict is None:
        verdict = _VERDICTS[reading.outcome]
    else:
        verdict = Verdict.CORRECT if reading.strict == question.answer else Verdict.WRONG
    return Grade(verdict, reading.strict, lenient, lenient == question.answer, cited)


def _open_verdict(question: Question, answer: str) -> tuple[Verdict, bool]:
    """The verdict of an open answer, and whether it is right leniently."""
    said = first_answer(question, answer)
    if question.form == "list":
        right = lenient = list_score(answer, question.items).f1 == 1
    else:
        right = same(said, question.golds)
        lenient = right or (
            question.form == "ranked" and rank_of_right(without_citations(answer), question.golds) is not None
        )
    if right:
        return Verdict.CORRECT, True
    if not entries(answer):
        return Verdict.UNPARSED, False
    return Verdict.ABSTAINED if abstains(said) else Verdict.WRONG, lenient
