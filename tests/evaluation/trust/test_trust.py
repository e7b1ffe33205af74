"""Coverage, what no passage contains, and evidence that is taken out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from medagent.agent import Job
from medagent.errors import InputError
from medagent.evaluation.metrics import report_mode, summarize
from medagent.evaluation.modes import Mode, job_for
from medagent.evaluation.run import Plan, run_plan
from medagent.retrieval.passages import Hit, Passage
from medagent.types import Question, Rollout, StopReason, Turn
from tests.evaluation.support import PASSAGES, QUESTIONS, scripted

QUESTION = Question("q", "What is given?", ("warfarin 5 mg", "heparin", "rest"), "A")
SHOWN = (Hit(Passage("p", "clots", "Heparin acts at once; warfarin needs 5 days."), 1.0),)


def answered(answer: str | None) -> Rollout:
    turns = (Turn((), (), "", query="x", hits=SHOWN), Turn((), (), answer or "", answer=answer))
    return Rollout(QUESTION, (), turns, StopReason.ANSWERED if answer else StopReason.MALFORMED)


def test_what_no_passage_contains_is_counted() -> None:
    found = summarize(
        [
            answered("(A) [1]"),  # the option says 5 mg, the passage 5 days
            answered("(B) [1]"),
            answered("(B), and ibuprofen"),
            answered("(C)"),  # names neither drug nor number
            answered("not in the passages"),
            answered(None),
        ]
    ).trust
    assert (found.naming, found.unsupported_drugs, found.unsupported_numbers, found.unsupported_doses) == (3, 1, 1, 1)
    assert (found.coverage.accuracy, found.coverage.n) == (pytest.approx(4 / 6), 6)
    assert (found.selective_accuracy.accuracy, found.selective_accuracy.n) == (0.25, 4)


class Shelf:
    """Finds the passage of every disease, the one that is asked first."""

    def search(self, queries, *, top_k: int) -> list[list[Hit]]:
        asked = [int(query.split()[-1].strip("?")) for query in queries]
        return [
            [Hit(PASSAGES[number], 1.0), *(Hit(p, 0.5) for p in PASSAGES if p is not PASSAGES[number])][:top_k]
            for number in asked
        ]


def finds_or_abstains(read: str, turn: int) -> str:
    if turn == 0:
        return f"<search>{read.split('treats ')[1].split('?')[0]}</search>"
    number = read.split("treats disease ")[1].split("?")[0]
    return "<answer>(A) [1]</answer>" if f"Drug {number} treats" in read else "<answer>not found</answer>"


def test_evidence_that_is_taken_out_is_never_shown(tmp_path: Path) -> None:
    modes = (Mode.SEARCH, Mode.WITHOUT_EVIDENCE)
    predictions = run_plan(
        scripted(finds_or_abstains, retriever=Shelf()), QUESTIONS, Plan(modes), tmp_path, identity={}, corpus=PASSAGES
    )
    found = {mode: report_mode([p for p in predictions if p.mode == mode.value]).summary for mode in modes}
    assert found[Mode.SEARCH].overall.accuracy == found[Mode.SEARCH].trust.coverage.accuracy == 1.0
    assert found[Mode.WITHOUT_EVIDENCE].trust.coverage.accuracy == 0.0
    assert found[Mode.WITHOUT_EVIDENCE].abstained == 20
    assert found[Mode.WITHOUT_EVIDENCE].grounding.gold_any == 0.0
    shown = [len(p.rollout.hits) for p in predictions]
    assert shown == [3] * 40  # others take the place of what is withheld


class All:
    """Finds the first of all passages, whatever is asked."""

    def __init__(self, passages: list[Passage]) -> None:
        self.hits = [Hit(passage, 1.0) for passage in passages]

    def search(self, queries, *, top_k: int) -> list[list[Hit]]:
        return [self.hits[:top_k] for _ in queries]


def shown_without(job: Job, passages: list[Passage]) -> list[str]:
    script = lambda read, turn: "<search>x</search>" if turn == 0 else "<answer>y</answer>"  # noqa: E731
    (rollout,) = scripted(script, retriever=All(passages)).run_all([job])
    return [hit.passage.id for hit in rollout.hits]


def test_a_document_is_withheld_whole_and_by_its_text() -> None:
    text = "0123456789abcdef"
    passages = [
        Passage("d1#a", "t", "a", document="d1"),
        Passage("d1#b", "t", "b", document="d1"),
        Passage(f"x#{text}", "t", "c"),
        Passage("d2", "t", "d"),
    ]
    assert shown_without(Job(QUESTION, withheld=frozenset(("d1#a", f"other#{text}"))), passages) == ["d2"]


def test_a_large_document_is_withheld_and_others_take_its_place() -> None:
    book = [Passage(f"digest{number}", "book", f"page {number}", document="book") for number in range(40)]
    others = [Passage(f"o{number}", "other", f"page {number}") for number in range(5)]
    question, evidence = replace(QUESTION, gold_passage_ids=("digest3",)), {"digest3": book[3]}
    settings = {"seed": 0, "temperature": 0.0, "sample": 0, "told": True}
    job = job_for(question, Mode.WITHOUT_EVIDENCE, evidence=evidence, **settings)
    assert job.withheld == {"digest3", "book"}
    assert shown_without(job, [*book, *others]) == ["o0", "o1", "o2"]


def test_questions_without_known_evidence_cannot_lose_it(tmp_path: Path) -> None:
    agent = scripted(finds_or_abstains)
    with pytest.raises(InputError, match="names no gold passage"):
        run_plan(
            agent, [replace(QUESTIONS[0], gold_passage_ids=())], Plan((Mode.WITHOUT_EVIDENCE,)), tmp_path, identity={}
        )
