"""Several right options, options that are letters, numbered options, abstentions, and two answers in one reply."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from medagent.errors import InputError
from medagent.evaluation.benchmarks import JsonlBenchmark
from medagent.evaluation.grading.citations import gold_texts
from medagent.evaluation.grading.grade import Verdict, grade
from medagent.evaluation.grading.option_named import read_answer
from medagent.evaluation.grading.raw_replies import read_replies, summarize_replies
from medagent.evaluation.grading.replies import read_reply
from medagent.evaluation.metrics import summarize
from medagent.evaluation.modes import baselines, rotate
from medagent.evaluation.rollout_files import readable, rollout_from
from medagent.plain_protocol import PlainProtocol
from medagent.protocol import TagProtocol
from medagent.types import Question, Rollout, StopReason, Turn

METALS = ["iron", "copper", "zinc or tin", "lead"]
BLOOD = ["O", "A", "B", "AB"]


def own(folder: Path, **row: Any) -> Question:
    (folder / "q.jsonl").write_text(json.dumps({"question": "Which?", **row}), encoding="utf-8")
    (question,) = JsonlBenchmark(str(folder / "q.jsonl")).questions()
    return question


def answered(question: Question, text: str) -> Rollout:
    turn = Turn((), (), f"<answer>{text}</answer>", answer=text)
    return Rollout(question, (), (turn,), StopReason.ANSWERED)


@pytest.mark.parametrize(
    "right",
    [
        {"answer": "A, C"},
        {"answer": "C,A"},
        {"answer": ["A", "C"]},
        {"answer": ["zinc or tin", "iron"]},
        {"answer_idx": "A, C"},
        {"answer_idx": ["C", "A"], "answer": ["iron", "zinc or tin"]},
    ],
)
def test_several_right_options_are_a_set_in_any_order(tmp_path: Path, right: dict[str, Any]) -> None:
    question = own(tmp_path, options=METALS, **right)
    assert (question.form, question.answer, question.right_letters) == ("select_all", "A, C", ("A", "C"))
    assert gold_texts(question) == ("iron", "zinc or tin")


@pytest.mark.parametrize(
    ("text", "verdict", "lenient"),
    [
        ("(A), (C)", Verdict.CORRECT, True),
        ("C and A", Verdict.CORRECT, True),
        ("AC", Verdict.CORRECT, True),
        ("Options A & C.", Verdict.CORRECT, True),
        ("A. iron; C. zinc or tin [1]", Verdict.CORRECT, True),
        ("iron (A), zinc or tin (C)", Verdict.CORRECT, True),
        ("The answer is A, C", Verdict.CORRECT, True),
        ("A", Verdict.WRONG, False),
        ("A, B, C", Verdict.WRONG, False),
        ("A or C", Verdict.UNPARSED, False),
        ("A and C, not B", Verdict.UNPARSED, False),
        ("A, C, E", Verdict.UNPARSED, False),
        ("N/A", Verdict.ABSTAINED, False),
        ("Both are metals.\nAnswer: A, C", Verdict.UNPARSED, True),
    ],
)
def test_a_selection_must_be_exact(tmp_path: Path, text: str, verdict: Verdict, lenient: bool) -> None:
    question = own(tmp_path, options=METALS, answer="A, C")
    rollout = answered(question, text)
    assert (grade(rollout).verdict, grade(rollout).lenient_correct) == (verdict, lenient)
    assert grade(rollout_from(readable(rollout))) == grade(rollout)


def test_a_selection_goes_through_prompts_rotations_and_the_report(tmp_path: Path) -> None:
    question = own(tmp_path, options=METALS, answer="A, C")
    assert rotate(question, 1).answer == "B, D"
    assert rotate(question, 1).options[1:] == ("zinc or tin", "lead", "iron")
    assert baselines([question])["random"] == 1 / 15
    assert "Several options may be right" in "".join(piece.text for piece in TagProtocol().prompt(question))
    assert "letters of all right options" in "".join(piece.text for piece in PlainProtocol()._asked(question))
    assert summarize([answered(question, "A, C"), answered(question, "A")]).overall.accuracy == 0.5
    one = own(tmp_path, options=METALS, answer="B", form="select_all")
    assert grade(answered(one, "B")).correct
    assert not grade(answered(one, "B, C")).correct


def test_an_answer_that_is_a_letter_is_the_letter(tmp_path: Path) -> None:
    benchmark_row = {"options": BLOOD, "answer": "B"}
    question = own(tmp_path, **benchmark_row)
    assert (question.answer, question.options[1]) == ("B", "A")
    benchmark = JsonlBenchmark(str(tmp_path / "q.jsonl"))
    benchmark.questions()
    assert dict(benchmark.notes) == {"answers that are a letter and the text of another option, read as the letter": 1}
    assert own(tmp_path, options=BLOOD, answer="AB").answer == "D"
    assert own(tmp_path, options=BLOOD, answer="O").answer == "A"
    assert own(tmp_path, options=BLOOD, answer_idx="C").answer == "C"
    assert own(tmp_path, options=BLOOD, answer_idx="C", answer="B").answer == "C"
    with pytest.raises(InputError, match=r"line 1: found answer_idx \['C'\] and the answer 'A': they differ"):
        own(tmp_path, options=BLOOD, answer_idx="C", answer="A")


@pytest.mark.parametrize(
    ("text", "strict", "lenient"),
    [
        ("B", "B", "B"),
        ("B.", "B", "B"),
        ("(B)", "B", "B"),
        ("(B) A", "B", "B"),
        ("B. A", "B", "B"),
        ("A (B)", "B", "B"),
        ("AB (D)", "D", "D"),
        ("AB", None, "D"),
        ("Blood group AB", None, "D"),
        ("It is a hard question.", None, None),
        ("N/A", None, None),
    ],
)
def test_options_that_are_letters_are_named_by_their_letter(text: str, strict: str | None, lenient: str | None) -> None:
    reading = read_answer(text, "ABCD", BLOOD)
    assert (reading.strict, reading.lenient) == (strict, lenient)


@pytest.mark.parametrize("options", [METALS, BLOOD])
@pytest.mark.parametrize(
    "text", ["N/A", "n/a", "N.A.", "NA", "none", "Not available", "not applicable", "I don't know.", "idk", "No idea"]
)
def test_abstentions_name_no_letter(text: str, options: list[str]) -> None:
    for reading in (
        read_answer(text, "ABCD", options),
        read_reply(f"Hard to say.\n\nAnswer: {text}", "ABCD", options, last_line_asked=True),
        read_reply(f"**Answer:** {text}", "ABCD", options),
    ):
        assert (reading.strict, reading.lenient, reading.outcome.value) == (None, None, "abstained")


@pytest.mark.parametrize(
    ("text", "strict"),
    [
        ("Option 2", "B"),
        ("option (2).", "B"),
        ("Choice 3", "C"),
        ("Option 2: copper", "B"),
        ("The answer is option 2", "B"),
        ("Option 7", None),
        ("Option 1 or 2", None),
        ("Options 1 and 2", None),
        ("Option 1 or option 2", None),
        ("2", None),
    ],
)
def test_a_numbered_option_is_counted_from_one(text: str, strict: str | None) -> None:
    assert read_answer(text, "ABCD", METALS).strict == strict
    assert read_reply(f"It is so.\nAnswer: {text}", "ABCD", METALS, last_line_asked=True).strict == strict
    assert read_answer(text, "AB", ["2 mg", "4 mg"]).strict is None, "the number may be an option's own"


@pytest.mark.parametrize(
    "reply",
    [
        "Answer: A\n\nAnswer: B",
        "Answer: A\nWait, no.\nAnswer: B",
        "The answer is A.\nAnswer: B",
        "**A**\n\n**B**",
        "Final answer: A. iron\nFinal answer: B. copper",
        "\\boxed{A}\nNo.\n\\boxed{B}",
        "<answer>A</answer>\nAnswer: B",
        "<answer>A</answer> <answer>B</answer>",
        '{"answer": "A"} {"answer": "B"}',
    ],
)
def test_of_two_answers_strict_takes_none_and_lenient_the_last(reply: str) -> None:
    reading = read_reply(reply, "ABCD", METALS, last_line_asked=True)
    assert (reading.strict, reading.lenient, reading.outcome.value) == (None, "B", "multiple")


@pytest.mark.parametrize("reply", ["Answer: B\n\nAnswer: B", "Option A: iron is wrong.\nAnswer: B", "Answer: B"])
def test_one_answer_twice_is_one(reply: str) -> None:
    assert read_reply(reply, "ABCD", METALS, last_line_asked=True).strict == "B"


def test_grade_takes_several_right_letters_and_ten_options_at_most(tmp_path: Path) -> None:
    rows = [
        {"id": "1", "gold": "A, C", "raw": "Answer: C, A"},
        {"id": "2", "gold": ["C", "A"], "raw": "A", "options": METALS},
        {"id": "3", "gold": "B", "raw": "B"},
    ]
    path = tmp_path / "r.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = summarize_replies(read_replies(path, letters="ABCD"))
    assert (found["n"], found["strict_accuracy"]) == (3, pytest.approx(2 / 3))
    for options in (list("abcdefghijk"), {letter: letter for letter in "ABCDEFGHIJK"}):
        path.write_text(json.dumps({"id": "1", "gold": "A", "raw": "A", "options": options}))
        with pytest.raises(InputError, match=r"r\.jsonl, line 1: found 11 options, wanted at most 10"):
            read_replies(path, letters="ABCD")
