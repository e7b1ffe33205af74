from __future__ import annotations

import json
from pathlib import Path

import pytest

from evaluation.reading import Outcome, read_answer, read_reply
from evaluation.replies import read_replies, summarize_replies, write_readings
from medagent.cli import main
from medagent.errors import InputError

ANSWERS = Path(__file__).parents[3] / "shared" / "data" / "answers"
OPTIONS = ("iron deficiency anemia", "anemia", "None of the above", "zinc")


@pytest.mark.parametrize(
    ("reply", "strict", "lenient", "outcome"),
    [
        ('{"why": "x", "answer_choice": "B"}', "B", "B", "answered"),
        ('{"answer_choice": "B. text with Vitamin A in it"}', "B", "B", "answered"),
        ('Reasoning first. {"why": "a "quoted" word", "answer_choice": "D"}', "D", "D", "answered"),
        ('Dict{"answer": "C) zinc"}', "C", "C", "answered"),
        ("{'answer': 'A'}", "A", "A", "answered"),
        ('{"answer": ["A"]}', "A", "A", "answered"),
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
        ("<think>A or B</think><answer>zinc (D) [1]</answer>", "D", "D", "answered"),
        ("The answer is B.", None, "B", "unparsed"),
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
        "answered": 2,
        "unparsed": 3,
        "abstained": 1,
        "multiple": 1,
        "truncated": 1,
    }
    assert len((tmp_path / "read.jsonl").read_text().splitlines()) == 6


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": "1", "gold": "E", "raw": "x"}, "line 1: found the gold answer 'E'"),
        ({"id": "1", "gold": "A"}, "line 1: found no text 'raw'"),
        ({"gold": "A", "raw": "x"}, "line 1: found the fields"),
        ("{", "line 1"),
    ],
)
def test_a_bad_file_of_replies_is_explained(tmp_path: Path, row: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_replies(replies_file(tmp_path, row), letters="ABCD")


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
    labels = [json.loads(line) for line in (Path(__file__).parent / "answer_labels.jsonl").read_text().splitlines()]
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
        assert summary["answered"] + summary["unparsed"] + summary["abstained"] == summary["n"]
        write_readings(tmp_path / file, replies)
        for reply in replies:  # nothing that could not be parsed counts as right
            assert reply.reading.strict is None or reply.reading.outcome is Outcome.ANSWERED
    assert not disagreeing
