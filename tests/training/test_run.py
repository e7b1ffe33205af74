"""Whole runs through the command's own path: what they write, and that stopping changes nothing."""

from __future__ import annotations

import csv
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
import yaml

from medagent.agent import Job
from medagent.agent_folder import load_agent
from medagent.agent_spec import read_spec
from medagent.cli.demo import DemoSettings, run_demo
from medagent.cli.main import main
from medagent.errors import ConfigError, InputError
from medagent.evaluation.rollout_files import readable
from medagent.evaluation.viewer.recorded import read_metrics
from medagent.models.base_models import STARTER, model_path
from medagent.run_folder import LOCK, RunFolder
from medagent.starter.world import World
from medagent.training.command import train_command
from medagent.training.run import _claim, _KeptCSVLogger, _refuse_changes, newest_checkpoint
from tests.training.support import arguments, numbers


@pytest.fixture(scope="module")
def whole(train_index: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_command(arguments(tmp_path_factory.mktemp("whole") / "run", train_index, epochs=4))


@pytest.mark.slow
def test_a_run_writes_what_it_promises(whole: Path) -> None:
    rows = read_metrics(whole)
    assert len(rows) == 4
    assert {"policy/loss", "critic/loss", "rollout/turns", "time/rollout"} <= rows[0].keys()
    config = yaml.safe_load((whole / "config.yaml").read_text())
    assert config["data"]["num_questions"] == 16
    assert config["model"]["weight_decay"] == 0, "defaults are written out too"
    assert "overwrite" not in config
    assert "validation/accuracy" in rows[1], "the held-out evaluation ran"
    lines = gzip.decompress((whole / "rollouts" / "iteration_0002.jsonl.gz").read_bytes()).splitlines()
    records = [json.loads(line) for line in lines]
    assert len(records) == 16
    assert {record["policy_version"] for record in records} == {2}
    assert all(record["turns"] for record in records)
    assert list(whole.glob("tensorboard/**/events*"))


def test_training_on_the_held_out_questions_is_refused(train_index: Path, tmp_path: Path) -> None:
    given = arguments(tmp_path / "run", train_index, epochs=1)
    config = Path(given[1])
    config.write_text(config.read_text().replace("split: validation", "split: train"))
    with pytest.raises(InputError, match="of 16 test questions .* are near-duplicates of training texts"):
        train_command(given)


@pytest.mark.slow
def test_the_exported_agent_is_the_trained_one(whole: Path, train_index: Path) -> None:
    spec = read_spec(whole / "agent")
    assert spec.base_model == "starter"
    assert Path(spec.retriever.index) == train_index  # type: ignore[union-attr]
    agent = load_agent(whole / "agent")
    weights = torch.load(newest_checkpoint(whole), weights_only=True)["state_dict"]
    name = "shared_base.peft.base_model.model.model.layers.0.self_attn.q_proj.lora_{}.policy.weight"
    delta = 2 * weights[name.format("B")] @ weights[name.format("A")]
    assert delta.abs().max() > 1e-4
    base = load_agent(Path(model_path(STARTER)), retriever=agent.retriever)
    q = "model.layers.0.self_attn.q_proj.weight"
    moved = agent.policy.model.state_dict()[q] - base.policy.model.state_dict()[q]
    torch.testing.assert_close(moved, delta, rtol=1e-4, atol=1e-6)
    question = World.load().questions("validation")[0]
    assert readable(agent.run_all([Job(question, temperature=0.0)])[0])["turns"]


@pytest.mark.long
def test_a_run_that_was_stopped_is_enough_when_no_more_is_asked_for(train_index: Path, tmp_path: Path, capsys) -> None:
    """It was stopped after two iterations of more. Then two are asked for, and its agent is wanted."""
    run = train_command(arguments(tmp_path / "run", train_index, epochs=2))
    agent = run / "agent"
    whole = {path.name: path.read_bytes() for path in agent.rglob("*.safetensors")}
    spec = json.loads((agent / "agent.json").read_text())
    assert whole
    for older in (False, True):  # no agent yet, as in a run of more iterations; one of an earlier end
        if older:
            spec["training"]["iterations"] = "4"
            (agent / "agent.json").write_text(json.dumps(spec))
        else:
            shutil.rmtree(agent)
        capsys.readouterr()
        train_command(arguments(tmp_path / "run", train_index, epochs=2))
        assert "Nothing is left to do: the run has made 2 of the 2 trainer.max_epochs." in capsys.readouterr().out
        assert {path.name: path.read_bytes() for path in agent.rglob("*.safetensors")} == whole
        assert read_spec(agent).training["iterations"] == "2"
    before = (run / "config.yaml").read_bytes()
    with pytest.raises(ConfigError, match=r"found 2 iterations done, wanted at most trainer\.max_epochs, 1\."):
        train_command(arguments(tmp_path / "run", train_index, epochs=1))
    assert (run / "config.yaml").read_bytes() == before


@pytest.mark.slow
def test_a_resumed_run_equals_the_uninterrupted_one(whole: Path, train_index: Path, tmp_path: Path) -> None:
    train_command(arguments(tmp_path / "run", train_index, epochs=2))
    train_command(arguments(tmp_path / "run", train_index, epochs=4))
    assert numbers(tmp_path / "run") == numbers(whole)
    one, two = (torch.load(newest_checkpoint(r), weights_only=True)["state_dict"] for r in (tmp_path / "run", whole))
    assert all(torch.equal(one[name], two[name]) for name in two)


@pytest.mark.long
def test_a_killed_run_goes_on_to_the_same_numbers(train_index: Path, tmp_path: Path) -> None:
    """kill -9 at whatever moment it comes, then the same command again; all in processes of their own."""

    def command(run: Path) -> list[str]:
        settings = arguments(run, train_index, epochs=3, threads=1)
        return [sys.executable, "-m", "medagent.cli.main", "train", *settings]

    def finish(run: Path) -> None:
        subprocess.run(command(run), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=300)

    run, other = tmp_path / "run", tmp_path / "other"
    process = subprocess.Popen(command(run), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (run / "checkpoints" / "epoch=1.ckpt").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert newest_checkpoint(run) is not None
    finish(run)
    finish(other)
    assert [row["epoch"] for row in read_metrics(run)] == [0, 1, 2]
    assert numbers(run) == numbers(other)
    for iteration in range(3):
        for end in ("jsonl.gz", "summary.json"):
            name = f"iteration_{iteration:04d}.{end}"
            assert (run / "rollouts" / name).read_bytes() == (other / "rollouts" / name).read_bytes()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a file was opened, not yet held
def test_a_stop_at_any_line_of_the_logger_keeps_every_row(tmp_path: Path) -> None:
    """A study that was interrupted while a column was added lost its first iteration."""

    def stop_at(line: int) -> bool:
        left = line

        def trace(frame: FrameType, event: str, argument: object) -> object:
            nonlocal left
            left -= event == "line"
            if left == 0:
                raise KeyboardInterrupt
            return trace

        rows = _KeptCSVLogger(tmp_path, name="logs", version=line, flush_logs_every_n_steps=1)
        rows.log_metrics({"epoch": 0, "a": 1.0}, step=0)
        stopped, before = False, sys.gettrace()
        try:
            sys.settrace(trace)
            rows.log_metrics({"epoch": 1, "b": 2.0}, step=1)
        except KeyboardInterrupt:
            stopped = True
        finally:
            sys.settrace(before)
        rows.finalize("failed")
        with Path(rows.log_dir, "metrics.csv").open() as file:
            kept = [{name: value for name, value in row.items() if value} for row in csv.DictReader(file)]
        assert kept[0] == {"a": "1.0", "epoch": "0", "step": "0"}
        assert all(row == {"b": "2.0", "epoch": "1", "step": "1"} for row in kept[1:])
        return stopped

    assert next(line for line in count(1) if not stop_at(line)) > 50


def test_a_folder_that_is_not_a_run_is_never_touched(train_index: Path, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "mine.txt").write_text("precious")
    with pytest.raises(ConfigError, match="no run of ours"):
        train_command(arguments(tmp_path, train_index, epochs=1, overwrite=True))
    assert (tmp_path / "logs" / "mine.txt").read_text() == "precious"
    with pytest.raises(ConfigError, match="no demo of ours wrote"):
        run_demo(tmp_path, DemoSettings("starter", 0, None, iterations=1, threads=0))


@pytest.mark.slow
def test_a_folder_with_another_run_is_refused_and_kept(whole: Path, train_index: Path) -> None:
    before = sorted(path.name for path in whole.rglob("*"))
    with pytest.raises(ConfigError, match="policy_lr.*--overwrite"):
        train_command(arguments(whole, train_index, epochs=4, **{"model.policy_lr": 0.5}))
    assert sorted(path.name for path in whole.rglob("*")) == before


def test_a_run_whose_settings_name_a_class_by_another_path_goes_on(tmp_path: Path) -> None:
    def settings(reward: str, epochs: int) -> dict[str, Any]:
        return {"trainer": {"max_epochs": epochs}, "data": {"reward": [{"class_path": reward}]}}

    before = settings("medagent.training.rewards.F1", 2)
    _refuse_changes(tmp_path, before, settings("medagent.training.F1", 4))
    with pytest.raises(ConfigError, match=r"data\.reward\.0\.class_path.*--overwrite"):
        _refuse_changes(tmp_path, before, settings("medagent.training.ExactMatch", 4))


def test_a_run_of_an_earlier_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.yaml").write_text("trainer: {accumulate_grad_batches: 4}\n")
    progress = {"optimizer": {"step": {"total": {"completed": 8}}}}
    loops = {"fit_loop": {"epoch_loop.automatic_optimization.optim_progress": progress}}
    checkpoint = {"epoch": 0, "state_dict": {}, "optimizer_states": [], "loops": loops}
    torch.save(checkpoint, tmp_path / "checkpoints" / "epoch=0.ckpt")
    folder = RunFolder(tmp_path, "run", "--trainer.default_root_dir")
    folder.mark()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=r"earlier version.*wanted.*--trainer\.default_root_dir.*--overwrite true"):
        _claim(folder, {"trainer": {}}, 2, overwrite=False)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_folder_in_which_another_process_trains_is_refused(train_index: Path, tmp_path: Path) -> None:
    other = RunFolder(tmp_path, "run")
    with other.sole_writer(), pytest.raises(ConfigError, match=r"at work there \(run, process \d+\).*default_root_dir"):
        train_command(arguments(tmp_path, train_index, epochs=1))
    assert [path.name for path in tmp_path.iterdir()] == [LOCK], "nothing else was written"


@pytest.mark.parametrize("command", ["train", "sft"])
def test_a_rank_is_ended_when_its_work_is_done_and_only_then(command: str, monkeypatch) -> None:
    done: list[object] = []
    monkeypatch.setattr(f"medagent.training.command.{command}_command", done.append)
    monkeypatch.setattr("medagent.training.run.end_rank", lambda: done.append("ended"))
    assert main([command, "--threads", "1"]) == 0
    assert done == [["--threads", "1"], "ended"]

    def fails(arguments: list[str]) -> None:
        raise ConfigError("it cannot be")

    monkeypatch.setattr(f"medagent.training.command.{command}_command", fails)
    assert main([command]) == 1
    assert done[2:] == [], "its status must reach the launcher"


RANK = """
import atexit, sys
import torch.distributed as dist
from medagent.training.run import end_rank

class Finalised:
    def __del__(self):
        print("finalised")

held = Finalised()
atexit.register(print, "closed")
if len(sys.argv) > 1:
    dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
end_rank()
print("went on")
"""


@pytest.mark.long
@pytest.mark.parametrize(("ranks", "said"), [(False, ["went on", "closed", "finalised"]), (True, ["closed"])])
def test_a_rank_on_cpus_ends_without_the_finalisation_in_which_gloo_aborts(tmp_path: Path, ranks, said) -> None:
    line = [sys.executable, "-c", RANK, *([str(tmp_path / "store")] if ranks else [])]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.split("\n")[:-1]) == (0, said), done.stderr
