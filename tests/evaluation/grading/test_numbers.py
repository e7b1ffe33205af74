"""Numbers with range, tolerance and units, from the file of questions to the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from medagent.evaluation.benchmarks import JsonlBenchmark
from medagent.evaluation.grading.grade import Verdict, grade
from medagent.evaluation.metrics import report_mode, summarize
from medagent.evaluation.predictions import Prediction
from medagent.evaluation.rollout_files import rollout_from
from medagent.evaluation.run import Plan, run_plan
from medagent.protocol import TagProtocol
from medagent.types import Question, Rollout, StopReason, Turn
from tests.evaluation.support import scripted


def asked(folder: Path, **row: Any) -> Question:
    (folder / "q.jsonl").write_text(json.dumps({"question": "How much?", "form": "number", **row}), encoding="utf-8")
    (question,) = JsonlBenchmark(str(folder / "q.jsonl")).questions()
    return question


def replied(question: Question, answer: str, sample: int = 0) -> Rollout:
    turn = Turn((), (), f"<answer>{answer}</answer>", answer=answer)
    return Rollout(question, (), (turn,), StopReason.ANSWERED, sample=sample)


def read(question: Question, answer: str) -> tuple[Verdict, bool]:
    result = grade(replied(question, answer))
    return result.verdict, result.lenient_correct


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("500 mg", "0.5 g [1]"),
        ("500 mg", "The dose is 500 mg (0.5 g)."),
        ("500 mg", "500-mg"),
        ("0.5", ".50"),
        ("0.5", "1/2"),
        ("0.5", "\u00bd"),
        ("0.5", "50%"),
        ("50%", "0.5"),
        ("50", "50 %"),
        ("1500 mg", "1,500 mg"),
        ("1500 mg", "1\u202f500 mg"),
        ("0.5 g", "0,5 g"),
        ("1000000", "1,000,000"),
        ("500 mcg", "500 \u00b5g"),
        ("500 \u03bcg", "0.5 mg"),
        ("500 ug", "500 micrograms"),
        ("303", "303 mmol/l"),
        ("5 mmol/l", "5 mM"),
        ("5 mmol/l", "0.005 mol per liter"),
        ("3.5 x 10^9/l", "3500/\u00b5l"),
        ("3.5 \u00d7 10\u2079/L", "3500 cells per mm3"),
        ("2.4 million units", "2,400,000 IU"),
        ("4 mU/l", "4 \u00b5IU/ml"),
        ("37 \u00b0C", "98.6 \u00b0F"),
        ("90 ml/min/1.73 m2", "90 mL/min/1.73 m\u00b2"),
        ("25 kg/m^2", "25.0 kg/m\u00b2"),
        ("72 /min", "72 beats per minute"),
        ("2 weeks", "14 days"),
        ("1 year", "12 months"),
        ("15 mg/kg/day", "15 mg per kg per day"),
        ("-5", "\u22125"),
        ("310", "not 303 but 310"),
    ],
)
def test_equal_numbers_are_right(tmp_path: Path, gold: str, answer: str) -> None:
    assert read(asked(tmp_path, answer=gold), answer) == (Verdict.CORRECT, True)


@pytest.mark.parametrize(
    ("gold", "answer", "verdict"),
    [
        ("500 mg", "500 g", Verdict.WRONG),
        ("500 mg", "500 mmol", Verdict.WRONG),
        ("500 mg", "500 mg/kg", Verdict.WRONG),
        ("5.5 mmol/l", "99 mg/dl", Verdict.WRONG),
        ("3 mEq/l", "3 mmol/l", Verdict.WRONG),
        ("1 year", "365 days", Verdict.WRONG),
        ("5 mM", "5 mm", Verdict.WRONG),
        ("0.5", "0.05", Verdict.WRONG),
        ("1500", "1.5", Verdict.WRONG),
        ("5 mg", "5 to 10 mg", Verdict.MULTIPLE),
        ("5 mg", "not 5 mg", Verdict.UNPARSED),
        ("5 mg", "< 5 mg", Verdict.UNPARSED),
        ("5 mg", "at least 5 mg", Verdict.UNPARSED),
        ("12", "vitamin B12", Verdict.UNPARSED),
        ("12", "a dozen", Verdict.UNPARSED),
        ("12", "N/A", Verdict.ABSTAINED),
        ("12", "I don't know", Verdict.ABSTAINED),
    ],
)
def test_other_numbers_are_wrong_in_both_columns(tmp_path: Path, gold: str, answer: str, verdict: Verdict) -> None:
    assert read(asked(tmp_path, answer=gold), answer) == (verdict, False)


def test_a_number_without_its_unit_is_right_leniently(tmp_path: Path) -> None:
    assert read(asked(tmp_path, answer="500 mg"), "500") == (Verdict.WRONG, True)
    assert read(asked(tmp_path, answer="50%"), "50") == (Verdict.WRONG, True)


def test_of_two_numbers_the_last_is_the_lenient_one(tmp_path: Path) -> None:
    question = asked(tmp_path, answer="5 mg")
    assert read(question, "First 10 mg, then 5 mg") == (Verdict.MULTIPLE, True)
    assert read(question, "First 5 mg, then 10 mg") == (Verdict.MULTIPLE, False)


@pytest.mark.parametrize(
    ("row", "right", "wrong"),
    [
        ({"answer": "303", "lower": 290, "upper": 315}, ["290", "303.2", "315 mmol/l"], ["289.9", "316"]),
        ({"answer": 303, "tolerance": 2}, ["301", "305"], ["300.9", "305.1"]),
        ({"answer": "200 mg", "tolerance": "5%"}, ["190 mg", "0.21 g"], ["189 mg", "0.22 g"]),
        ({"answer": "0.1", "tolerance": 0.2}, ["0.3", "-0.1"], ["0.31"]),
        ({"answer": "1 l", "lower": 0.9}, ["900 ml", "5 l"], ["899 ml"]),
        ({"answer": "37 \u00b0C", "lower": 36, "upper": 38}, ["97 \u00b0F"], ["96 \u00b0F"]),
        ({"answer": ["5 mg", "5 ml"]}, ["0.005 g", "5 cc"], ["6 ml"]),
    ],
)
def test_a_range_and_a_tolerance_are_in_the_answers_unit(
    tmp_path: Path, row: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    question = asked(tmp_path, **row)
    assert [read(question, answer)[0] for answer in right] == [Verdict.CORRECT] * len(right)
    assert [read(question, answer)[0] for answer in wrong] == [Verdict.WRONG] * len(wrong)


def test_numbers_are_asked_graded_and_kept(tmp_path: Path) -> None:
    question = asked(tmp_path, answer="500 mg", tolerance=1)
    agent = scripted(lambda read, turn: f"<answer>{'0.5 g' if 'one number and its unit' in read else '?'}</answer>")
    agent.protocol = TagProtocol()
    run_plan(agent, [question], Plan(), tmp_path / "out", identity={})
    (kept,) = (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()
    rollout = rollout_from(json.loads(kept))
    assert rollout.question == question
    summary = summarize([rollout])
    assert (summary.overall.accuracy, summary.measures) == (1.0, {})


def test_equal_numbers_are_one_vote(tmp_path: Path) -> None:
    question = asked(tmp_path, answer="500 mg")
    answers = ["0.5 g", "2 g", "500 mg", "3 g"]
    sampling = report_mode(
        [Prediction("search", 0, replied(question, answer, n), None) for n, answer in enumerate(answers)]
    ).sampling
    assert sampling is not None
    assert (sampling.majority_vote, sampling.tied) == (1.0, 0.0)
