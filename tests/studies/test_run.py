"""Studies: what a grid runs and keeps."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file, save_file

from medagent.agent_spec import read_spec, write_spec
from medagent.errors import ConfigError
from medagent.evaluation.viewer.recorded import read_metrics
from medagent.models.base_models import STARTER, model_path
from studies import processes as module
from studies.design import CONFIGS, STARTS, STUDIES, Arm, Study, known_studies, load_study, study_cells
from studies.processes import Processes
from studies.report import read_rows
from studies.run import run_study, write_report
from tests.support import ROOT

MEASURED = STUDIES / "stability" / "configs" / "parts" / "measured.yaml"


def test_every_study_loads_and_an_unknown_one_is_an_error_that_lists_them() -> None:
    assert len(known_studies()) > 20
    for name in known_studies():
        study = load_study(name)
        assert len(study.arms) * len(study.seeds) > 1
    with pytest.raises(ConfigError, match=r"study stabilty: .*collapse,.*mild-stress,.*give a YAML file"):
        load_study("stabilty")


def test_files_beside_the_study_come_before_those_under_configs(tmp_path: Path) -> None:
    (tmp_path / "mine" / "parts").mkdir(parents=True)
    plan = tmp_path / "mine" / "plan.yaml"
    plan.write_text("title: x\ntask: [starter.yaml, parts/measured.yaml]\narms: {PPO: {configs: []}}\nseeds: [1]\n")
    with pytest.raises(ConfigError, match=r"parts/measured\.yaml, neither in .*mine nor in"):
        load_study(str(plan))
    (tmp_path / "mine" / "parts" / "measured.yaml").write_text(MEASURED.read_text())
    study = load_study(str(plan))
    assert study.path("parts/measured.yaml") == plan.parent / "parts" / "measured.yaml"
    assert study.path("starter.yaml") == CONFIGS / "experiments" / "starter.yaml"
    (tmp_path / "mine" / "starter.yaml").write_text("seed_everything: 7\n")
    assert study.path("starter.yaml") == plan.parent / "starter.yaml"


def test_a_study_with_inconsistent_settings_is_refused(tmp_path: Path) -> None:
    plan = {"title": "x", "task": ["starter.yaml"], "arms": {"PPO": {"configs": ["algorithms/ppo.yaml"]}}, "seeds": [1]}
    path = tmp_path / "plan.yaml"

    def load(**changes: object) -> Study:
        path.write_text(yaml.safe_dump(plan | changes))
        return load_study(str(path))

    assert load().arms["PPO"] == Arm(["algorithms/ppo.yaml"])
    for changes, told in (
        ({"task": ["nowhere.yaml"]}, r"nowhere\.yaml"),
        ({"seeds": [1, 1]}, "seeds that differ"),
        ({"compared": [["PPO", "GRPO"]]}, "compared names 'GRPO', wanted one of PPO"),
        ({"arms": {"A+B": {"configs": []}, "A B": {"configs": []}}}, "share a folder"),
        ({"arms": {"PPO": {"config": "algorithms/ppo.yaml"}}}, "study"),
        ({"examples": ["starter.yaml"]}, "wanted examples and evaluations together"),
        ({"arms": {"SFT": {"configs": [], "trained": False}}}, "SFT is not trained, and there are no examples"),
        ({"arms": {"A": {"configs": [], "share_of": "B"}}}, "A has the share of 'B', wanted an arm before it"),
        ({"base": str(tmp_path)}, r"no agent\.json. Give a folder that `python -m studies.starter_base`"),
    ):
        with pytest.raises(ConfigError, match=told):
            load(**changes)
    for asked, told in (({"jobs": 0}, "jobs"), ({"arms": ["GRPO"]}, "GRPO.*PPO"), ({"seeds": [6]}, r"seed 6.*\[1\]")):
        with pytest.raises(ConfigError, match=told):
            run_study(load(), tmp_path / "out", **asked)
    with pytest.raises(ConfigError, match="found no index nowhere.*--index"):
        run_study(load(index="nowhere", base="org/name"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_processes_that_are_stopped_end_and_none_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE_S", 0.2)
    processes, log = Processes(), tmp_path / "log"
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(processes.run, [sys.executable, "-c", deaf], log=log, threads=1)
        while not (log.exists() and log.read_text()):
            time.sleep(0.02)
        processes.stop()
        assert ended.result(timeout=10) == -signal.SIGKILL
    assert processes.run(["touch", str(tmp_path / "made")], log=log, threads=1) == 1
    assert not (tmp_path / "made").exists()


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
    (asked,) = run_study(small, out, jobs=2, seeds=[2])
    assert [cell.finished for cell in study_cells(small, out)] == [False, True]
    stamp = (asked.folder / STARTS).stat().st_mtime_ns
    commented = tmp_path / "small.yaml"
    commented.write_text("# A remark changes nothing.\n" + commented.read_text())
    cells = run_study(small, out, jobs=2, arms=["PPO"])
    assert [(cell.arm, cell.seed, cell.finished) for cell in cells] == [("PPO", 1, True), ("PPO", 2, True)]
    assert (cells[1].folder / STARTS).stat().st_mtime_ns == stamp, "finished runs are kept"
    text = write_report(small, cells, out)
    assert "| PPO | 2 |" in text
    assert text.count("Made with code") == 1
    assert text == (out / "report.md").read_text().rstrip("\n")
    assert [(row["arm"], row["seed"]) for row in read_rows(out / "runs.csv")] == [("PPO", 1), ("PPO", 2)]
    assert 10_000 < (out / "figures.svg").stat().st_size < 500_000


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
    command = [sys.executable, "-m", "studies.run", str(plan), "--out", str(out)]
    log = out / "runs" / "ppo-1" / "log.txt"
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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
    (cell,) = run_study(load_study(str(plan)), out)
    assert cell.finished
    assert [begun["returncode"] == 0 for begun in cell.starts] == [False, True]
    assert len(read_metrics(cell.folder)) == 2


@pytest.mark.long
def test_a_failed_run_is_named_and_another_plan_is_refused(tmp_path: Path) -> None:
    plan, out = tmp_path / "plan.yaml", tmp_path / "study"
    arm = {"configs": ["algorithms/ppo.yaml"], "settings": {"model.policy_loss.init_args.clip_low": 7}}
    plan.write_text(yaml.safe_dump({"title": "x", "task": ["starter.yaml"], "arms": {"PPO": arm}, "seeds": [1]}))
    command = [sys.executable, "-m", "studies.run", str(plan), "--out", str(out)]
    failed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    log = out / "runs" / "ppo-1" / "log.txt"
    assert failed.returncode == 1
    assert f"1 of 1 runs failed; see {log}" in failed.stderr
    assert "ClippedSurrogate.clip_low: found 7" in log.read_text()
    (start,) = json.loads((log.parent / STARTS).read_text())
    assert start["returncode"] != 0
    assert start["wall_s"] > 0
    study = load_study(str(plan))
    with pytest.raises(ConfigError, match="run with other settings, other files for them or another base"):
        run_study(replace(study, arms={"PPO": Arm(["algorithms/ppo.yaml"])}), out)


@pytest.mark.long
def test_the_base_of_a_study_is_trained_within_its_own_limits(small: Study, tmp_path: Path) -> None:
    base, out = tmp_path / "base", tmp_path / "study"
    shutil.copytree(model_path(STARTER), base)
    spec = read_spec(base)
    write_spec(base, replace(spec, limits=replace(spec.limits, max_turn_tokens=50, max_total_tokens=520)))
    weights = load_file(base / "model.safetensors")
    save_file({name: 1.01 * weight for name, weight in weights.items()}, base / "model.safetensors", {"format": "pt"})
    other = replace(small, base=str(base))
    (cell,) = run_study(other, out, seeds=[1])
    assert cell.finished
    settings = yaml.safe_load((cell.folder / "config.yaml").read_text())
    assert settings["model"]["base_model"] == str(base)
    assert settings["data"]["agent"]["limits"] == {
        "max_turns": 4,
        "max_turn_tokens": 50,
        "max_observation_tokens": 160,
        "max_total_tokens": 520,
    }
    shutil.copy(Path(model_path(STARTER)) / "model.safetensors", base)
    for study in (small, other):  # the latter has the same limits, but other weights
        with pytest.raises(ConfigError, match="or another base"):
            run_study(study, out)
