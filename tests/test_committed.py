"""The committed numbers of the studies agree with one another, and with the studies they are named after."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from medagent.errors import ConfigError
from studies.stability.tools import bases, places, rates
from studies.stability.tools.committed import FOLDER, SAME, kept_runs
from tests.training.support import parser
from training.studies.report import outcome
from training.studies.study import STUDIES as STUDY_CONFIGS
from training.studies.study import config_path, load_study

TRANSFERRED = ("stale", "decoupled", "gentle")
NAMES = sorted(
    f"transfer_{stem}" if stem in TRANSFERRED else stem
    for stem in (path.name.removesuffix("-runs.csv") for path in FOLDER.glob("*-runs.csv"))
)
# A study among the packaged files says what it compares; the others are parts of it.
STUDIES = sorted(path.stem for path in STUDY_CONFIGS.glob("*.yaml") if "\narms:" in path.read_text())


study_named, one_parser = cache(load_study), cache(parser)


@cache
def settings_of(name: str, arm: str) -> dict[str, Any]:
    """All settings of an arm, as its runs resolve them."""
    study = study_named(name)
    files = [str(config_path(file)) for file in (*study.task, *study.arms[arm].configs)]
    values = {**study.limits, **study.arms[arm].settings}
    given = [argument for file in files for argument in ("--config", file)]
    parsed = one_parser().parse_args([*given, *(f"--{key}={json.dumps(value)}" for key, value in values.items())])
    parsed.pop("config")
    return parsed.as_dict()


@pytest.mark.parametrize("name", NAMES)
def test_the_summary_of_each_run_follows_from_its_iterations(name: str) -> None:
    with Path(FOLDER / f"{name.removeprefix('transfer_')}-runs.csv").open(encoding="utf-8", newline="") as file:
        summaries = {(line["arm"], int(line["seed"])): line for line in csv.DictReader(file)}
    runs = kept_runs(name)
    assert summaries
    borrowed = SAME.get(name, {})
    assert set(summaries) == {(arm, seed) for arm, seed in runs if arm not in borrowed}
    for key, summary in summaries.items():
        found = outcome(runs[key])
        for column, value in (("best", found.best), ("final", found.final), ("mean", found.mean)):
            if column == "mean" and column not in summary:
                continue  # the older summaries have none
            assert float(summary[column]) == pytest.approx(value, abs=1e-4), (key, column)
        assert float(summary["final/best"]) == pytest.approx(found.kept, abs=1e-4), key
        numbered = {"learnt": found.learnt, "collapse_start": found.start}
        if "mean" in summary:  # the older ones' alarms are of an earlier monitor
            numbered["alarm"] = found.alarm
        assert {column: summary[column] for column in numbered} == {c: str(n or "") for c, n in numbered.items()}, key


def test_a_study_without_kept_numbers_is_an_error_that_names_those_with_some(tmp_path: Path) -> None:
    (tmp_path / "forms-metrics.csv").touch()
    with pytest.raises(ConfigError, match=r"ablation.*no numbers.*medagent study ablation.*forms"):
        kept_runs("ablation", folder=tmp_path)


@pytest.mark.parametrize(
    "name", sorted(file.name.removesuffix("-reference.csv") for file in FOLDER.glob("*-reference.csv"))
)
def test_arms_run_again_are_the_borrowed_ones_and_other_runs(name: str) -> None:
    borrowed, again = kept_runs(name), kept_runs(name, reference=True)
    assert set(borrowed) == set(again)
    differing = {arm for arm, seed in again if again[arm, seed] != borrowed[arm, seed]}
    assert differing == set(SAME[name])


def test_a_study_whose_borrowed_arms_were_not_run_again_says_so() -> None:
    with pytest.raises(ConfigError, match=r"token_range.*reference\.csv not found.*Leave --reference out"):
        kept_runs("token_range", reference=True)


@pytest.mark.parametrize("name", NAMES)
def test_every_committed_arm_can_be_run_again(name: str) -> None:
    arms = {arm for arm, _ in kept_runs(name)}
    assert arms <= set(study_named(name.partition("-")[0]).arms)


@pytest.mark.parametrize("name", STUDIES)
def test_every_arm_of_a_study_parses_and_no_two_are_the_same(name: str) -> None:
    arms = [settings_of(name, arm) for arm in study_named(name).arms]
    assert not any(arm in arms[:number] for number, arm in enumerate(arms))


@pytest.mark.parametrize(("name", "arm"), [(name, arm) for name, shared in SAME.items() for arm in shared])
def test_an_arm_that_borrows_runs_has_the_settings_of_its_lender(name: str, arm: str) -> None:
    assert settings_of(name, arm) == settings_of(*SAME[name][arm])


@pytest.mark.parametrize("folder", sorted((FOLDER / "bases").iterdir()), ids=lambda folder: folder.name)
def test_the_base_of_kept_runs_can_be_run_again(folder: Path) -> None:
    study = replace(study_named("bases"), base=str(folder))
    limits = settings_of("bases", "PPO")["data"]["agent"]["limits"]
    assert set(study.limits) == {f"data.agent.limits.{name}" for name in limits}
    assert (FOLDER / f"bases-{folder.name}-runs.csv").exists()


@pytest.mark.parametrize("drawing", [bases, places, rates])
def test_the_drawn_figures_show_the_kept_runs(drawing: Any, tmp_path: Path) -> None:
    def marks(path: Path) -> list[float]:
        return [
            float(number)
            for pair in re.findall(r'<use [^>]*x="([^"]*)" y="([^"]*)"', path.read_text())
            for number in pair
        ]

    file = f"{drawing.__name__.rpartition('.')[2]}.svg"
    drawing.draw(tmp_path / file)
    assert marks(FOLDER / file)
    assert marks(FOLDER / file) == pytest.approx(marks(tmp_path / file), abs=0.01)
