"""The kept numbers of the studies agree with one another, and with the studies they are named after."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonargparse import auto_parser

from medagent.cli.commands.train import TRAINING_COMMANDS
from medagent.errors import ConfigError
from medagent.training.studies.report import outcome
from medagent.training.studies.study import known_studies, load_study
from studies.stability.tools import conditions, learning_rates, model_sizes
from studies.stability.tools.folders import FIGURES, RESULTS
from studies.stability.tools.keep_results import reduced
from studies.stability.tools.print_results import METRICS, SAME, kept_runs, study_of
from tests.training.support import parser

NAMES = sorted(path.name.removesuffix("-runs.csv") for path in RESULTS.glob("*-runs.csv"))
with (RESULTS / "bases.csv").open(encoding="utf-8", newline="") as opened:
    BASES = {line["folder"]: line for line in csv.DictReader(opened)}


study_named, one_parser = cache(load_study), cache(parser)


@cache
def settings_of(name: str, arm: str) -> dict[str, Any]:
    """All settings of an arm, as its runs resolve them."""
    study = study_named(name)
    files = [str(study.path(file)) for file in (*study.task, *study.arms[arm].configs)]
    values = {**study.limits, **study.arms[arm].settings}
    given = [argument for file in files for argument in ("--config", file)]
    parsed = one_parser().parse_args([*given, *(f"--{key}={json.dumps(value)}" for key, value in values.items())])
    parsed.pop("config")
    return parsed.as_dict()


@pytest.mark.parametrize("name", NAMES)
def test_the_summary_of_each_run_follows_from_its_iterations(name: str) -> None:
    with (RESULTS / f"{name}-runs.csv").open(encoding="utf-8", newline="") as file:
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
    (tmp_path / f"correction-forms{METRICS}").touch()
    with pytest.raises(ConfigError, match=r"rollback.*no numbers.*medagent study rollback.*correction-forms"):
        kept_runs("rollback", folder=tmp_path)


def test_kept_numbers_belong_to_the_study_that_their_name_begins_with() -> None:
    assert study_of("without-critic-no-stress") == "without-critic-no-stress"
    assert study_of("model-sizes-starter-192") == "model-sizes"
    with pytest.raises(ConfigError, match=r"'without': found no study.*Name one of budget, collapse"):
        study_of("without")


def test_kept_numbers_leave_out_times_and_keep_the_digits_that_decide() -> None:
    given = (
        "arm,seed,iteration,reward/success,kl/reference,validation/accuracy,policy/clip_bias_scale,time/update\n"
        '"one, or two",1,1,0.359375,0.0137668,0.216667,,4.49552\n'
    )
    assert reduced(given) == (
        "arm,seed,iteration,reward/success,kl/reference,validation/accuracy,policy/clip_bias_scale\n"
        '"one, or two",1,1,0.359375,0.013767,0.216667,\n'
    )


@pytest.mark.parametrize(
    "name", sorted(file.name.removesuffix("-reference.csv.gz") for file in RESULTS.glob("*-reference.csv.gz"))
)
def test_arms_run_again_are_the_borrowed_ones_and_other_runs(name: str) -> None:
    borrowed, again = kept_runs(name), kept_runs(name, reference=True)
    assert set(borrowed) == set(again)
    differing = {arm for arm, seed in again if again[arm, seed] != borrowed[arm, seed]}
    assert differing == set(SAME[name])


def test_a_study_whose_borrowed_arms_were_not_run_again_says_so() -> None:
    with pytest.raises(ConfigError, match=r"token-clip-range.*reference\.csv\.gz not found.*Leave --reference out"):
        kept_runs("token-clip-range", reference=True)


@pytest.mark.parametrize("name", NAMES)
def test_every_committed_arm_can_be_run_again(name: str) -> None:
    arms = {arm for arm, _ in kept_runs(name)}
    assert arms <= set(study_named(study_of(name)).arms)


@pytest.mark.long
@pytest.mark.parametrize("name", known_studies())
def test_every_arm_of_a_study_parses_and_no_two_are_the_same(name: str) -> None:
    arms = [(settings_of(name, arm), settings.first) for arm, settings in study_named(name).arms.items()]
    assert not any(arm in arms[:number] for number, arm in enumerate(arms))


@pytest.mark.parametrize(("name", "arm"), [(name, arm) for name, shared in SAME.items() for arm in shared])
def test_an_arm_that_borrows_runs_has_the_settings_of_its_lender(name: str, arm: str) -> None:
    assert settings_of(name, arm) == settings_of(*SAME[name][arm])


def test_no_part_of_a_study_lies_about_unused() -> None:
    for folder in {path.parent for path in known_studies().values()}:
        studies = [study_named(name) for name, path in known_studies().items() if path.parent == folder]
        used = {study.path(file) for study in studies for file in study.files}
        assert set((folder / "parts").rglob("*.yaml")) <= used


@pytest.mark.parametrize("folder", BASES)
def test_the_command_that_makes_a_base_is_one_and_its_runs_are_kept(folder: str) -> None:
    arguments = BASES[folder]["command"].split()
    assert arguments[0] == "medagent"
    made = auto_parser(TRAINING_COMMANDS, as_positional=True).parse_args(arguments[1:])
    given = made.starter[made.starter.subcommand]
    assert Path(given.out or f"runs/starter-thinking-{given.thinking}").name == folder
    assert f"model-sizes-{folder}" in NAMES


@pytest.mark.made_base
@pytest.mark.parametrize("folder", BASES)
def test_a_base_that_was_made_here_can_be_studied(folder: str) -> None:
    base = Path("runs") / folder
    if not base.is_dir():
        pytest.skip(f"{base} was not made here ({BASES[folder]['command']})")
    study = replace(study_named("model-sizes"), base=str(base))
    limits = settings_of("model-sizes", "PPO")["data"]["agent"]["limits"]
    assert set(study.limits) == {f"data.agent.limits.{name}" for name in limits}


def marks(path: Path) -> list[float]:
    """Coordinates of everything that a figure marks."""
    pairs = re.findall(r'<use [^>]*x="([^"]*)" y="([^"]*)"', path.read_text())
    return [float(number) for pair in pairs for number in pair]


def test_the_kept_figure_shows_the_kept_runs(tmp_path: Path) -> None:
    conditions.draw(tmp_path / "conditions.svg")
    assert marks(FIGURES / "conditions.svg")
    assert marks(FIGURES / "conditions.svg") == pytest.approx(marks(tmp_path / "conditions.svg"), abs=0.01)


@pytest.mark.parametrize("drawing", [model_sizes, learning_rates])
def test_figures_that_are_not_kept_can_be_drawn(drawing: Any, tmp_path: Path) -> None:
    drawing.draw(tmp_path / "figure.svg")
    text = (tmp_path / "figure.svg").read_text()
    assert len(marks(tmp_path / "figure.svg")) > 100
    assert all(arm in text for arm in ("S-PPO", "ST-PPO"))
