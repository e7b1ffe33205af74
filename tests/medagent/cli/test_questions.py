"""`medagent questions make`, as a person types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from medagent.cli.main import main
from medagent.evaluation.benchmarks import JsonlBenchmark
from tests.evaluation.question_making.support import FACTS
from tests.medagent.support import chat_server

ASKED = "Mutations in which gene cause Costello syndrome?"
WRITER = ["--writer", "http://localhost:9/v1", "--writer_model", "m"]  # where nothing listens


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


def test_without_a_writer_the_command_says_which_to_give(index: str, tmp_path: Path, capsys) -> None:
    said = ran(capsys, "questions", "make", index, "--out", str(tmp_path / "q.jsonl"), status=1)
    assert "no --writer is given" in said
    assert "--writer hf:" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--top_k", "0"], "--top_k 0"),
        (["--limit", "-1"], "--limit -1"),
    ],
)
def test_wrong_options_are_refused_before_any_work(index: str, tmp_path: Path, capsys, options, message: str) -> None:
    out = tmp_path / "questions.jsonl"
    assert message in ran(capsys, "questions", "make", index, "--out", str(out), *WRITER, *options, status=1)
    assert list(tmp_path.iterdir()) == []


def test_wrong_places_are_refused(index: str, tmp_path: Path, capsys) -> None:
    assert "is a folder" in ran(capsys, "questions", "make", index, "--out", str(tmp_path), *WRITER, status=1)
    nowhere = str(tmp_path / "no" / "q.jsonl")
    assert "its folder does not exist" in ran(capsys, "questions", "make", index, "--out", nowhere, *WRITER, status=1)
    out = str(tmp_path / "q.jsonl")
    assert "holds no index" in ran(capsys, "questions", "make", str(tmp_path), "--out", out, *WRITER, status=1)


def test_a_model_at_an_endpoint_writes_questions_and_is_asked_once(index: str, tmp_path: Path, capsys) -> None:
    out, written, settings = (
        tmp_path / "q.jsonl",
        f"Question: {ASKED}\nAnswer: HRAS",
        ["--writer_model", "m", "--concurrency", "1"],
    )
    with chat_server(*[written] * 9, "HRAS", "BRAF") as server:
        arguments = ["questions", "make", index, "--out", str(out), "--writer", server.url, *settings]
        printed = ran(capsys, *arguments)
        (question,) = JsonlBenchmark(str(out)).questions()
        assert (question.text, question.answer, question.gold_passage_ids) == (ASKED, "HRAS", ("f1",))
        assert question.meta["licence"] == "CC BY 4.0"
        assert "9 drafts, 1 kept. Dropped:\n        8  the passage does not hold the answer" in printed
        assert [each["max_tokens"] for each in server.asked] == [256] * 11
        first = out.read_bytes()
        ran(capsys, *arguments)
        assert (out.read_bytes(), len(server.asked)) == (first, 11)
        (tmp_path / "test.jsonl").write_text(json.dumps({"question": ASKED, "answer": "HRAS"}))
        failed = [*arguments, "--test_sets", json.dumps([f"jsonl:{tmp_path / 'test.jsonl'}"])]
        assert main(failed) == 1
        found = capsys.readouterr()
        assert "1  near-duplicate of a test question" in found.out
        assert "no question is left" in found.err
        assert len(server.asked) == 11


def test_passages_are_drawn_and_a_refusing_endpoint_ends_the_command(index: str, tmp_path: Path, capsys) -> None:
    with chat_server("Question: Which?\nAnswer: none") as server:
        arguments = ["questions", "make", index, "--out", str(tmp_path / "q.jsonl"), "--passages", "2"]
        arguments += ["--writer", server.url, "--writer_model", "m"]
        assert "no question is left" in ran(capsys, *arguments, status=1)
        assert len(server.asked) == 2
        server.status = 401
        assert "refused with status 401" in ran(capsys, *arguments, "--seed", "1", "--writer_tokens", "9", status=1)
    assert "needs the name of its model" in ran(capsys, *arguments[:-2], status=1)
    assert "--passages -1" in ran(capsys, *arguments, "--passages", "-1", status=1)
