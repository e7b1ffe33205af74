"""`medagent questions make`, as a person types it."""

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


def test_open_questions(index: str, tmp_path: Path, capsys) -> None:
    out = tmp_path / "questions.jsonl"
    said = ran(capsys, "questions", "make", index, "--out", str(out))
    questions = {question.text: question for question in JsonlBenchmark(str(out)).questions()}
    assert questions[ASKED].answer == "Costello syndrome"
    assert questions[ASKED].gold_passage_ids[0] == "f0"
    assert questions[ASKED].meta["licence"] == "CC BY 4.0"
    assert f"{len(questions)} questions (" in said
    assert "kept. Dropped:" in said
    first = out.read_bytes()
    ran(capsys, "questions", "make", index, "--out", str(out))
    assert out.read_bytes() == first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--top_k", "0"], "--top_k 0"),
        (["--limit", "-1"], "--limit -1"),
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


def test_an_index_without_facts_says_what_was_dropped(tmp_path: Path, capsys) -> None:
    (tmp_path / "few.jsonl").write_text('{"id": "a", "title": "A", "text": "Nothing here is a fact."}\n')
    index = str(tmp_path / "index")
    assert main(["index", "build", str(tmp_path / "few.jsonl"), "--out", index]) == 0
    out = tmp_path / "q.jsonl"
    assert "no question is left" in ran(capsys, "questions", "make", index, "--out", str(out), status=1)
    assert not out.exists()
