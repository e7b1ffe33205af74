"""`medagent rubric` from the command line: endpoints that reply and judge, and a small model that judges in process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from medagent.cli.main import main
from medagent.models.base_models import STARTER, model_path

CASE = {
    "prompt_id": "p1",
    "prompt": [
        {"role": "user", "content": "I feel dizzy."},
        {"role": "assistant", "content": "Since when?"},
        {"role": "user", "content": "Since today."},
    ],
    "rubrics": [
        {"criterion": "Asks about medicines", "points": 3, "tags": ["axis:context"]},
        {"criterion": "Gives a diagnosis", "points": -2, "tags": []},
    ],
    "example_tags": [],
}
PAIR = {"id": "1", "question": "?", "answer_a": "long answer", "answer_b": "brief", "choice": "a"}


class Chat(BaseHTTPRequestHandler):
    """Replies to patients, judges criteria, and remembers what it was asked."""

    asked: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body)  # type: ignore[attr-defined]
        last = body["messages"][-1]["content"]
        if "<requirement>" in last:
            said = json.dumps({"criteria_met": "Asks about medicines" in last})
        elif "<first>" in last:
            said = json.dumps({"better": "first"})
        else:
            said = "Which medicines do you take?"
        reply = json.dumps({"choices": [{"message": {"content": said}, "finish_reason": "stop"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Chat)
    server.asked = []  # type: ignore[attr-defined]
    Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def written(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_endpoints_reply_and_judge(server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url, out = f"http://127.0.0.1:{server.server_address[1]}/v1", tmp_path / "out"
    arguments = ["rubric", written(tmp_path / "cases.jsonl", CASE), url, "--judge_model", "judge"]
    arguments += ["--agent", url, "--model", "replier", "--out", str(out)]
    main(arguments)
    said = capsys.readouterr().out
    assert "1.000 [1.000, 1.000]" in said
    assert "no medical verdict" in said
    first, *judged = server.asked
    assert first["messages"] == CASE["prompt"]
    assert (first["model"], {each["model"] for each in judged}) == ("replier", {"judge"})
    assert "Which medicines do you take?" in judged[0]["messages"][0]["content"]
    report = json.loads((out / "report.json").read_text())
    assert (report["judge"]["model"], report["agent"]["model"]) == ("judge", "replier")
    main(arguments)
    assert len(server.asked) == 3


def test_pairs_show_a_judge_that_prefers_the_first(server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    path = written(tmp_path / "pairs.jsonl", PAIR)
    main(["rubric", path, url, "--judge_model", "j", "--out", str(tmp_path / "out")])
    said = capsys.readouterr().out
    assert "choices for the answer shown first (no bias: 50%)" in said
    assert "100.0% [100.0, 100.0], 1" in said  # one pair, shown twice


def test_a_small_model_judges_in_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, model = written(tmp_path / "pairs.jsonl", PAIR), f"hf:{model_path(STARTER)}"
    main(["rubric", path, model, "--verdict_tokens", "16", "--out", str(tmp_path / "out")])
    assert "2 verdicts, 2 of them unreadable, for which 1 rows are left out" in capsys.readouterr().out
    kept = (tmp_path / "out" / "verdicts.jsonl").read_text().splitlines()
    assert len(kept) == 6  # each asked for three times


def test_cases_without_an_agent_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "cases.jsonl", CASE)
    assert main(["rubric", path, "hf:starter", "--out", str(tmp_path / "out")]) != 0
    assert "Name an agent that gives them, with --agent" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
