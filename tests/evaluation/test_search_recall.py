"""Recall of the agent's searches: by hand, beside the question as its own query, in predictions and reports."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from medagent.evaluation.metrics import report_mode
from medagent.evaluation.modes import Mode
from medagent.evaluation.predictions import Prediction
from medagent.evaluation.reports.tables import recall_table, tables
from medagent.evaluation.run import Plan, run_plan
from medagent.evaluation.search_recall import SearchRecall, question_rankings, recall_of, report_recall
from medagent.retrieval.controls import NoRetriever
from medagent.retrieval.passages import Hit, Passage
from medagent.types import Question, Rollout, StopReason, Turn
from tests.evaluation.support import scripted

A, B = "a" * 16, "b" * 16  # hashes of two texts
QUESTION = Question("q", "What?", answer="x", gold_passage_ids=(f"pubmed:1#{A}", f"pubmed:1#{B}", "pubmed:2#3"))


def passage(name: str, document: str = "") -> Passage:
    return Passage(name, "", "text", document=document)


def shown(*turns: Sequence[Passage], question: Question = QUESTION) -> Rollout:
    searches = [Turn((1,), (0.0,), "", query="x", hits=tuple(Hit(each, 1.0) for each in turn)) for turn in turns]
    return Rollout(question, (1,), (*searches, Turn((2,), (0.0,), "", answer="x")), StopReason.ANSWERED)


def test_recall_by_hand() -> None:
    rollout = shown([passage(f"pubmed:1#{A}"), passage("other")], [passage(f"pubmed:1#{A}"), passage("pubmed:2#3")])
    ranking = [passage("other"), passage(f"pubmed:1#{B}", "pubmed:1"), passage("pubmed:9"), passage("pubmed:2#3")]
    # Three distinct passages were shown: 2 of 3 gold ones, of both documents. The question's first three have 1 and 1.
    assert recall_of(rollout, ranking, top_k=4) == SearchRecall(3, 2 / 3, 1.0, 1 / 3, 1 / 2)


def test_the_same_text_of_another_document_is_the_gold_passage_and_not_its_document() -> None:
    found = recall_of(shown([passage(f"pubmed:8#{A}", "pubmed:8")]), [], top_k=4)
    assert (found.passages, found.documents) == (1 / 3, 0.0)


def test_a_number_behind_the_sign_is_a_part_and_no_hash() -> None:
    assert recall_of(shown([passage("pubmed:8#3")]), [], top_k=4).passages == 0
    whole = Question("q", "?", gold_passage_ids=("pmid:5",))
    found = recall_of(shown([passage("pmid:5#2", "pmid:5")], question=whole), [], top_k=4)
    assert (found.passages, found.documents) == (1.0, 1.0), "a part of a gold document that the index has cut"


def test_without_a_search_nothing_is_shown_and_one_search_for_the_question_counts() -> None:
    ranking = [passage(f"pubmed:1#{A}"), passage("pubmed:2#3")]
    assert recall_of(shown(), ranking, top_k=1) == SearchRecall(0, 0.0, 0.0, 1 / 3, 1 / 2)
    two = shown([passage("x"), passage("y")])
    assert recall_of(two, ranking, top_k=1).question_passages == 2 / 3
    assert recall_of(two, ranking[1:], top_k=4).question_passages == 1 / 3, "a shorter ranking counts as it is"


class Watched:
    """Keeps what it was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Hit]]:
        self.calls.append((len(queries), top_k))
        return [[Hit(passage(f"of {query}"), 1.0)] for query in queries]


def test_rankings_are_asked_in_batches_for_questions_with_gold_passages() -> None:
    questions = [Question(f"q{n}", f"Q {n}?", gold_passage_ids=("p",) if n else ()) for n in range(301)]
    retriever = Watched()
    found = question_rankings(retriever, questions, most=7)
    assert retriever.calls == [(256, 7), (44, 7)]
    assert len(found) == 300
    assert found["q300"] == [passage("of Q 300?")]
    assert question_rankings(NoRetriever(), questions, most=7) == {}


