"""Studies: what a grid runs and keeps, and that its verdicts follow from the numbers."""

from __future__ import annotations

import csv
import json
import math
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.torch import load_file, save_file

from medagent.causal_lm import STARTER, model_path
from medagent.errors import ConfigError, MedagentError
from medagent.saved import read_spec, write_spec
from tests.training.test_collapse import row
from training import study as module
from training.callbacks.export import read_metrics
from training.study import (
    STARTS,
    Arm,
    Cell,
    Study,
    _given,
    kept_seeds,
    load_study,
    refuse_unfinished,
    run_study,
    study_cells,
)
from training.study_report import Outcome, another, confusion, holm, interval, outcome, paired, report, write_report

# A study among the packaged files says what it compares; the others are parts of it.
STUDIES = sorted(path.stem for path in (module.CONFIGS / "studies").glob("*.yaml") if "\narms:" in path.read_text())


def run_of(*accuracies: float) -> list[dict[str, float]]:
    """A run whose sampled success is its held-out accuracy of the iteration before."""
    before = [0.3, *accuracies[:-1]]
    return [row(success) | {"validation/accuracy": after} for after, success in zip(accuracies, before, strict=True)]


def test_a_run_that_keeps_its_success_has_not_collapsed() -> None:
    found = outcome(run_of(0.4, 0.6, 0.9, 0.8, 0.7, 0.8))
    assert (found.best, found.final, found.start, found.alarm) == (pytest.approx(0.85), pytest.approx(0.75), None, None)


def test_exactly_ninety_percent_is_learnt_however_it_was_rounded() -> None:
    assert outcome(run_of(0.3, 0.9, float(np.float32(0.9)), 0.9)).learnt == 3
    assert outcome(run_of(0.3, *[float(np.float32(108 / 120))] * 2)).learnt == 3


def test_a_collapse_starts_where_success_stays_below_three_quarters_of_its_best() -> None:
    found = outcome(run_of(0.4, 0.7, 0.9, 0.5, 0.75, 0.4, 0.3, 0.3))  # best 0.8, bound 0.6: 0.5 recovers, 0.4 does not
    assert found.start == 6
    assert found.kept == pytest.approx(0.3 / 0.8)
    assert found.alarm == 6, "0.75 and 0.4 average 0.575: held-out accuracy decides"


def test_what_never_learnt_has_nothing_to_lose() -> None:
    found = outcome(run_of(0.3, 0.34, 0.34, 0.2, 0.1))  # the base's sampled success is 0.3
    assert (found.never_learnt, found.start, found.collapsed) == (True, None, False)
    assert outcome(run_of(0.3, 0.36, 0.36, 0.2, 0.1)).collapsed


def test_the_monitor_is_judged_by_when_it_speaks() -> None:
    def at(start: int | None, alarm: int | None) -> Outcome:
        return Outcome(
            best=1,
            final=0,
            mean=0,
            never_learnt=False,
            learnt=None,
            start=start,
            alarm=alarm,
            clip_fraction=0,
            token_clip_fraction=0,
            kl=0,
            grad_norm_p95=0,
        )

    cases = [at(None, None), at(None, 3), at(5, None), at(5, 8), at(5, 9), at(5, 4), at(8, 2)]
    assert confusion(cases) == {
        "named in time": 2,
        "named early": 1,
        "named late": 1,
        "missed": 1,
        "false alarm": 1,
        "rightly silent": 1,
    }


def test_the_interval_is_students() -> None:
    # Mean 2, standard deviation 1, t(0.975, 2) = 4.3027: half = 4.3027 / sqrt(3).
    assert interval([1.0, 2.0, 3.0]) == f"2 ± {4.3027 / math.sqrt(3):.2g}"
    assert interval([0.5]) == "0.5"
    assert interval([0.5, math.nan]) == ""


def test_another_run_is_predicted_with_its_own_noise() -> None:
    # Mean 0.5, standard deviation 0.1, t(0.975, 2) = 4.3027: half = 0.43027 x sqrt(4/3) = 0.4968.
    assert another([0.4, 0.5, 0.6]) == "0.00 to 1.00"
    assert another([0.49, 0.5, 0.51]) == "0.45 to 0.55"
    assert another([0.5]) == ""


