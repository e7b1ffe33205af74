"""Selects candidates: no two alike, no answer too often."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence

from medagent.evaluation.question_making.checks import Draft, words_of
from medagent.retrieval.analysis import Analyser

CONFLICT = "the same question has another answer elsewhere"
REPEATED = "near-duplicate of another question"
TOO_OFTEN = "its answer has enough questions"
OVER_LIMIT = "left out by --limit"
ALIKE = 0.8  # Jaccard similarity of the questions' tokens from which two are alike


def normal(text: str) -> str:
    """A text as answers are compared: its words in lower case."""
    return " ".join(words_of(text))


def select(
    candidates: Sequence[Draft], *, seed: int, per_answer: int, limit: int = 0, analyser: Analyser
) -> tuple[list[Draft], Counter[str]]:
    """The candidates taken, in the order of the seed, and how many were left out for which reason.

    `per_answer` bounds the questions of one answer, and `limit` all of them; 0 takes all. The order depends on the seed
    and the questions alone, so it is the same on any machine.
    """
    counts: Counter[str] = Counter()
    shuffled = sorted(candidates, key=lambda each: _rank(each, seed))
    tokens = {each.question: frozenset(analyser.tokens(each.question)) for each in shuffled}
    answers_of = defaultdict(set)
    for each in shuffled:
        answers_of[tokens[each.question]].add(normal(each.answer))
    taken: list[Draft] = []
    by_answer: dict[str, list[frozenset[str]]] = defaultdict(list)
    for each in shuffled:
        asked, answer = tokens[each.question], normal(each.answer)
        alike = any(_similar(asked, other) for other in by_answer[answer])
        if len(answers_of[asked]) > 1 and not _one_in_all(answers_of[asked]):
            counts[CONFLICT] += 1
        elif alike:
            counts[REPEATED] += 1
        elif len(by_answer[answer]) >= per_answer:
            counts[TOO_OFTEN] += 1
        elif limit and len(taken) >= limit:
            counts[OVER_LIMIT] += 1
        else:
            taken.append(each)
            by_answer[answer].append(asked)
    return taken, counts


def _rank(draft: Draft, seed: int) -> str:
    return hashlib.sha256(f"{seed}\n{draft.question}\n{draft.answer}".encode()).hexdigest()


def _similar(one: frozenset[str], other: frozenset[str]) -> bool:
    common = len(one & other)
    return common >= ALIKE * (len(one) + len(other) - common)


def _one_in_all(answers: set[str]) -> bool:
    """Whether the shortest answer stands in all the others, as "astrocytoma" in "an astrocytoma tumor"."""
    shortest = f" {min(answers, key=len)} "
    return all(shortest in f" {answer} " for answer in answers)
