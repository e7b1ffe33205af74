"""Questions asked again with their options rotated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from medagent.evaluation.evaluator import evaluate
from medagent.evaluation.metrics import report_mode
from medagent.evaluation.modes import Mode, orders, rotate
from medagent.evaluation.predictions import Prediction
from medagent.evaluation.run import Plan, run_plan
from medagent.types import Question, Rollout, StopReason, Turn
from tests.evaluation.support import QUESTIONS, lookup_by_text, scripted


def test_rotations_expose_a_policy_that_always_answers_a(tmp_path: Path) -> None:
    agent = scripted(lambda read, turn: "<answer>(A)</answer>")
    predictions = run_plan(agent, QUESTIONS, Plan(rotations=True), tmp_path, identity={})
    rotations = report_mode(predictions).rotations
    assert rotations is not None
    assert rotations.accuracy == (1.0, 0.0, 0.0, 0.0)  # the right option stands first, then moves to the end
    assert (rotations.changed, rotations.n) == (1.0, 20)
    steady = run_plan(scripted(lookup_by_text()), QUESTIONS, Plan(rotations=True), tmp_path / "steady", identity={})
    found = report_mode(steady).rotations
    assert found is not None
    assert (found.accuracy, found.changed) == ((1.0,) * 4, 0.0)


def test_rotation_by_hand() -> None:
    question = Question("q", "?", ("w", "x", "y", "z"), "C")
    assert [(rotate(question, by).options, rotate(question, by).answer) for by in (0, 1, 3, 4)] == [
        (("w", "x", "y", "z"), "C"),
        (("x", "y", "z", "w"), "B"),
        (("z", "w", "x", "y"), "D"),
        (("w", "x", "y", "z"), "C"),
    ]


def test_rotations_of_questions_with_other_numbers_of_options_are_left_out(tmp_path: Path) -> None:
    questions = [*QUESTIONS[:4], Question("two", "What treats disease 9?", ("drug 9", "drug 1"), "A")]
    report = report_mode(run_plan(scripted(lookup_by_text()), questions, Plan(rotations=True), tmp_path, identity={}))
    assert report.rotations is not None
    assert (report.rotations.n, len(report.rotations.accuracy)) == (4, 4)


@pytest.mark.parametrize(
    ("options", "number"),
    [
        (("fever", "cough", "Both A and B", "None of the above"), 1),
        (("fever", "cough", "A or C", "rash"), 1),
        (("fever", "cough", "rash", "(A) and (C) are correct"), 1),
        (("fever", "cough", "rash", "All except B"), 1),
        (("fever", "cough", "rash", "B only"), 1),
        (("fever", "cough", "rash", "Neither A nor B"), 1),
        (("fever", "All of the above", "rash", "cough"), 1),
        (("fever", "cough", "rash", "None of the above"), 3),
        (("fever", "cough", "rash", "All of these"), 3),
        (("fever", "cough", "All of the above.", "None of the above."), 2),
        (("fever", "cough", "Both", "Neither"), 2),
        (("fever", "cough", "rash", "All of the above are correct"), 3),
        (("O", "A", "B", "AB"), 4),
        (("hepatitis A and B", "vitamin A", "none of these drugs", "A and B cells"), 4),
        (("all limbs", "one eye", "both kidneys", "no other"), 4),
        (("yes", "no", "maybe"), 3),
    ],
)
def test_options_that_speak_of_others_stay_in_place(options: tuple[str, ...], number: int) -> None:
    question = Question("q", "Which?", options, "A")
    assert orders(question) == number
    rotated = [rotate(question, by) for by in range(number)]
    assert len({each.options for each in rotated}) == number
    fixed = options[number:] if number > 1 else options[1:]
    assert {each.options[len(options) - len(fixed) :] for each in rotated} == {fixed}
    assert {each.options[each.letters.index(each.answer)] for each in rotated} == {options[0]}
    last = replace(question, answer=question.letters[-1])
    assert {each.options[each.letters.index(each.answer)] for each in (rotate(last, by) for by in range(number))} == {
        options[-1]
    }


def test_questions_with_options_that_stay_are_counted_in_the_report(tmp_path: Path) -> None:
    rows = [
        {"id": each.id, "question": each.text, "options": list(each.options), "answer": each.answer}
        for each in QUESTIONS[:4]
    ]
    rows.append(
        {"id": "both", "question": "What treats disease 0?", "options": ["drug 0", "x", "Both A and B"], "answer": "A"}
    )
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = evaluate(
        scripted(lookup_by_text()), tmp_path / "q.jsonl", rotations=True, modes="closed_book", out=tmp_path / "out"
    )
    assert found.notes == {"questions with options that speak of others, which stay in place when rotated": 1}
    assert len(found.predictions) == 4 * 4 + 1
    rotations = found.reports[Mode.CLOSED_BOOK].rotations
    assert rotations is not None
    assert (rotations.n, rotations.in_place, rotations.changed) == (4, 1, 0.0)
    assert "options that stay in place | 1 |" in (tmp_path / "out" / "report.md").read_text()


def test_rotations_compare_the_first_answers_alone() -> None:
    def answer(letter: str, rotation: int, sample: int) -> Prediction:
        turn = Turn((), (), f"<answer>({letter})</answer>", answer=f"({letter})")
        asked = rotate(QUESTIONS[0], rotation)
        return Prediction("search", rotation, Rollout(asked, (), (turn,), StopReason.ANSWERED, sample=sample), None)

    gold = QUESTIONS[0].answer
    steady = [answer(rotate(QUESTIONS[0], by).answer, by, 0) for by in range(4)]
    other = [answer("ABCD"["ABCD".index(gold) - 1], 0, sample) for sample in (1, 2)]
    found = report_mode([*steady, *other]).rotations
    assert found is not None
    assert (found.accuracy, found.changed, found.n) == ((1.0,) * 4, 0.0, 1)