def test_two_arms_are_compared_seed_by_seed() -> None:
    # Differences 0.4, 0.2, 0.4: mean 1/3, standard deviation 0.11547, so t = 5 with 2 degrees of freedom.
    difference, half, p = paired([0.9, 0.8, 0.7], [0.5, 0.6, 0.3])
    assert difference == pytest.approx(1 / 3)
    assert half == pytest.approx(4.3027 * 0.11547 / math.sqrt(3), rel=1e-4)
    assert p == pytest.approx(0.0377, abs=1e-4)


def test_p_values_are_corrected_for_their_number() -> None:
    # 0.01 x 4, then 0.02 x 3; 0.03 x 2 and 0.6 x 1 in the order of size, none smaller than one before it.
    assert holm([0.03, 0.01, 0.6, 0.02]) == pytest.approx([0.06, 0.04, 0.6, 0.06])
    assert holm([0.4, 0.9]) == pytest.approx([0.8, 0.9])
    assert holm([]) == []


def test_the_report_compares_what_the_study_names_on_the_seeds_that_both_have(tmp_path: Path) -> None:
    pairs = [("ours", "theirs"), ("theirs", "lonely")]
    arms = {name: Arm([]) for name in ("ours", "theirs", "lonely")}
    study = Study("a title", [], arms, [1, 2, 3], compared=pairs)
    finals = {"ours": (0.9, 0.8, 0.7), "theirs": (0.5, 0.6, 0.3), "lonely": (0.4,)}
    runs = {(arm, seed): run_of(0.3, x, x) for arm, values in finals.items() for seed, x in enumerate(values, start=1)}
    text = report(study, runs, {}, tmp_path)
    assert "| final | ours less theirs | 3 | +0.333 ± 0.29 | 0.038 | 0.075 | 3 of 3 |" in text
    assert "theirs less lonely" not in text, "one seed is no test"
    drawn = (tmp_path / "summary.svg").read_text(encoding="utf-8")
    assert "best (open) and final (filled)" in drawn


def test_an_arm_is_stable_only_if_it_also_learns(tmp_path: Path) -> None:
    names = ("tuned", "good", "collapses", "lazy")
    study = Study("a title", [], {name: Arm([]) for name in names}, [1], tuned="tuned")
    runs = {
        ("tuned", 1): run_of(0.5, 0.9, 0.9, 0.9),
        ("good", 1): run_of(0.5, 0.88, 0.88, 0.88),
        ("collapses", 1): run_of(0.9, 0.9, 0.3, 0.3),
        ("lazy", 1): run_of(0.3, 0.3, 0.3, 0.3),
    }
    unknown = report(replace(study, tuned=None), runs, {}, tmp_path)
    assert "| yes |" not in unknown, "without a tuned arm nobody knows what can be learnt"
    text = report(study, runs, dict.fromkeys(runs, 60.0), tmp_path)
    rows = {line.split(" | ")[0].strip("| "): line.split(" | ") for line in text.splitlines() if line.startswith("| ")}
    assert [rows[name][9] for name in names] == ["yes", "yes", "no", "no (learns less)"]
    assert [rows[name][8] for name in names] == ["0 of 1", "0 of 1", "1 of 1", "0 of 1 (1 never learnt)"]
    assert (tmp_path / "figures.svg").stat().st_size < 500_000
    assert [rows[name][7] for name in names] == ["3", "never", "2", "never"]
    assert "collapses,1,0.9000,0.3000,0.3333,0.6000,2,3" in (tmp_path / "runs.csv").read_text()


@pytest.mark.parametrize("name", STUDIES)
def test_the_packaged_studies_are_whole(name: str) -> None:
    assert {"stability", "ablation", "rescue", "collapse"} <= set(STUDIES)
    study = load_study(name)
    assert len(study.arms) * len(study.seeds) > 1


