"""What an answer leaves out: warnings, limits and recommendations on its subject, and none on another."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from medagent.cli.console import show_answer
from medagent.evaluation.evaluator import with_omissions
from medagent.evaluation.metrics import report_mode
from medagent.evaluation.modes import Mode
from medagent.evaluation.predictions import Prediction
from medagent.evaluation.reports.tables import trust_table
from medagent.evaluation.statistics import Accuracy
from medagent.evidence.answers import answered
from medagent.evidence.check import EvidenceCheck
from medagent.evidence.omissions import omitted
from medagent.evidence.synonyms import SynonymTable
from medagent.retrieval.batching import SearchBatcher
from medagent.retrieval.passages import Hit, Passage
from medagent.serving.openai_form import content_of
from medagent.types import Question, Rollout, StopReason, Turn
from tests.recording import Finds

CASES: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("omissions.yaml").read_text(encoding="utf-8"))
TABLE = SynonymTable.load()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["question"].replace(" ", "_"))
def test_what_an_answer_leaves_out_is_shown_and_nothing_of_another_subject(case: dict[str, Any]) -> None:
    passages = [Passage.make(title, text, section=section) for title, section, text in case["passages"]]
    found = [quote.text for quote in omitted(case["question"], case["answer"], passages, synonyms=TABLE)]
    assert [text for text in case["also"] if text not in " ".join(found)] == []
    assert [text for text in case["never"] if text in " ".join(found)] == []
    assert len(found) == len(case["also"]), found


LABEL = "Allopurinol tablets lower urate. Allopurinol is contraindicated in patients who had a severe rash from it."
PASSAGES = (Passage.make("gout", "Gout is treated with allopurinol."), Passage.make("allopurinol", LABEL))
WARNING = "Allopurinol is contraindicated in patients who had a severe rash from it."


def said(answer: str) -> Rollout:
    hits = tuple(Hit(passage, 1.0) for passage in PASSAGES)
    turns = (Turn((1,), (0.0,), "", query="gout", hits=hits), Turn((2,), (0.0,), "", answer=answer))
    return Rollout(Question("q", "Which drug treats gout?"), (5,), turns, StopReason.ANSWERED)


def test_a_shown_answer_comes_with_what_it_leaves_out_in_every_form() -> None:
    search, console = SearchBatcher(Finds(*PASSAGES), top_k=2, retries=0), Console(record=True, width=200)
    withheld, answer = (
        asyncio.run(answered(said(text), EvidenceCheck(), search)) for text in ("colchicine [1]", "allopurinol [1]")
    )
    assert (withheld.withheld, withheld.also) == (True, ())
    assert [quote.text for quote in answer.also] == [WARNING]
    show_answer(console, answer)
    for text in (content_of(answer.to_json()), console.export_text()):
        assert text.index("Stated in") < text.index("Also in these sources") < text.index(WARNING)


def test_evaluation_counts_what_shown_answers_leave_out() -> None:
    answers = ("allopurinol [1]", f"{WARNING[:-1]} [2]. Gout is treated with allopurinol [1].", "colchicine [1]")
    predictions = [Prediction("search", 0, said(answer), None) for answer in answers]
    found = with_omissions(report_mode(predictions), predictions)
    assert (found.omitting, found.omitted) == (Accuracy.of(1, 2), 1)
    table = {row[0]: row[1] for row in trust_table({Mode.SEARCH: found}).rows}
    assert table["shown answers that leave out a warning or advice on the subject"].startswith("50.0%")
