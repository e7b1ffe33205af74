"""A study's report: that its verdicts follow from the numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from medagent.errors import ConfigError
from studies.design import STARTS, Arm, Cell, Study
from studies.report import origins, outcome, read_rows, report, write_rows
from studies.statistics import holm, interval, paired, prediction_interval
from tests.training.support import row


def run_of(*accuracies: float) -> list[dict[str, float]]:
    """A run whose sampled success is its held-out accuracy of the iteration before."""
    before = [0.3, *accuracies[:-1]]
    return [row(success) | {"validation/accuracy": after} for after, success in zip(accuracies, before, strict=True)]


def test_a_run_that_keeps_its_success_has_not_collapsed() -> None:
    found = outcome(run_of(0.4, 0.6, 0.9, 0.8, 0.7, 0.8))
    assert (found["best"], found["final"]) == (pytest.approx(0.85), pytest.approx(0.75))
    assert not {"collapse_start", "alarm"} & found.keys()


def test_exactly_ninety_percent_counts_as_learnt() -> None:
    assert outcome(run_of(0.3, 0.9, float(np.float32(0.9)), 0.9))["learnt"] == 3
    assert outcome(run_of(0.3, *[float(np.float32(108 / 120))] * 2))["learnt"] == 3


def test_a_collapse_starts_where_success_stays_below_three_quarters_of_its_best() -> None:
    found = outcome(run_of(0.4, 0.7, 0.9, 0.5, 0.75, 0.4, 0.3, 0.3))  # best 0.8, bound 0.6: 0.5 recovers, 0.4 does not
    assert found["collapse_start"] == 6
    assert found["alarm"] == 6, "0.75 and 0.4 average 0.575: held-out accuracy decides"
    # Exactly three quarters is no collapse: 0.75 x 0.8 is 0.6000000000000001 to a computer.
    assert "collapse_start" not in outcome(run_of(0.3, 0.8, 0.8, 0.6, 0.6))
    assert "collapse_start" in outcome(run_of(0.3, 0.8, 0.8, 0.6, 0.59))


def test_a_run_that_never_learnt_has_not_collapsed() -> None:
    found = outcome(run_of(0.3, 0.34, 0.34, 0.2, 0.1))  # the base's sampled success is 0.3
    assert found["never_learnt"]
    assert "collapse_start" not in found
    assert "collapse_start" in outcome(run_of(0.3, 0.36, 0.36, 0.2, 0.1))


def test_a_run_without_held_out_accuracies_is_refused() -> None:
    with pytest.raises(ConfigError, match="check_val_every_n_epoch 1"):
        outcome([row(0.3)])


def test_intervals_and_tests_over_seeds() -> None:
    # Mean 2, standard deviation 1, t(0.975, 2) = 4.3027: half = 4.3027 / sqrt(3).
    assert interval([1.0, 2.0, 3.0]) == f"2 ± {4.3027 / math.sqrt(3):.2g}"
    assert interval([0.5]) == "0.5"
    assert interval([0.5, math.nan]) == ""
    # Mean 0.5, standard deviation 0.1: half = 0.43027 x sqrt(4/3) = 0.4968.
    assert prediction_interval([0.4, 0.5, 0.6]) == "0.00 to 1.00"
    assert prediction_interval([0.49, 0.5, 0.51]) == "0.45 to 0.55"
    assert prediction_interval([0.5]) == ""
    # Differences 0.4, 0.2, 0.4: mean 1/3, standard deviation 0.11547, so t = 5 with 2 degrees of freedom.
    difference, half, p = paired([0.9, 0.8, 0.7], [0.5, 0.6, 0.3])
    assert difference == pytest.approx(1 / 3)
    assert half == pytest.approx(4.3027 * 0.11547 / math.sqrt(3), rel=1e-4)
    assert p == pytest.approx(0.0377, abs=1e-4)
    # 0.01 x 4, then 0.02 x 3; 0.03 x 2 and 0.6 x 1 in the order of size, none smaller than one before it.
    assert holm([0.03, 0.01, 0.6, 0.02]) == pytest.approx([0.06, 0.04, 0.6, 0.06])
    assert holm([0.4, 0.9]) == pytest.approx([0.8, 0.9])
    assert holm([]) == []


def test_the_report_compares_what_the_study_names_on_the_seeds_that_both_have(tmp_path: Path) -> None:
    pairs = [("ours", "theirs"), ("theirs", "lonely"), ("alike", "theirs")]
    finals = {"ours": (0.9, 0.8, 0.7), "theirs": (0.5, 0.6, 0.3), "lonely": (0.4,), "alike": (0.5 + 1e-6, 0.6, 0.4)}
    study = Study("a title", [], {name: Arm([]) for name in finals}, [1, 2, 3], compared=pairs)
    runs = [
        {"arm": arm, "seed": seed, **outcome(run_of(0.3, x, x)), "wall_s": 60.0}
        for arm, values in finals.items()
        for seed, x in enumerate(values, start=1)
    ]
    write_rows(tmp_path / "runs.csv", runs)
    text = report(study, read_rows(tmp_path / "runs.csv"))
    assert text == report(study, runs)
    assert "| final | ours less theirs | 3 | +0.333 ± 0.29 | 0.038 | 0.15 | 3 of 3 |" in text
    assert "| 1 of 3 |" in text, "a difference of rounding puts no arm ahead"
    assert "theirs less lonely" not in text, "one seed is no test"


def test_runs_that_differ_in_what_made_them_are_told_apart(tmp_path: Path) -> None:
    def lines(second: str) -> list[str]:
        cells = [Cell("PPO", seed, tmp_path / str(seed)) for seed in (1, 2)]
        for cell, code in zip(cells, ("a", second), strict=True):
            cell.folder.mkdir(exist_ok=True)
            start = {"wall_s": 60.0, "returncode": 0, "code": code, "threads": 1}
            (cell.folder / STARTS).write_text(json.dumps([start]))
        return origins(cells)

    assert lines("a") == ["Made with code a, threads 1."]
    assert lines("b")[1] == "Made with code b, threads 1."
    assert "differ in what made them" in lines("b")[2]
