"""Studies: what a grid runs and keeps."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file, save_file

from medagent.agent_spec import read_spec, write_spec
from medagent.errors import ConfigError, MedagentError
from medagent.models.base_models import STARTER, model_path
from medagent.training.callbacks.export import read_metrics
from medagent.training.studies import study as module
from medagent.training.studies.report import write_report
from medagent.training.studies.running import _given, refuse_unfinished, run_study
from medagent.training.studies.study import STARTS, Arm, Study, kept_seeds, load_study, study_cells

MEASURED = module.STUDIES / "stability" / "configs" / "parts" / "measured.yaml"


@pytest.mark.parametrize("name", module.known_studies())
def test_every_study_of_the_checkout_loads(name: str) -> None:
    study = load_study(name)
    assert len(study.arms) * len(study.seeds) > 1


def test_an_unknown_study_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"study stabilty: found no study.*collapse,.*mild-stress,.*give a YAML file"):
        load_study("stabilty")


def test_a_study_name_outside_a_checkout_is_an_error_that_asks_for_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STUDIES", tmp_path / "studies")
    with pytest.raises(ConfigError, match=r"study collapse: found no study.*there is no .*studies.*give a YAML file"):
        load_study("collapse")


def test_files_beside_the_study_come_before_those_under_configs(tmp_path: Path) -> None:
    (tmp_path / "mine" / "parts").mkdir(parents=True)
    plan = tmp_path / "mine" / "plan.yaml"
    plan.write_text("title: x\ntask: [starter.yaml, parts/measured.yaml]\narms: {PPO: {configs: []}}\nseeds: [1]\n")
    with pytest.raises(ConfigError, match=r"no configuration file parts/measured\.yaml, neither in .*mine nor in"):
        load_study(str(plan))
    (tmp_path / "mine" / "parts" / "measured.yaml").write_text(MEASURED.read_text())
    study = load_study(str(plan))
    assert study.path("parts/measured.yaml") == plan.parent / "parts" / "measured.yaml"
    assert study.path("starter.yaml") == module.CONFIGS / "starter.yaml"
    (tmp_path / "mine" / "starter.yaml").write_text("seed_everything: 7\n")
    assert study.path("starter.yaml") == plan.parent / "starter.yaml"


def test_a_study_with_inconsistent_settings_is_refused(tmp_path: Path) -> None:
    plan = {
        "title": "x",
        "task": ["starter.yaml", str(MEASURED)],
        "arms": {"PPO": {"configs": ["algorithms/ppo.yaml"]}},
        "seeds": [1],
    }
    path = tmp_path / "plan.yaml"

    def load(**changes: object) -> Study:
        path.write_text(yaml.safe_dump(plan | changes))
        return load_study(str(path))

    assert load().arms["PPO"] == Arm(["algorithms/ppo.yaml"])
    with pytest.raises(ConfigError, match="arm PPO is not measured on held-out questions after every iteration"):
        load(task=["starter.yaml"])
    with pytest.raises(ConfigError, match=r"no configuration file nowhere\.yaml"):
        load(task=["nowhere.yaml"])
    with pytest.raises(ConfigError, match="seeds that differ"):
        load(seeds=[1, 1])
    with pytest.raises(ConfigError, match="tuned is 'GRPO', wanted one of PPO"):
        load(tuned="GRPO")
    with pytest.raises(ConfigError, match="compared names 'GRPO', wanted one of PPO"):
        load(compared=[["PPO", "GRPO"]])
    with pytest.raises(ConfigError, match="jobs"):
        run_study(load(), tmp_path / "out", jobs=0, threads=1)
    with pytest.raises(ConfigError, match=r"no arm 'GRPO', wanted some of \['PPO'\]"):
        run_study(load(), tmp_path / "out", jobs=1, threads=1, arms=["GRPO"])
    with pytest.raises(ConfigError, match=r"no seed 6, wanted some of \[1\]"):
        run_study(load(), tmp_path / "out", jobs=1, threads=1, seeds=[6])
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError):
        load(arms={"PPO": {"config": "algorithms/ppo.yaml"}})


@pytest.fixture
def small(tmp_path: Path) -> Study:
    """Two cells of two tiny iterations."""
    extra = tmp_path / "small.yaml"
    measured = MEASURED.read_text().replace("per_kind: 60", "per_kind: 4")
    extra.write_text(
        measured.replace("trainer:", "trainer:\n  max_epochs: 2") + "data: {num_questions: 8, num_minibatches: 1}\n"
    )
    return Study("small", ["starter.yaml", str(extra)], {"PPO": Arm(["algorithms/ppo.yaml"])}, [1, 2])


@pytest.mark.long
def test_finished_runs_are_not_run_again(small: Study, tmp_path: Path) -> None:
    out = tmp_path / "study"
    (asked,) = run_study(small, out, jobs=2, threads=1, seeds=[2])
    assert [cell.finished for cell in study_cells(small, out)] == [False, True]
    stamp = (asked.folder / STARTS).stat().st_mtime_ns
    assert kept_seeds(out) == [2]
    cells = run_study(small, out, jobs=2, threads=1, arms=["PPO"])
    assert (cells[1].folder / STARTS).stat().st_mtime_ns == stamp
    assert [(cell.arm, cell.seed, cell.finished) for cell in cells] == [("PPO", 1, True), ("PPO", 2, True)]
    stamps = [(cell.folder / STARTS).stat().st_mtime_ns for cell in cells]
    commented = tmp_path / "small.yaml"
    commented.write_text("# A remark changes nothing.\n" + commented.read_text())
    assert run_study(small, out, jobs=2, threads=1) == cells
    assert [(cell.folder / STARTS).stat().st_mtime_ns for cell in cells] == stamps, "finished runs are kept"
    text = write_report(small, cells, out)
    assert "| PPO | 2 |" in text
    assert text.count("Made with code") == 1
    assert text == (out / "report.md").read_text().rstrip("\n")
    with (out / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["arm"], row["seed"], row["iteration"]) for row in rows] == [
        ("PPO", seed, iteration) for seed in "12" for iteration in "12"
    ]
    assert all(0 <= float(row["validation/accuracy"]) <= 1 for row in rows)
    assert all(cell.wall_s > 0 for cell in cells)


@pytest.mark.long
@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])  # SIGTERM takes the path of SIGHUP
def test_a_stopped_study_ends_its_runs_and_goes_on_when_called_again(small: Study, tmp_path: Path, number: int) -> None:
    out, plan = tmp_path / "study", tmp_path / "plan.yaml"
    plan.write_text(
        yaml.safe_dump(
            {"title": "small", "task": small.task, "arms": {"PPO": {"configs": ["algorithms/ppo.yaml"]}}, "seeds": [1]}
        )
    )
    command = [sys.executable, "-m", "medagent.cli.main", "study", str(plan), "--out", str(out)]
    log = out / "runs" / "ppo-1" / "log.txt"
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (log.exists() and "iteration" in log.read_text()):
        assert process.poll() is None, "it ended before its first iteration did"
        assert time.monotonic() < deadline, "the first iteration never ended"
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(timeout=60) != 0
    told = log.read_text()
    time.sleep(2)
    assert log.read_text() == told, "nobody writes any more"
    (start,) = json.loads((out / "runs" / "ppo-1" / STARTS).read_text())
    assert start["returncode"] != 0
    assert start["wall_s"] > 0
    (cell,) = run_study(load_study(str(plan)), out, jobs=1, threads=1)
    assert cell.finished
    assert [begun["returncode"] == 0 for begun in cell.starts] == [False, True]
    assert len(read_metrics(cell.folder)) == 2


@pytest.mark.long
def test_a_failed_run_is_named_and_another_plan_is_refused(small: Study, tmp_path: Path) -> None:
    broken = Study(
        "broken", small.task, {"PPO": Arm(["algorithms/ppo.yaml"], {"model.policy_loss.init_args.clip_low": 7})}, [1]
    )
    cells = run_study(broken, tmp_path / "study", jobs=1, threads=1)
    with pytest.raises(MedagentError, match=r"1 of 1 runs failed; see .*log\.txt"):
        refuse_unfinished(cells)
    log = tmp_path / "study" / "runs" / "ppo-1" / "log.txt"
    assert "ClippedSurrogate.clip_low: found 7" in log.read_text()
    (start,) = cells[0].starts
    assert start["returncode"] != 0
    assert start["wall_s"] > 0
    with pytest.raises(ConfigError, match="run with other settings, other files for them or another base"):
        run_study(small, tmp_path / "study", jobs=1, threads=1)


@pytest.mark.long
def test_the_base_of_a_study_is_trained_within_its_own_limits(small: Study, tmp_path: Path) -> None:
    base, out = tmp_path / "base", tmp_path / "study"
    shutil.copytree(model_path(STARTER), base)
    spec = read_spec(base)
    write_spec(base, replace(spec, limits=replace(spec.limits, max_turn_tokens=50, max_total_tokens=520)))
    weights = load_file(base / "model.safetensors")
    save_file({name: 1.01 * weight for name, weight in weights.items()}, base / "model.safetensors", {"format": "pt"})
    other = replace(small, base=str(base))
    (cell,) = run_study(other, out, jobs=1, threads=1, seeds=[1])
    assert cell.finished
    settings = yaml.safe_load((cell.folder / "config.yaml").read_text())
    assert settings["model"]["base_model"] == str(base)
    assert settings["data"]["agent"]["limits"] == {
        "max_turns": 4,
        "max_turn_tokens": 50,
        "max_observation_tokens": 160,
        "max_total_tokens": 520,
    }
    with pytest.raises(ConfigError, match="or another base"):
        run_study(small, out, jobs=1, threads=1)
    shutil.copy(Path(model_path(STARTER)) / "model.safetensors", base)
    with pytest.raises(ConfigError, match="or another base"):
        run_study(other, out, jobs=1, threads=1)  # the same limits, other weights


def test_a_base_without_weights_is_refused(small: Study, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no agent\.json. Give a folder that `medagent starter build`"):
        replace(small, base=str(tmp_path))


def test_settings_are_given_to_the_command_line_as_json() -> None:
    given = {None: "null", 0.5: "0.5", True: "true", "text": "text", Path("a/b"): "a/b"}
    assert {value: _given(value) for value in given} == given
    assert _given(["a", 1]) == '["a", 1]'


def test_arms_that_would_share_a_folder_are_refused() -> None:
    with pytest.raises(ConfigError, match="share a folder"):
        Study("x", [], {"A+B": Arm([]), "A B": Arm([])}, [1])
