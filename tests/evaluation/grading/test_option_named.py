from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from medagent.cli.main import main
from medagent.errors import InputError
from medagent.evaluation.benchmarks import MedMCQABenchmark, MedQABenchmark
from medagent.evaluation.grading.option_named import Outcome, read_answer
from medagent.evaluation.grading.raw_replies import read_replies, summarize_replies, write_readings
from medagent.evaluation.grading.replies import read_reply
from tests.support import ROOT, SHARED_DATA

ANSWERS = SHARED_DATA / "answers"
LABELS = ROOT / "tests" / "evaluation" / "answer_labels.jsonl"
DECLINED = """The documents do not mention this|The documents don't provide enough information|Insufficient information
do not address any of the options|No information available|No relevant information|More information needed|Not stated
Not found in the documents|Unclear|Undetermined|Not determinable|Lack of information|Don't know|None of A, B, C, D
None of above|Neither|Cannot be determined|Error in question or answer choices|The question is incomplete"""
UNREADABLE = "Incomplete abortion|Missing teeth|Impossible to chew|Insufficient insulin secretion"
OPTIONS = ("iron deficiency anemia", "anemia", "None of the above", "zinc")


@pytest.mark.parametrize(
    ("reply", "strict", "lenient", "outcome"),
    [
        ('{"why": "x", "answer_choice": "B"}', "B", "B", "parsed"),
        ('{"answer_choice": "B. text with Vitamin A in it"}', "B", "B", "parsed"),
        ('Reasoning first. {"why": "a "quoted" word", "answer_choice": "D"}', "D", "D", "parsed"),
        ('Dict{"answer": "C) zinc"}', "C", "C", "parsed"),
        ("{'answer': 'A'}", "A", "A", "parsed"),
        ('{"answer": ["A"]}', "A", "A", "parsed"),
        ('{"answer_choice": "A/B"}', None, None, "multiple"),
        ('{"answer_choice": "A or C"}', None, None, "multiple"),
        ('{"answer_choice": "A. Clindamycin, D. Metronidazole"}', None, None, "multiple"),
        ('{"answer_choice": "A, B, C"}', None, None, "multiple"),
        ('{"answer": "A"} on second thoughts {"answer": "B"}', None, "B", "multiple"),
        ('{"answer_choice": "E"}', None, None, "unparsed"),
        ('{"answer_choice": "All of the above"}', None, None, "unparsed"),
        ('{"answer_choice": "Unable to answer due to lack of information"}', None, None, "abstained"),
        ('{"answer_choice": "N/A"}', None, None, "abstained"),
        ('{"answer_choice": ""}', None, None, "unparsed"),
        ('{"step_by_step_thinking": "First, I will', None, None, "truncated"),
        ("<think>A or B</think><answer>zinc (D) [1]</answer>", "D", "D", "parsed"),
        ("The answer is B.", None, "B", "unparsed"),
        ("**Answer:** B", "B", "B", "parsed"),
        ("**Answer**: B", "B", "B", "parsed"),
        ("Answer: B\n\nWait. Answer: C", None, "C", "unparsed"),
        ("So \\boxed{D}", None, "D", "unparsed"),
        ("The answer is a matter of debate.", None, None, "unparsed"),
        ("The answer is A patient with gout.", None, None, "unparsed"),
        ("The answer is A or C.", None, None, "unparsed"),
        ("It is iron deficiency anemia.", None, "A", "unparsed"),
        ("anemia", None, "B", "unparsed"),
        ("not zinc", None, None, "unparsed"),
        ("None of the above", None, "C", "unparsed"),
        ("I cannot determine the answer.", None, None, "abstained"),
        ("The response was filtered. Please modify your prompt and retry.", None, None, "unparsed"),
        ("", None, None, "unparsed"),
        ("'content'", None, None, "unparsed"),
    ],
)
def test_replies_are_read_and_never_given_a_default_letter(
    reply: str, strict: str | None, lenient: str | None, outcome: str
) -> None:
    reading = read_reply(reply, "ABCD", OPTIONS if "answer" not in reply.lower() or "boxed" in reply else ())
    assert (reading.strict, reading.lenient, reading.outcome.value) == (strict, lenient, outcome)


