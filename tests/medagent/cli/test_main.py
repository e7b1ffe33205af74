"""The command line as a person uses it, on small inputs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from medagent.cli.commands.train import CONFIGURED
from medagent.cli.main import COMMANDS, GROUPS, main, with_flags_said
from medagent.models.base_models import model_path
from tests.support import ROOT


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    rows = [{"id": f"d{i}", "title": f"condition {i}", "text": f"The first-line drug is agent{i}."} for i in range(12)]
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture
def index(corpus: Path, tmp_path: Path) -> str:
    folder = str(tmp_path / "index")
    assert main(["index", "build", str(corpus), "--out", folder]) == 0
    return folder


def test_help_says_what_a_command_does(capsys) -> None:
    for command in ("demo", "evaluate", "ask", "chat", "serve", "index build", "search"):
        with pytest.raises(SystemExit, match="0"):
            main([*command.split(), "--help"])
        assert f"usage: medagent {command}" in capsys.readouterr().out


def test_the_overview_groups_the_commands(capsys) -> None:
    for arguments in ([], ["--help"], ["-h"]):
        assert main(arguments) == 0
        out = capsys.readouterr().out
        assert out.startswith("usage: medagent COMMAND")
        assert [line for line in out.splitlines() if line in GROUPS] == ["train", "measure", "ask", "data"]
        assert all(f"\n  {name} " in out for name in COMMANDS)


def test_the_help_of_training_commands_lists_the_settings_at_once() -> None:
    code = "import sys; from medagent.cli.main import main; main(sys.argv[1:]); assert 'torch' not in sys.modules"
    for command in CONFIGURED:
        done = subprocess.run(
            [sys.executable, "-c", code, command, "--help"], check=True, capture_output=True, text=True, cwd=ROOT
        )
        for name in ("--config", "--trainer.max_epochs", "--model.policy_lr", "--model.base_model"):
            assert name in done.stdout
        assert "--trainer.gradient_clip_val" not in done.stdout


def test_a_wrong_option_is_one_line(capsys) -> None:
    for command in ("ask", "index biuld", "serve --limits.port eighty"):
        with pytest.raises(SystemExit, match="2"):
            main(command.split())
        assert capsys.readouterr().err.count("\n") == 1


def test_ask_and_chat_as_json(index: str, capsys, monkeypatch) -> None:
    common = ["--agent", "starter", "--index", index, "--json"]
    assert main(["ask", "What is the first-line drug for condition 3?", *common]) == 0
    asked = json.loads(capsys.readouterr().out)
    lines = iter(["What is the first-line drug for condition 3?"])
    monkeypatch.setattr("builtins.input", lambda: next(lines, ""))
    assert main(["chat", *common]) == 0
    assert json.loads(capsys.readouterr().out) == asked, "one line, the same answer"
    assert asked["answer"]["stop_reason"] == "answered"
    assert [turn["query"] for turn in asked["turns"]][-1] is None


def test_ask_and_chat(index: str, capsys, monkeypatch) -> None:
    assert main(["ask", "Which drug is first?", "--agent", "starter", "--index", index, "--options", '["x", "y"]']) == 0
    out = capsys.readouterr().out
    assert "(B) y" in out
    assert "not medical advice" in out
    lines = iter(["What is the first-line drug for condition 3?", ""])
    monkeypatch.setattr("rich.console.Console.input", lambda self, *args, **kwargs: next(lines))
    assert main(["chat", "--agent", "starter", "--index", index]) == 0
    assert capsys.readouterr().out.count("not medical advice") == 2


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["search", "x", "--index", "/nowhere"], "no manifest.json"),
        (["ask", "x", "--agent", "/nowhere"], "no agent.json"),
        (["ask", "x", "--agent", "starter"], "--index"),
        (["ask", "x", "--agent", "org/typo"], "no such folder"),
        (["ask", "  ", "--agent", "starter", "--index", "any"], "empty"),
        (["ask", "x", "--agent", "damaged"], "damaged"),
        (["demo", "--demonstrations", "8"], "the starter learns without"),
        (["train", "--config", "nowhere.yaml"], "--config nowhere.yaml"),
        (["evaluate", "--config", "nowhere.yaml"], "--config nowhere.yaml"),
        (["index", "build", "/nowhere.jsonl"], "not found"),
        (["evaluate", "--agent", "starter", "--benchmark", "jsonl"], "--path"),
        (["evaluate", "--agent", "starter", "--start", "99999"], "no question is left"),
    ],
)
def test_a_users_error_is_one_line(command: list[str], message: str, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "agent.json").write_text("{")
    assert main(command) == 1
    error = capsys.readouterr().err
    assert error.startswith("medagent: ")
    assert message in error
    assert "Traceback" not in error


def test_classes_are_found_where_the_command_is_run(tmp_path: Path, index: str, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    (tmp_path / "found_here.py").write_text(
        "from medagent.protocol import TagProtocol\n"
        "from medagent.types import Question\n\n\n"
        "class Other(TagProtocol):\n    pass\n\n\n"
        "class Three:\n    def questions(self):\n        return [Question(str(n), 'Which drug?') for n in range(3)]\n"
    )
    shutil.copytree(model_path("starter"), tmp_path / "agent")
    spec = json.loads((tmp_path / "agent" / "agent.json").read_text())
    spec["protocol"]["class_path"] = "found_here.Other"
    (tmp_path / "agent" / "agent.json").write_text(json.dumps(spec))
    (tmp_path / "eval.yaml").write_text("benchmark: found_here.Three\nmodes: closed_book\n")
    own = ["--allow_class", "found_here.Other"]
    assert main([*own, "ask", "Which drug is first?", "--agent", "agent", "--index", index]) == 0
    assert main(["evaluate", "--config", "eval.yaml", "--agent", "agent", "--index", index, "--out", "out"]) == 0
    assert json.loads((tmp_path / "out" / "report.json").read_text())["n"] == 3


def test_an_interrupt_says_how_to_go_on(monkeypatch, capsys) -> None:
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("medagent.cli.index.report_changes", interrupted)
    assert main(["index", "build", "starter"]) == 130
    assert "same command again" in capsys.readouterr().err


def test_files_of_the_page_are_also_given_without_their_group() -> None:
    assert with_flags_said(["serve", "--feedback", "f", "--examples=q"]) == [
        "serve",
        "--page.feedback",
        "f",
        "--page.examples=q",
    ]
    assert with_flags_said(["ask", "--feedback", "f"]) == ["ask", "--feedback", "f"]
