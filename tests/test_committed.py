"""The committed numbers of the studies agree with one another, and with the studies they are named after."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks.committed import FOLDER, kept_runs
from training.study import load_study
from training.study_report import outcome

TRANSFERRED = ("stale", "decoupled", "gentle")
NAMES = sorted(
    f"transfer_{stem}" if stem in TRANSFERRED else stem
    for stem in (path.name.removesuffix("-runs.csv") for path in FOLDER.glob("*-runs.csv"))
)


@pytest.mark.parametrize("name", NAMES)
def test_the_summary_of_each_run_follows_from_its_iterations(name: str) -> None:
    with Path(FOLDER / f"{name.removeprefix('transfer_')}-runs.csv").open(encoding="utf-8", newline="") as file:
        summaries = {(line["arm"], int(line["seed"])): line for line in csv.DictReader(file)}
    runs = kept_runs(name)
    assert summaries
    assert set(summaries) <= set(runs)
    for key, summary in summaries.items():
        found = outcome(runs[key])
        for column, value in (("best", found.best), ("final", found.final), ("mean", found.mean)):
            if column == "mean" and column not in summary:
                continue  # the older summaries have none
            assert float(summary[column]) == pytest.approx(value, abs=1e-4), (key, column)
        starts = (summary["learnt"] or None, summary["collapse_start"] or None)
        assert starts == tuple(str(n) if n else None for n in (found.learnt, found.start)), key


@pytest.mark.parametrize("name", NAMES)
def test_every_committed_arm_can_be_run_again(name: str) -> None:
    arms = {arm for arm, _ in kept_runs(name)}
    assert arms <= set(load_study(name).arms)