def test_a_strict_letter_is_always_one_of_the_questions() -> None:
    for text in ("E", "(E)", "E. other", '{"answer": "E"}'):
        assert read_reply(text, "ABCD").strict is None
        assert read_reply(text, "ABCDE").strict == "E"
    assert read_answer("(B) or (C)", "ABCD").outcome is Outcome.MULTIPLE


def field(value: str) -> str:
    return json.dumps({"step_by_step_thinking": "First, A or B.", "answer_choice": value})


def test_denied_and_guessed_options_are_no_answers() -> None:
    for reply in (
        *("not (B)", "The answer is not (A); it is giardiasis", "I cannot tell, maybe (A)?"),
        *("A. Amebic colitis is wrong", "Therefore option (B) is ruled out.", "The answer cannot be (B)."),
        *("(B) is not right", field("None of the above (closest is (B))"), field("A: Incorrect")),
        field("A. Not enough information"),
        "Long reasoning. " * 20 + "Therefore option (B) is excluded.",
        "Long reasoning. " * 20 + "I do not think the answer is C.",
    ):
        reading = read_reply(reply, "ABCD")
        assert (reading.strict, reading.lenient) == (None, None), reply


def test_several_options_are_no_answer() -> None:
    values = """A. iron & B. copper|A. iron + B. copper|A. iron
B. copper|A) iron B) copper|A. iron B. copper|A & B|A + B|Either A or B|Both A and C|A, B, and C|A/B"""
    for value in values.split("|"):
        assert read_reply(field(value), "ABCD").outcome is Outcome.MULTIPLE, value


def test_an_option_is_read_in_many_notations() -> None:
    for value in (
        "Option B|option B: Copper|Choice B|**B**|[B]|B (Copper)|B - Copper|\nB\n|B:|B. Hepatitis B and C"
    ).split("|"):
        assert read_reply(field(value), "ABCD").strict == "B", value
    of_their_text = (
        "C. Vitamins A, D, E, K|C. HLA-A, B, C|D. Both A and B|D. Anti-A, B, or O antibodies|C. maybe|A. Wait & watch"
    )
    for value in of_their_text.split("|"):
        assert read_reply(field(value), "ABCD").strict == value[0], value


def test_answer_fields_are_found_under_many_names() -> None:
    for reply in (
        *('{"answer choice": "B"}', '{"correct_answer": "B"}', '{"answer_choices": "B"}', 'answer_choice: "B"'),
        *('{"answer": {"choice": "B"}}', '{"answer_choice": "B", "answer": "copper"}', '{"answer_choice": "\\u0042"}'),
    ):
        assert read_reply(reply, "ABCD").strict == "B", reply


def test_replies_that_only_lenient_reading_accepts() -> None:
    for reply in (
        *(field("b"), field("b. copper"), field("B is correct"), "The answer is: B", "The correct answer is: **B**"),
        *(
            "### Answer\nB",
            "B is the correct answer.",
            "\\boxed{\\text{B}}",
            "B. copper\n\nExplanation: " + "long " * 60,
        ),
    ):
        reading = read_reply(reply, "ABCD")
        assert (reading.strict, reading.lenient) == (None, "B"), reply


def test_declined_and_unreadable_replies_are_told_apart() -> None:
    for values, outcome in ((DECLINED, Outcome.ABSTAINED), (UNREADABLE, Outcome.UNPARSED)):
        for value in re.split(r"[|\n]", values):
            assert read_reply(field(value), "ABCD").outcome is outcome, value


def test_an_abbreviated_genus_is_not_read_as_a_letter() -> None:
    options = ("RhO(D) immunoglobulin", "C. difficile colitis", "E. coli", "H. pylori testing")
    for letter, option in zip("ABCD", options, strict=True):
        for text in (f"{letter}. {option}", f"{option} ({letter}) [1]", f"({letter}) {option}"):
            assert read_answer(text, "ABCD", options).strict == letter
        bare = read_answer(option, "ABCD", options)
        assert (bare.strict, bare.lenient) == (None, letter)


