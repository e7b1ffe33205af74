"""`medagent rubric` from the command line: endpoints that reply and judge, and a small model that judges in process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from medagent.cli.main import main
from medagent.models.base_models import STARTER, model_path
from tests.medagent.support import chat_server

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
LABELLED = {"prompt_id": "p", "prompt": "?", "completion": "Rest.", "rubric": "Is brief", "binary_labels": [1]}


def written(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_endpoints_reply_and_judge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    with chat_server("Which medicines do you take?", '{"criteria_met": true}') as server:
        arguments = ["rubric", written(tmp_path / "cases.jsonl", CASE), server.url, "--judge_model", "judge"]
        arguments += ["--agent", server.url, "--model", "replier", "--out", str(out)]
        main(arguments)
        main(arguments)  # asks for nothing again
    said = capsys.readouterr().out
    assert "0.333 [0.333, 0.333]" in said  # 3 - 2 of 3 points
    assert "no medical verdict" in said
    first, *judged = server.asked
    assert first["messages"] == CASE["prompt"]
    assert [first["model"], *(each["model"] for each in judged)] == ["replier", "judge", "judge"]
    assert "Which medicines do you take?" in judged[0]["messages"][0]["content"]
    report = json.loads((out / "report.json").read_text())
    assert (report["judge"]["model"], report["agent"]["model"]) == ("judge", "replier")


def test_a_small_model_judges_in_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, model = written(tmp_path / "labels.jsonl", LABELLED), f"hf:{model_path(STARTER)}"
    main(["rubric", path, model, "--verdict_tokens", "16", "--out", str(tmp_path / "out")])
    assert "1 verdicts, 1 of them unreadable, for which 1 rows are left out" in capsys.readouterr().out
    kept = (tmp_path / "out" / "verdicts.jsonl").read_text().splitlines()
    assert len(kept) == 3  # each asked for three times


def test_cases_without_an_agent_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "cases.jsonl", CASE)
    assert main(["rubric", path, "hf:starter", "--out", str(tmp_path / "out")]) != 0
    assert "Name an agent that gives them, with --agent" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