def test_a_study_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    plan = {
        "title": "x",
        "task": ["starter.yaml", "studies/measured.yaml"],
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
    with pytest.raises(ConfigError, match="no configuration file missing"):
        load_study("missing")


@pytest.fixture
def small(tmp_path: Path) -> Study:
    """Two cells of two tiny iterations."""
    extra = tmp_path / "small.yaml"
    measured = (module.CONFIGS / "studies" / "measured.yaml").read_text().replace("per_kind: 60", "per_kind: 4")
    extra.write_text(
        measured.replace("trainer:", "trainer:\n  max_epochs: 2") + "data: {num_questions: 8, num_minibatches: 1}\n"
    )
    return Study("small", ["starter.yaml", str(extra)], {"PPO": Arm(["algorithms/ppo.yaml"])}, [1, 2])


@pytest.mark.long
def test_a_study_runs_once_and_never_again(small: Study, tmp_path: Path) -> None:
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
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])  # SIGTERM takes the path of SIGHUP
def test_a_study_that_is_stopped_leaves_no_run_behind_and_goes_on(small: Study, tmp_path: Path, number: int) -> None:
    out, plan = tmp_path / "study", tmp_path / "plan.yaml"
    plan.write_text(
        yaml.safe_dump(
            {"title": "small", "task": small.task, "arms": {"PPO": {"configs": ["algorithms/ppo.yaml"]}}, "seeds": [1]}
        )
    )
    command = [sys.executable, "-m", "medagent.cli", "study", str(plan), "--out", str(out)]
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
def test_a_run_that_fails_is_named_and_another_plan_is_refused(small: Study, tmp_path: Path) -> None:
    broken = Study("broken", small.task, {"PPO": Arm(["algorithms/ppo.yaml"], {"model.clip_low": 7})}, [1])
    cells = run_study(broken, tmp_path / "study", jobs=1, threads=1)
    with pytest.raises(MedagentError, match=r"1 of 1 runs failed; see .*log\.txt"):
        refuse_unfinished(cells)
    log = tmp_path / "study" / "runs" / "ppo-1" / "log.txt"
    assert "model.clip_low" in log.read_text()
    (start,) = cells[0].starts
    assert start["returncode"] != 0
    assert start["wall_s"] > 0
    with pytest.raises(ConfigError, match="run with other settings, other files for them or another base"):
        run_study(small, tmp_path / "study", jobs=1, threads=1)


@pytest.mark.long
def test_a_study_of_another_base_trains_that_base_within_its_limits(small: Study, tmp_path: Path) -> None:
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


def test_runs_that_differ_in_what_made_them_are_told_apart(tmp_path: Path) -> None:
    study = Study("a title", [], {"PPO": Arm([])}, [1, 2])
    cells = [Cell("PPO", seed, tmp_path / str(seed)) for seed in study.seeds]

    def text(**second: object) -> str:
        for cell, origin in zip(
            cells, ({"code": "a", "threads": 1}, {"code": "a", "threads": 1, **second}), strict=True
        ):
            logs = cell.folder / "logs" / "version_0"
            logs.mkdir(parents=True, exist_ok=True)
            rows = [{"epoch": n, "step": n, **values} for n, values in enumerate(run_of(0.4, 0.6))]
            lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
            (logs / "metrics.csv").write_text("\n".join(lines) + "\n")
            (cell.folder / STARTS).write_text(json.dumps([{"wall_s": 60.0, "returncode": 0, **origin}]))
        return write_report(study, cells, tmp_path)

    assert "Made with code a, threads 1." in text()
    assert "differ in what made them" not in text()
    assert "Made with code b, threads 1.\n**The runs differ in what made them**" in text(code="b")


def test_settings_reach_a_run_as_they_are_written() -> None:
    given = {None: "null", 0.5: "0.5", True: "true", "text": "text", Path("a/b"): "a/b"}
    assert {value: _given(value) for value in given} == given
    assert _given(["a", 1]) == '["a", 1]'


def test_arms_that_would_share_a_folder_are_refused() -> None:
    with pytest.raises(ConfigError, match="share a folder"):
        Study("x", [], {"A+B": Arm([]), "A B": Arm([])}, [1])
