"""Does what is cited support what is said? A lexical rule, documented so that anyone can recompute it.

The claim of a multiple-choice answer is the text of the option it names. The claim of an open answer is the answer, or
the first of ranked answers. A passage *supports* a claim when every content word of the claim occurs in its title or
text. Words are compared in lower case, without stop words and a plural's "s".

Yes / no / maybe make no claim that words could support, so their citations are counted but not judged. The rule ignores
negation: it says that the passage speaks of the answer, not that it proves it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from evaluation.grading.grade import grade
from evaluation.grading.open_answers import first_answer
from medagent.types import LETTERS, Question, Rollout
from retrieval.passages import Hit

_WORD = re.compile(r"[^\W_]+(?:[+-](?![\w]))?")
_STOP = frozenset(
    (
        "a an and are as at be been by for from has have in into is it its of on or that the their this to was were "
        "which with"
    ).split()
)
DECISIONS = frozenset(("yes", "no", "maybe"))


@dataclass(frozen=True)
class Grounding:
    """Shares over a set of rollouts; None where nothing could be counted.

    `searched` are rollouts with a search. `gold_any` and `gold_all` are rollouts that were shown one, or all, of their
    gold passages. `citation_precision` is the share of cited passages that support the claim. `citation_recall` is the
    share of answers with a supporting citation. `cited_gold` is the share of answers whose cited passages contain the
    right answer, by the same rule.
    """

    searched: float
    gold_any: float | None
    gold_all: float | None
    answers_judged: int
    citation_precision: float | None
    citation_recall: float | None
    cited_gold: float | None


def content_words(text: str) -> frozenset[str]:
    """The words that carry meaning: lower case, no stop words, a plural's "s" dropped."""
    words = _WORD.findall(text.lower())
    return frozenset(word[:-1] if len(word) > 3 and word.endswith("s") else word for word in words if word not in _STOP)


def supports(hit: Hit, claim: str) -> bool:
    """Whether the passage contains every content word of the claim."""
    wanted = content_words(claim)
    return bool(wanted) and wanted <= content_words(hit.passage.indexed_text)


def claim_of(question: Question, letter: str | None, answer: str) -> str | None:
    """What an answer claims, None where it names no option or only decides yes or no."""
    if not question.options:
        return first_answer(question, answer)
    if letter is None:
        return None
    text = question.options[LETTERS.index(letter)]
    return None if text.lower() in DECISIONS else text


def ground(rollouts: Sequence[Rollout]) -> Grounding:
    """Count over rollouts."""
    known = [rollout for rollout in rollouts if rollout.question.gold_passage_ids]
    found = [(set(r.question.gold_passage_ids), {hit.passage.id for hit in r.hits}) for r in known]
    judged = cited = supporting = recalled = gold = 0
    for rollout in rollouts:
        result, hits = grade(rollout), rollout.hits
        claim = claim_of(rollout.question, result.letter, rollout.answer or "")
        if claim is None or not content_words(claim):
            continue
        judged += 1
        shown = [hits[number - 1] for number in result.cited]
        supported = [supports(hit, claim) for hit in shown]
        cited, supporting, recalled = cited + len(shown), supporting + sum(supported), recalled + any(supported)
        gold += any(supports(hit, text) for hit in shown for text in gold_texts(rollout.question))
    return Grounding(
        searched=sum(rollout.num_searches > 0 for rollout in rollouts) / max(1, len(rollouts)),
        gold_any=sum(bool(wanted & got) for wanted, got in found) / len(found) if found else None,
        gold_all=sum(wanted <= got for wanted, got in found) / len(found) if found else None,
        answers_judged=judged,
        citation_precision=supporting / cited if cited else None,
        citation_recall=recalled / judged if judged else None,
        cited_gold=gold / judged if judged else None,
    )


def gold_texts(question: Question) -> tuple[str, ...]:
    """The right answer in words: the gold option's text, or the gold answer and what else counts as right."""
    if question.options:
        return (question.options[LETTERS.index(question.answer)],)
    return question.golds