@pytest.mark.real_data
@pytest.mark.skipif(not ANSWERS.exists(), reason="the real benchmark files are not there")
def test_every_real_option_can_be_named() -> None:
    data = ANSWERS.parent
    for benchmark in (
        MedMCQABenchmark(str(data / "medmcqa" / "dev_half.json")),
        MedQABenchmark(str(data / "medqa" / "us_4options_dev.jsonl")),
    ):
        for question in benchmark.questions():
            for letter, option in zip(question.letters, question.options, strict=True):
                for text in (f"{letter}. {option}", f"{option} ({letter}) [1]"):
                    assert read_answer(text, question.letters, question.options).strict == letter, text


def replies_file(tmp_path: Path, *rows: object) -> Path:
    path = tmp_path / "replies.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_counts_add_up_and_the_command_prints_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raws = ['{"answer": "A"}', '{"answer": "B"}', "A or B", "unable to say", '{"why": "cut', "the answer is A"]
    path = replies_file(tmp_path, *({"id": str(i), "gold": "A", "raw": raw} for i, raw in enumerate(raws)))
    assert main(["grade", str(path), "--out", str(tmp_path / "read.jsonl")]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {
        "n": 6,
        "strict_accuracy": 1 / 6,
        "lenient_accuracy": 2 / 6,
        "parsed": 2,
        "unparsed": 3,
        "abstained": 1,
        "multiple": 1,
        "truncated": 1,
        "refused": 0,
    }
    assert len((tmp_path / "read.jsonl").read_text().splitlines()) == 6


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": "1", "gold": "E", "raw": "x"}, "line 1: found the gold answer 'E'"),
        ({"id": "1", "gold": "A"}, "line 1: found no text 'raw'"),
        ({"gold": "A", "raw": "x"}, "line 1: found the fields"),
        ({"id": "1", "gold": "A", "raw": "C", "options": {"A": "x", "C": "y"}}, "line 1: found options named A, C"),
        ("{", "line 1"),
    ],
)
def test_a_bad_file_of_replies_is_explained(tmp_path: Path, row: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_replies(replies_file(tmp_path, row), letters="ABCD")


def test_the_replies_are_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = replies_file(tmp_path, {"id": "1", "gold": "A", "raw": "A"})
    before = path.read_text()
    for out in (path, tmp_path):
        assert main(["grade", str(path), "--out", str(out)]) == 1
        assert "a file of its own" in capsys.readouterr().err
    assert path.read_text() == before


def test_a_last_line_is_strict_where_it_was_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = replies_file(tmp_path, {"id": "1", "gold": "B", "raw": "It is oral.\nAnswer: B"})
    for asked, accuracy in (("false", 0.0), ("true", 1.0)):
        assert main(["grade", str(path), "--last_line", asked]) == 0
        assert json.loads(capsys.readouterr().out)["strict_accuracy"] == accuracy


def test_repeated_ids_and_strange_letters_are_refused(tmp_path: Path) -> None:
    row = {"id": "1", "gold": "A", "raw": "A"}
    with pytest.raises(InputError, match="occurs twice"):
        read_replies(replies_file(tmp_path, row, row), letters="ABCD")
    with pytest.raises(InputError, match="letters 'BCD'"):
        read_replies(replies_file(tmp_path, row), letters="BCD")
    with pytest.raises(InputError, match="no reply"):
        read_replies(replies_file(tmp_path, ""), letters="ABCD")


@pytest.mark.real_data
@pytest.mark.skipif(not ANSWERS.exists(), reason="the published answers are not there")
def test_published_answers_agree_with_the_hand_labels(tmp_path: Path) -> None:
    labels = [json.loads(line) for line in LABELS.read_text().splitlines()]
    assert len(labels) == 100
    disagreeing = []
    for file in {label["file"] for label in labels}:
        replies = read_replies(ANSWERS / file, letters="ABCD")
        read = {reply.id: reply.reading for reply in replies}
        for label in labels:
            if label["file"] == file:
                reading = read[label["id"]]
                if (reading.strict or reading.outcome.value) != label["label"]:
                    disagreeing.append((label, reading))
        summary = summarize_replies(replies)
        assert summary["parsed"] + summary["unparsed"] + summary["abstained"] == summary["n"]
        write_readings(tmp_path / file, replies)
        for reply in replies:  # nothing that could not be parsed counts as right
            assert reply.reading.strict is None or reply.reading.outcome is Outcome.PARSED
    assert not disagreeing
