"""A study's report: that its verdicts follow from the numbers."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from medagent.training.studies.report import (
    RunOutcome,
    another,
    confusion,
    holm,
    interval,
    outcome,
    paired,
    report,
    write_report,
)
from medagent.training.studies.study import STARTS, Arm, Cell, Study
from tests.training.support import row


def run_of(*accuracies: float) -> list[dict[str, float]]:
    """A run whose sampled success is its held-out accuracy of the iteration before."""
    before = [0.3, *accuracies[:-1]]
    return [row(success) | {"validation/accuracy": after} for after, success in zip(accuracies, before, strict=True)]


def test_a_run_that_keeps_its_success_has_not_collapsed() -> None:
    found = outcome(run_of(0.4, 0.6, 0.9, 0.8, 0.7, 0.8))
    assert (found.best, found.final, found.start, found.alarm) == (pytest.approx(0.85), pytest.approx(0.75), None, None)


def test_exactly_ninety_percent_counts_as_learnt() -> None:
    assert outcome(run_of(0.3, 0.9, float(np.float32(0.9)), 0.9)).learnt == 3
    assert outcome(run_of(0.3, *[float(np.float32(108 / 120))] * 2)).learnt == 3


def test_a_collapse_starts_where_success_stays_below_three_quarters_of_its_best() -> None:
    found = outcome(run_of(0.4, 0.7, 0.9, 0.5, 0.75, 0.4, 0.3, 0.3))  # best 0.8, bound 0.6: 0.5 recovers, 0.4 does not
    assert found.start == 6
    assert found.kept == pytest.approx(0.3 / 0.8)
    assert found.alarm == 6, "0.75 and 0.4 average 0.575: held-out accuracy decides"


def test_ending_at_exactly_three_quarters_is_no_collapse() -> None:
    assert not outcome(run_of(0.3, 0.8, 0.8, 0.6, 0.6)).collapsed  # 0.75 x 0.8 is 0.6000000000000001 to a computer
    assert outcome(run_of(0.3, 0.8, 0.8, 0.6, 0.59)).collapsed


def test_a_run_that_never_learnt_has_not_collapsed() -> None:
    found = outcome(run_of(0.3, 0.34, 0.34, 0.2, 0.1))  # the base's sampled success is 0.3
    assert (found.never_learnt, found.start, found.collapsed) == (True, None, False)
    assert outcome(run_of(0.3, 0.36, 0.36, 0.2, 0.1)).collapsed


def test_the_confusion_table_counts_alarms_by_their_iteration() -> None:
    def at(start: int | None, alarm: int | None) -> RunOutcome:
        return RunOutcome(
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


def test_the_interval_is_students_t() -> None:
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


def test_a_difference_of_rounding_puts_no_arm_ahead(tmp_path: Path) -> None:
    study = Study("a title", [], {"ours": Arm([]), "theirs": Arm([])}, [1, 2], compared=[("ours", "theirs")])
    ours = {("ours", seed): run_of(0.3, 0.8 + 1e-6, 0.8 + 1e-6) for seed in (1, 2)}
    runs = {**ours, ("theirs", 1): run_of(0.3, 0.8, 0.8), ("theirs", 2): run_of(0.3, 0.7, 0.7)}
    assert "| 1 of 2 |" in report(study, runs, {}, tmp_path)


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


@pytest.mark.long  # writes many runs
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
