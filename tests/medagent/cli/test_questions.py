"""`medagent questions make` and `rate`, as a person types them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from medagent.cli.main import main
from medagent.evaluation.benchmarks import JsonlBenchmark
from tests.evaluation.question_making.support import FACTS

GENE = "Mutations in which gene cause Costello syndrome?"


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
    assert questions[GENE].answer == "HRAS"
    assert questions[GENE].gold_passage_ids[0] == "f1"
    assert questions[GENE].meta["licence"] == "CC BY 4.0"
    assert f"{len(questions)} questions (" in said
    assert "kept. Dropped:" in said
    assert not out.with_name("questions.jsonl.part").exists()
    sample = [json.loads(line) for line in (tmp_path / "questions.sample.jsonl").read_text().splitlines()]
    assert len(sample) == 4
    texts = [text for _, text in FACTS]
    assert all(any(text in row["passage"] for text in texts) for row in sample)
    first = out.read_bytes()
    ran(capsys, "questions", "make", index, "--out", str(out), "--sample", "4")
    assert out.read_bytes() == first


def test_multiple_choice_says_how_well_it_is_guessed(index: str, tmp_path: Path, capsys) -> None:
    out = tmp_path / "mc.jsonl"
    said = ran(capsys, "questions", "make", index, "--out", str(out), "--options", "2", "--sample", "0")
    questions = JsonlBenchmark(str(out)).questions()
    assert questions
    assert all(len(question.options) == 2 and question.answer in "AB" for question in questions)
    assert "Guessed without search: by words in common" in said
    assert "chance is 50.0%" in said
    assert not (tmp_path / "mc.sample.jsonl").exists()


def test_benchmark_questions_are_left_out(index: str, tmp_path: Path, capsys) -> None:
    known = tmp_path / "known.jsonl"
    known.write_text(
        json.dumps({"question": "Which gene's mutations cause Costello syndrome?", "answer": "HRAS"}) + "\n"
    )
    out = tmp_path / "questions.jsonl"
    said = ran(capsys, "questions", "make", index, "--out", str(out), "--without", f"[{known}]")
    assert GENE not in out.read_text()
    assert "1  overlaps with a benchmark" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--top_k", "0"], "--top_k 0"),
        (["--options", "1"], "--options 1: wanted 0 for open questions"),
        (["--writer", "http://localhost:1/v1"], "--writer and --writer_model: found one of them"),
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


@pytest.fixture
def endpoint() -> Iterator[tuple[str, list[str]]]:
    """An OpenAI-compatible endpoint that rewords the question about HRAS, and else declines."""
    asked: list[str] = []

    class Chat(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            prompt = body["messages"][0]["content"]
            asked.append(prompt)
            reply = (
                "Question: Costello syndrome is caused by mutations of which gene?"
                if "Answer: HRAS" in prompt
                else "No."
            )
            raw = json.dumps({"choices": [{"message": {"content": reply}, "finish_reason": "stop"}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Chat)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1", asked
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_endpoint_words_the_questions(index: str, endpoint, tmp_path: Path, capsys) -> None:
    url, asked = endpoint
    out = tmp_path / "written.jsonl"
    said = ran(capsys, "questions", "make", index, "--out", str(out), "--writer", url, "--writer_model", "m")
    questions = JsonlBenchmark(str(out)).questions()
    assert [question.text for question in questions] == ["Costello syndrome is caused by mutations of which gene?"]
    assert questions[0].answer == "HRAS"
    assert any(FACTS[1][1] in prompt for prompt in asked)
    assert f"{len(asked) - 1}  the writer gave no question" in said


def test_an_endpoint_that_refuses_ends_the_command(index: str, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("medagent.policies.http_endpoint.LONGEST_WAIT_S", 0.0)
    out = tmp_path / "written.jsonl"
    options = ["--writer", "http://127.0.0.1:9/v1", "--writer_model", "m"]
    assert "no answer after" in ran(capsys, "questions", "make", index, "--out", str(out), *options, status=1)
