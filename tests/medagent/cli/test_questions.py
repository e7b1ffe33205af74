"""`medagent questions make` and `rate`, as a person types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from medagent.cli.main import main
from medagent.evaluation.benchmarks import JsonlBenchmark
from tests.evaluation.question_making.support import FACTS

ASKED = "Which rare disorder affects many parts of the body and delays growth?"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("facts")
    rows = [
        {"id": f"f{i}", "title": title, "text": text, "source": "Primer", "licence": "CC BY 4.0"}
        for i, (title, text) in enumerate(FACTS)
    ]
    (folder / "facts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    out = str(folder / "index")
    assert (
        main(["index", "build", str(folder / "facts.jsonl"), "--out", out, "--embedder", "hashed-ngrams:64:3-5"]) == 0
    )
    return out


def ran(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert main(list(arguments)) == status
    found = capsys.readouterr()
    return found.err if status else found.out


def test_open_questions_with_their_sample(index: str, tmp_path: Path, capsys) -> None:
    out = tmp_path / "questions.jsonl"
    said = ran(capsys, "questions", "make", index, "--out", str(out), "--sample", "4")
    questions = {question.text: question for question in JsonlBenchmark(str(out)).questions()}
    assert questions[ASKED].answer == "Costello syndrome"
    assert questions[ASKED].gold_passage_ids[0] == "f0"
    assert questions[ASKED].meta["licence"] == "CC BY 4.0"
    assert f"{len(questions)} questions (" in said
    assert "kept. Dropped:" in said
    sample = [json.loads(line) for line in (tmp_path / "questions.sample.jsonl").read_text().splitlines()]
    assert len(sample) == 4
    texts = [text for _, text in FACTS]
    assert all(any(text in row["passage"] for text in texts) for row in sample)
    first = out.read_bytes()
    ran(capsys, "questions", "make", index, "--out", str(out), "--sample", "4")
    assert out.read_bytes() == first


def test_multiple_choice(index: str, tmp_path: Path, capsys) -> None:
    out = tmp_path / "mc.jsonl"
    ran(capsys, "questions", "make", index, "--out", str(out), "--options", "2", "--sample", "0", "--top_k", "1")
    questions = JsonlBenchmark(str(out)).questions()
    assert questions
    assert all(len(question.options) == 2 and question.answer in "AB" for question in questions)
    assert not (tmp_path / "mc.sample.jsonl").exists()


def test_benchmark_questions_are_left_out(index: str, tmp_path: Path, capsys) -> None:
    known = tmp_path / "known.jsonl"
    known.write_text(json.dumps({"question": ASKED.replace("Which", "What"), "answer": "Costello syndrome"}) + "\n")
    out = tmp_path / "questions.jsonl"
    said = ran(capsys, "questions", "make", index, "--out", str(out), "--without", f"[{known}]")
    assert ASKED not in out.read_text()
    assert "1  overlaps with a benchmark" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--top_k", "0"], "--top_k 0"),
        (["--options", "1"], "--options 1: wanted 0 for open questions"),
        (["--without", "[nowhere.jsonl]"], "nowhere.jsonl"),
    ],
)
def test_wrong_options_are_refused_before_any_work(index: str, tmp_path: Path, capsys, options, message: str) -> None:
    out = tmp_path / "questions.jsonl"
    assert message in ran(capsys, "questions", "make", index, "--out", str(out), *options, status=1)
    assert list(tmp_path.iterdir()) == []


def test_wrong_places_are_refused(index: str, tmp_path: Path, capsys) -> None:
    assert "is a folder" in ran(capsys, "questions", "make", index, "--out", str(tmp_path), status=1)
    nowhere = str(tmp_path / "no" / "q.jsonl")
    assert "its folder does not exist" in ran(capsys, "questions", "make", index, "--out", nowhere, status=1)
    out = str(tmp_path / "q.jsonl")
    assert "holds no index" in ran(capsys, "questions", "make", str(tmp_path), "--out", out, status=1)


def test_a_labelled_sample_is_not_replaced(index: str, tmp_path: Path, capsys) -> None:
    out, sample = tmp_path / "questions.jsonl", tmp_path / "questions.sample.jsonl"
    labelled = json.dumps({"id": "made:1", "well_formed": True, "answered": False}) + "\n"
    sample.write_text(labelled)
    said = ran(capsys, "questions", "make", index, "--out", str(out), status=1)
    assert "1 of its questions are labelled" in said
    assert (sample.read_text(), out.exists()) == (labelled, False)
    ran(capsys, "questions", "make", index, "--out", str(out), "--sample", "0")
    assert (sample.read_text(), out.exists()) == (labelled, True)


def test_an_index_without_facts_says_what_was_dropped(tmp_path: Path, capsys) -> None:
    (tmp_path / "few.jsonl").write_text('{"id": "a", "title": "A", "text": "Nothing here is a fact."}\n')
    index = str(tmp_path / "index")
    assert main(["index", "build", str(tmp_path / "few.jsonl"), "--out", index]) == 0
    out = tmp_path / "q.jsonl"
    assert "no question is left" in ran(capsys, "questions", "make", index, "--out", str(out), status=1)
    assert not out.exists()


def test_a_labelled_sample_is_rated(tmp_path: Path, capsys) -> None:
    path = tmp_path / "labels.jsonl"
    rows = [{"well_formed": True, "answered": number > 0} for number in range(4)] + [{"well_formed": None}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = ran(capsys, "questions", "rate", str(path))
    assert "well-formed              100.0%" in said
    assert "both                      75.0% [30.1%, 95.4%] of 4" in said
    assert "1 questions have no labels yet." in said