def test_the_report_has_means_and_the_difference_by_question() -> None:
    report = report_recall([SearchRecall(2, 1.0, 1.0, 0.5, 0.0), SearchRecall(4, 0.5, 1.0, 0.5, 1.0)])
    assert report is not None
    assert report["shown"] == 3
    assert (report["passages"].value, report["question_passages"].value, report["passages_gain"].value) == (
        0.75,
        0.5,
        0.25,
    )
    assert (report["documents"].value, report["question_documents"].value, report["documents_gain"].value) == (
        1.0,
        0.5,
        0.5,
    )
    assert (report["passages_gain"].ci_low, report["passages_gain"].ci_high, report["passages_gain"].n) == (0.0, 0.5, 2)
    assert report_recall([]) is None


GOLD = [Question(f"g{n}", f"Gold {n}?", ("u", "v"), "A", gold_passage_ids=(f"gold {n}",)) for n in range(2)]


class Finds:
    """Finds the gold passage for a query that names it, and another one for any other query."""

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Hit]]:
        return [[Hit(passage(query if query.startswith("gold") else "other"), 1.0)][:top_k] for query in queries]


def script(read: str, turn: int) -> str:
    return "<search>gold 0</search>" if turn == 0 else "<answer>(A)</answer>"


def test_predictions_and_reports_tell_the_recall(tmp_path: Path) -> None:
    agent = scripted(script, retriever=Finds())
    rankings = question_rankings(agent.retriever, GOLD, most=4)
    plan = Plan((Mode.SEARCH, Mode.SINGLE_SHOT, Mode.CLOSED_BOOK))
    predictions = run_plan(agent, GOLD, plan, tmp_path, identity={}, rankings=rankings)
    assert [p.recall.passages if p.recall else None for p in predictions] == [1.0, 0.0, 0.0, 0.0, None, None]
    rows = [json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines()]
    assert rows[0]["search_recall"]["question_passages"] == 0.0
    assert "search_recall" not in rows[-1]
    again = run_plan(agent, GOLD, plan, tmp_path, identity={}, rankings=rankings)
    assert [p.recall for p in again] == [p.recall for p in predictions], "read from the file"
    reports = {mode: report_mode([p for p in predictions if p.mode == mode.value]) for mode in plan.modes}
    table = {row[0]: row[1:] for row in recall_table(reports).rows}
    assert table["passages shown per question (k)"] == ("1.0", "1.0", "-")
    assert table["gold passages, recall at k (n = 2)"][0].startswith("50.0% [")
    assert table["gold passages, the question as query (n = 2)"] == ("0.0% [0.0, 0.0]", "0.0% [0.0, 0.0]", "-")
    assert table["gold passages, searches less question (n = 2)"][0] == "+50.0% [+0.0, +100.0]"
    assert recall_table(reports).title in {each.title for each in tables(reports, GOLD)}
    assert reports[Mode.SEARCH].to_json()["search_recall"]["passages"]["value"] == 0.5
    assert reports[Mode.CLOSED_BOOK].to_json()["search_recall"] is None


def test_a_prediction_of_a_run_without_recall_is_still_read() -> None:
    row = Prediction("search", 0, shown(), None).to_json()
    assert "search_recall" not in row
    assert Prediction.from_json(row).recall is None
    with_recall = Prediction("search", 0, shown(), None, SearchRecall(1, 0.5, 0.5, 0.0, 0.0))
    assert Prediction.from_json(json.loads(json.dumps(with_recall.to_json()))).recall == with_recall.recall


@pytest.mark.parametrize("mode", [Mode.UNRELATED, Mode.GOLD])
def test_modes_that_do_not_search_the_corpus_have_none(tmp_path: Path, mode: Mode) -> None:
    agent = scripted(script, retriever=Finds())
    held = [passage(f"gold {n}") for n in range(20)]
    evidence = {each.id: each for each in held}
    predictions = run_plan(
        agent, GOLD, Plan((mode,)), tmp_path, identity={}, corpus=held, evidence=evidence, rankings={"g0": [], "g1": []}
    )
    assert [p.recall for p in predictions] == [None, None]
