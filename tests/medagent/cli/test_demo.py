"""`medagent demo`: what its stages leave, that a killed one resumes, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType

from medagent.agent_spec import read_spec
from medagent.cli import demo
from medagent.cli.demo import CONFIGS, PRETRAINED_STAGES, DemoSettings, begin, run_demo
from medagent.cli.demo_report import report_table
from medagent.cli.main import main
from medagent.errors import ConfigError
from medagent.evaluation.metrics import summarize
from medagent.evaluation.predictions import PredictionLog
from medagent.evaluation.statistics import Accuracy
from medagent.evaluation.viewer.recorded import read_metrics
from medagent.run_folder import RunFolder
from tests.medagent.models.gguf_files import write_gguf

# A byte is a token of the tiny base, so that its limits are wide. Everything else is as in the files.
LIMITS = "{max_turns: 4, max_turn_tokens: 48, max_observation_tokens: 160, max_total_tokens: 512}"
WIDE = "{max_turns: 3, max_turn_tokens: 120, max_observation_tokens: 500, max_total_tokens: 2400}"
SMALL = {"num_questions: 12": "num_questions: 4", "num_samples: 8": "num_samples: 2", "max_epochs: 20": "max_epochs: 2"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A tiny GGUF base with SmolLM2's quirks, and configuration files for it."""
    folder = tmp_path_factory.mktemp("tiny")
    write_gguf(folder / "tiny.gguf", GGMLQuantizationType.F16)
    shutil.copytree(CONFIGS, folder / "configs")
    for path in (folder / "configs").rglob("*smollm2.yaml"):
        text = path.read_text(encoding="utf-8").replace(LIMITS, WIDE)
        for old, new in SMALL.items():
            text = text.replace(old, new)
        path.write_text(re.sub("every: 10", "every: 1", text), encoding="utf-8")
    return str(folder / "tiny.gguf"), folder / "configs"


def settings_for(base: str, **others: object) -> DemoSettings:
    return DemoSettings(base, 0, demonstrations=8, iterations=None, threads=1, questions_per_kind=2, **others)


RUN = """
import sys
from pathlib import Path
from medagent.cli import demo
demo.CONFIGS = Path(sys.argv[1])
settings = demo.DemoSettings(sys.argv[2], 0, demonstrations=8, iterations=None, threads=1, questions_per_kind=2)
demo.run_demo(Path(sys.argv[3]), settings, overwrite=False)
"""


@pytest.mark.long
def test_a_demo_that_is_killed_again_and_again_ends_with_the_same_report(tiny, tmp_path, monkeypatch) -> None:
    base, configs = tiny
    monkeypatch.setattr(demo, "CONFIGS", configs)
    monkeypatch.setenv("MEDAGENT_CACHE", str(tmp_path / "cache"))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    report = run_demo(whole, settings_for(base), overwrite=False)

    for row in (stage.name for stage in PRETRAINED_STAGES if stage.parts):
        found = PredictionLog(whole / "answers" / row.replace(" ", "-") / "search" / "predictions.jsonl").read()
        assert len({prediction.rollout.question.id for prediction in found}) == 4
    assert len(read_metrics(whole)) == 2
    spec = read_spec(whole / "agent")
    assert spec.retriever is not None
    assert Path(spec.retriever.index) == (whole / "index").resolve(), "the agent searches the whole corpus"
    page = (whole / "report.html").read_text(encoding="utf-8")
    assert "after examples" in page
    assert "not medical advice" in page
    assert (whole / "agent" / "examples.jsonl").exists()
    assert json.loads((whole / "report.json").read_text(encoding="utf-8")) == json.loads(json.dumps(report))

    command = [sys.executable, "-c", RUN, str(configs), base, str(killed)]
    marks = ("examples/demonstrations.made", "examples/agent", "answers/after-examples", "checkpoints", "agent")
    for mark in marks:  # one kill after each has appeared
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=os.environ)
        deadline = time.monotonic() + 300
        while not (killed / mark).exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert (killed / mark).exists(), process.stderr and process.stderr.read()[-2000:]
        process.send_signal(signal.SIGKILL)
        process.communicate()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    again = json.loads((killed / "report.json").read_text(encoding="utf-8"))
    assert again == json.loads((whole / "report.json").read_text(encoding="utf-8"))


