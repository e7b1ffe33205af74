"""The claims of answers, and whether the evidence was found and cited.

The claim of a multiple-choice answer is the text of the option it names. The claim of an open answer is the answer, or
the first of ranked answers. Yes / no / maybe make no claim, so their citations are not judged. Whether cited passages
support an answer is judged in `medagent.evidence.support`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from medagent.evaluation.grading.grade import Grade, grade
from medagent.evaluation.grading.open_answers import first_answer
from medagent.evidence.rules import LexicalRule
from medagent.evidence.support import Statement, Support, SupportJudge, content_words, statements_of, support_of
from medagent.retrieval.passages import Hit, names_found
from medagent.types import LETTERS, Question, Rollout

DECISIONS = frozenset(("yes", "no", "maybe"))


@dataclass(frozen=True)
class Grounding:
    """Shares over a set of rollouts; None where nothing could be counted.

    `searched` are rollouts with a search. `gold_any` and `gold_all` are rollouts that were shown one, or all, of their
    gold passages. `citation_precision` and `citation_recall` are ALCE's, over the `statements` of answers that claim
    something. `cited_gold` is the share of those answers whose cited passages state a right answer.
    """

    searched: float
    gold_any: float | None
    gold_all: float | None
    answers_judged: int
    statements: int
    citation_precision: float | None
    citation_recall: float | None
    cited_gold: float | None


# Of a closed book, in which nothing can be found or cited.
NO_PASSAGES = Grounding(0.0, None, None, 0, 0, None, None, None)


def states_gold(hits: Sequence[Hit], question: Question, judge: SupportJudge = LexicalRule()) -> bool:
    """Whether one of the passages states a right answer in words; never for yes, no and maybe."""
    golds = [text for text in gold_texts(question) if text.lower() not in DECISIONS] if question.answer else []
    items = [(Statement(gold, (), question.text, name=True), [hit.passage]) for hit in hits for gold in golds]
    return any(judge.judge_all(items))


def claim_of(question: Question, letter: str | None, answer: str) -> str | None:
    """The claim of an answer. None if it names no option, or only decides yes or no."""
    if not question.options:
        return first_answer(question, answer)
    if letter is None:
        return None
    text = "; ".join(question.options[LETTERS.index(each)] for each in letter.split(", "))
    return None if text.lower() in DECISIONS else text


def citations_of(rollout: Rollout, found: Grade, judge: SupportJudge) -> Support | None:
    """ALCE's counts of one graded answer; None where it claims nothing that words could support."""
    claim = claim_of(rollout.question, found.letter, rollout.answer or "")
    if claim is None or not content_words(claim):
        return None
    passages = [hit.passage for hit in rollout.hits]
    statements = statements_of(rollout.answer or "", claim, rollout.question.text, shown=len(passages))
    return support_of(statements, passages, judge)


def ground(rollouts: Sequence[Rollout], judge: SupportJudge = LexicalRule()) -> Grounding:
    """Count over rollouts."""
    known = [rollout for rollout in rollouts if rollout.question.gold_passage_ids]
    wanted = [set(rollout.question.gold_passage_ids) for rollout in known]
    shown = [names_found(names, (hit.passage for hit in r.hits)) for names, r in zip(wanted, known, strict=True)]
    judged = gold = 0
    total = Support()
    for rollout in rollouts:
        result, hits = grade(rollout), rollout.hits
        counted = citations_of(rollout, result, judge)
        if counted is None:
            continue
        judged, total = judged + 1, total + counted
        gold += states_gold([hits[number - 1] for number in result.cited], rollout.question, judge)
    return Grounding(
        searched=sum(rollout.num_searches > 0 for rollout in rollouts) / max(1, len(rollouts)),
        gold_any=sum(map(bool, shown)) / len(known) if known else None,
        gold_all=sum(map(set.__eq__, wanted, shown)) / len(known) if known else None,
        answers_judged=judged,
        statements=total.statements,
        citation_precision=total.counted / total.citations if total.citations else None,
        citation_recall=total.entailed / total.statements if total.statements else None,
        cited_gold=gold / judged if judged else None,
    )


def gold_texts(question: Question) -> tuple[str, ...]:
    """The right answer in words: the gold option's text, or the gold answer and what else counts as right."""
    if question.options:
        return tuple(question.options[LETTERS.index(letter)] for letter in question.right_letters)
    return question.golds
