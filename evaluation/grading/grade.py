"""Grading of rollouts, and therefore the reward. The strict reading decides; the lenient one is reported beside it."""

from dataclasses import dataclass
from enum import StrEnum

from medagent.answer_forms import citations, entries, without_citations
from medagent.evaluation.grading.numbers import is_right, numbers_in
from medagent.evaluation.grading.open_answers import abstains, first_answer, list_score, mentions, rank_of_right, same
from medagent.evaluation.grading.option_named import Outcome, Reading, read_answer
from medagent.evaluation.grading.replies import read_reply, read_selection, without_reasoning
from medagent.plain_protocol import PlainProtocol, searches, tagged_answers
from medagent.types import Question, Rollout, StopReason


class Verdict(StrEnum):
    """The outcome of a rollout's answer."""

    CORRECT = "correct"
    WRONG = "wrong"
    UNPARSED = "unparsed"  # names no option, or answers outside the protocol
    MULTIPLE = "multiple"  # names several options
    ABSTAINED = "abstained"  # declined to choose
    NO_ANSWER = "no_answer"  # wrote nothing, or searched last; the stop reason says whether a limit did it
    ERROR = "error"  # an endpoint failed or filtered it, or the search failed


@dataclass(frozen=True)
class Grade:
    """The verdict of one rollout, and what was read in its answer.

    `letter` and `lenient_letter` are the options named strictly and leniently, None where none or several are; with the
    form "select_all" all that are selected, as "A, C". `cited` are the numbers of cited passages that were shown.
    `refused`: it declined to answer at all.
    """

    verdict: Verdict
    letter: str | None
    lenient_letter: str | None
    lenient_correct: bool
    cited: tuple[int, ...]
    refused: bool = False

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

    Open questions (no options) are graded by exact match with any right answer (`open_answers.same`). The first of
    ranked answers decides, and the lenient reading takes any of the five. A list is correct if it names every item and
    nothing else, and so is a selection of options. A number needs a unit where the right answer has one; the lenient
    reading assumes it, and takes the last of several numbers.

    An answer of sentences that the agent named by numbers is right if they hold a right answer, or every entry of a
    list.

    A question without a gold answer is right where its environment calls the rollout a success.

    A last turn outside the protocol is never right. Its whole text is read leniently, as models write that were not
    trained for the protocol.
    """
    question, answer = rollout.question, rollout.answer
    if rollout.success and not (question.answer or question.items):
        return Grade(Verdict.CORRECT, None, None, True, ())
    if rollout.stop_reason is not StopReason.ANSWERED or answer is None:
        return _outside_the_protocol(rollout)
    shown = len(rollout.hits)
    cited = tuple(number for number in citations(answer) if 1 <= number <= shown)
    if not question.options:
        if rollout.turns[-1].quoted:
            right = all(mentions(answer, each) for each in question.items or (question.golds,))
            return Grade(Verdict.CORRECT if right else Verdict.WRONG, None, None, right, cited)
        verdict, lenient_correct = _open_verdict(question, answer)
        return Grade(verdict, None, None, lenient_correct, cited)
    whole = rollout.turns[-1].text
    if question.form == "select_all":
        reading = read_selection(answer, question.letters, question.options)
    elif not tagged_answers(whole) and PlainProtocol().parse(whole).answer == answer:
        reading = read_reply(whole, question.letters, question.options, last_line_asked=True)
    else:
        reading = read_answer(answer, question.letters, question.options)
    if reading.strict is not None:
        verdict = Verdict.CORRECT if reading.strict == question.answer else Verdict.WRONG
        return Grade(verdict, reading.strict, reading.strict, verdict is Verdict.CORRECT, cited)
    reply = _read(answer if tagged_answers(whole) else whole or answer, question)
    lenient = reading.lenient or reply.lenient
    verdict = Verdict.UNPARSED if reading.outcome is Outcome.TRUNCATED else Verdict(reading.outcome.value)
    if reply.refused and lenient is None:
        verdict = Verdict.ABSTAINED
    refused = verdict is Verdict.ABSTAINED and reply.refused
    return Grade(verdict, None, lenient, lenient == question.answer, cited, refused)


def _outside_the_protocol(rollout: Rollout) -> Grade:
    """The grade of a rollout that ended without an answer of the required form."""
    question, last = rollout.question, rollout.turns[-1] if rollout.turns else None
    if rollout.stop_reason.failed:
        return Grade(Verdict.ERROR, None, None, False, ())
    if last is None or last.query is not None or not last.text.strip() or searches(last.text):
        return Grade(Verdict.NO_ANSWER, None, None, False, ())
    if not question.options:
        text, cut_off = without_reasoning(last.text)
        *_, line = text.strip().splitlines() or [""]
        right = not cut_off and _open_verdict(question, (tagged_answers(text) or [line])[-1])[1]
        return Grade(Verdict.UNPARSED, None, None, right, ())
    reading = _read(last.text, question)
    verdict = Verdict.ABSTAINED if reading.outcome is Outcome.ABSTAINED else Verdict.UNPARSED
    right = reading.lenient == question.answer
    return Grade(verdict, None, reading.lenient, right, (), refused=reading.refused)


def _read(reply: str, question: Question) -> Reading:
    read = read_selection if question.form == "select_all" else read_reply
    return read(reply, question.letters, question.options)


def _open_verdict(question: Question, answer: str) -> tuple[Verdict, bool]:
    """The verdict of an open answer, and whether it is right leniently."""
    said = first_answer(question, answer)
    if question.form == "number" and (numbers := numbers_in(answer)):
        right = len(numbers) == 1 and is_right(numbers[0], question.golds, question.bounds)
        lenient = is_right(numbers[-1], question.golds, question.bounds, assume_unit=True)
        wrong = Verdict.MULTIPLE if len(numbers) > 1 else Verdict.WRONG
        return Verdict.CORRECT if right else wrong, lenient
    if question.form == "number":
        return Verdict.ABSTAINED if abstains(said) else Verdict.UNPARSED, False
    if question.form == "list":
        right = lenient = list_score(answer, question.items).f1 == 1
    else:
        right, ranked = same(said, question.golds), question.form == "ranked"
        lenient = right or (ranked and rank_of_right(without_citations(answer), question.golds) is not None)
    if right:
        return Verdict.CORRECT, True
    if not entries(answer):
        return Verdict.UNPARSED, False
    return Verdict.ABSTAINED if abstains(said) else Verdict.WRONG, lenient