def test_another_demo_in_the_folder_is_refused_before_anything_is_loaded(tmp_path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".medagent-demo").touch()
    settings = settings_for("/no/such.gguf")
    (tmp_path / "out" / "demo.json").write_text(json.dumps(asdict(replace(settings, seed=1))))
    with pytest.raises(ConfigError, match="holds another demonstration .*--overwrite true"):
        run_demo(tmp_path / "out", settings, overwrite=False)


def test_overwriting_leaves_files_of_others(tmp_path) -> None:
    settings = settings_for("smollm2")
    begin(tmp_path, settings, overwrite=False)
    (tmp_path / "notes.txt").write_text("mine")
    for name in ("answers", "checkpoints", "index"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "old").touch()
    begin(tmp_path, settings, overwrite=False)
    assert (tmp_path / "answers" / "old").exists()
    begin(tmp_path, replace(settings, seed=5), overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo.json", "notes.txt"]
    assert json.loads((tmp_path / "demo.json").read_text())["seed"] == 5


def test_settings_that_would_fail_after_the_first_stages_are_refused_at_once() -> None:
    right = DemoSettings("smollm2", 0, 8, 1, 0)
    for name, value in (
        ("iterations", 0),
        ("iterations", -1),
        ("demonstrations", 7),
        ("threads", -1),
        ("seed", -1),
        ("questions_per_kind", 0),
    ):
        with pytest.raises(ConfigError, match=f"--{name}: found {value}, wanted"):
            replace(right, **{name: value})


def test_two_processes_do_not_write_one_demo(tmp_path, monkeypatch) -> None:
    out, settings = tmp_path / "out", settings_for("smollm2")
    seen: list[str] = []

    def run(self: object) -> dict[str, object]:
        with pytest.raises(ConfigError, match="another process is at work"):
            run_demo(out, settings, overwrite=True)
        with RunFolder(out, "run").sole_writer():  # as a training takes it
            seen.append("run")
        return {}

    monkeypatch.setattr(demo._Demo, "run", run)
    run_demo(out, settings, overwrite=False)
    run_demo(out, settings, overwrite=True)
    assert seen == ["run", "run"]
    assert (out / "demo.json").exists()


def test_the_demo_of_the_starter_does_not_replace_it(tmp_path, capsys) -> None:
    out = tmp_path / "out"
    RunFolder(out, "demo").claim()
    begin(out, settings_for("smollm2"), overwrite=False)
    assert main(["demo", "--out", str(out)]) == 1
    assert "holds the demo of a pretrained model" in capsys.readouterr().err
    assert not (out / "index").exists()


def test_an_absent_base_is_named_before_anything_is_made(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--base", "no/such.gguf"]) == 1
    assert "no/such.gguf" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    (tmp_path / "empty").mkdir()
    assert main(["demo", "--base", "empty"]) == 1
    assert "base model 'empty': its configuration cannot be read" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_a_demo_knows_its_base_from_any_folder(tiny, monkeypatch, tmp_path) -> None:
    file = Path(tiny[0])
    monkeypatch.setenv("MEDAGENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(file.parent)
    found = []
    monkeypatch.setattr(demo, "run_demo", lambda out, settings, *, overwrite: found.append((out, settings)))
    assert main(["demo", "--base", file.name, "--questions_per_kind", "3"]) == 0
    ((out, settings),) = found
    assert (str(out), settings.base, settings.questions_per_kind) == ("runs/tiny", str(file), 3)


def test_a_base_without_a_chat_template_is_asked_in_plain_text(tiny_base, tmp_path) -> None:
    plain = tmp_path / "plain"
    shutil.copytree(tiny_base, plain)
    (plain / "chat_template.jinja").unlink()
    for base, chats in ((tiny_base, True), (str(plain), False)):
        made = demo._Demo(tmp_path, settings_for(base))
        assert made._protocol.chat is chats
        for stage in (stage for stage in PRETRAINED_STAGES if stage.config):
            assert made._overrides(stage)["data.agent.protocol.init_args.chat"] == str(chats).lower()


def test_a_large_base_learns_from_examples_at_a_lower_rate(tiny_base, tmp_path, monkeypatch) -> None:
    learning, reinforcing = (stage for stage in PRETRAINED_STAGES if stage.config)
    made = demo._Demo(tmp_path, settings_for(tiny_base))
    assert "model.policy_lr" not in made._overrides(learning)
    monkeypatch.setattr(demo, "num_parameters", lambda base: 494_000_000)
    assert made._overrides(learning)["model.policy_lr"] == 3e-4
    assert "model.policy_lr" not in made._overrides(reinforcing)


def test_the_table_shows_what_was_measured_and_leaves_the_rest_empty() -> None:
    by_type = {"one_hop": Accuracy(0.75, 0.5, 0.9, 4), "two_hop": Accuracy(0.25, 0.1, 0.5, 4)}
    found = replace(summarize([]), overall=Accuracy(0.5, 0.25, 0.75, 8), lenient_accuracy=0.625, by_type=by_type)
    found = replace(found, unparsed=2, no_answer=1, searches_per_question=1.5)
    worse = replace(found, overall=Accuracy(0.2, 0.1, 0.3, 8))
    trained = {"search": found, "forced_search": found, "unrelated": worse, "permuted": found}
    columns = {"untrained": {"search": found, "single_shot": found}, "examples": trained, "trained": trained}
    table = report_table(columns, halved=True)
    rows = {name: cells for name, *cells in table.rows}
    assert table.head == ("", "untrained", "after examples", "after RL")
    assert rows["accuracy, greedy [95% interval]"][2] == "50.0% [25.0, 75.0]"
    assert rows["  two-hop questions"] == ["25.0%"] * 3
    assert rows["one search given, then the answer, read so too (chance 25%)"] == ["62.5%", "", ""]
    assert rows["searches return unrelated passages (chance 25%)"] == ["", "20.0%", "20.0%"]
    assert rows["searches per question"] == ["1.50"] * 3
    assert rows["unparsed or missing answers"] == ["3"] * 3
    assert "accuracy, sampled" not in rows


@pytest.mark.slow
def test_the_demo_of_the_starter_from_end_to_end(tmp_path: Path, capsys) -> None:
    run_demo(tmp_path, DemoSettings("starter", 3, None, iterations=1, threads=0, questions_per_kind=10))
    report = json.loads((tmp_path / "report.json").read_text())
    for part in ("before", "after"):
        row = report[part]["search"]
        assert 0 <= row["ci_low"] <= row["accuracy"] <= row["ci_high"] <= 1
        assert row["n"] == 20
        assert set(row["by_type"]) == {"one_hop", "two_hop"}
        assert {"search", "sampled", "forced_search", "unrelated"} <= set(report[part])
    assert report["settings"]["seed"] == 3
    assert 0 <= report["after"]["permuted"]["accuracy"] <= 1
    assert report["comparison"]["n"] == 20
    out = capsys.readouterr().out
    for text in ("Before training", "After training", "One question aloud", "not medical advice", "Next:"):
        assert text in out
    page = (tmp_path / "report.html").read_text()
    assert report["tables"][0]["head"] == ["", "before", "after"]
    assert "The collapse monitor saw no collapse." in page
    assert Path(read_spec(tmp_path / "agent").retriever.index) == (tmp_path / "index").resolve()
