"""The kept numbers of the studies say what their pages say, and belong to arms that can be run again."""

from __future__ import annotations

import csv
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonargparse import auto_parser

from medagent.errors import ConfigError
from studies.budget.tools import print_results as budget
from studies.budget_report import units_of
from studies.design import STUDIES, known_studies, load_study
from studies.figures import budget_figure
from studies.report import by_arm, read_rows
from studies.stability.tools import conditions
from studies.stability.tools.print_results import RESULTS, RUNS, SAME, kept_runs, study_of
from studies.starter_base.__main__ import COMMANDS
from tests.training.support import parser

NAMES = sorted(path.name.removesuffix(RUNS) for path in RESULTS.glob(f"*{RUNS}"))
BUDGET_PAGE = (STUDIES / "budget" / "README.md").read_text(encoding="utf-8")
STABILITY_PAGE = (STUDIES / "stability" / "README.md").read_text(encoding="utf-8")
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
    found = parsed.as_dict()
    algorithm = found.pop("algorithm")["callbacks"]  # an arm may write as its own what an algorithm brings
    found["trainer"]["callbacks"] = sorted([*algorithm, *(found["trainer"]["callbacks"] or [])], key=str)
    return found


def test_kept_numbers_are_of_arms_that_can_be_run_again() -> None:
    for name in NAMES:
        assert by_arm(kept_runs(name)).keys() <= study_named(study_of(name)).arms.keys(), name


def test_the_table_of_the_stability_page_follows_from_the_kept_runs() -> None:
    """Its four conditions, with and without a critic: the mean final accuracy, and how many collapsed."""
    runs = {name: by_arm(read_rows(RESULTS / f"{name}{RUNS}")) for name in NAMES}
    for arm in ("PPO", "S-PPO", "Turn-PPO", "ST-PPO", "GRPO", "SO-GRPO"):
        (line,) = [line for line in STABILITY_PAGE.splitlines() if re.match(rf"\| \**{arm}\**( \(|  ?\|)", line)]
        told = line.split("|")[2:6]
        prefix = "without-critic" if "GRPO" in arm else ""
        for cell, stem in zip(told, ("collapse", "stale", "decoupled", "no-stress"), strict=True):
            name = "-".join(filter(None, (prefix, "" if prefix and stem == "collapse" else stem)))
            some = [runs[name][arm][seed] for seed in range(1, 6)]
            final = sum(run["final"] for run in some) / len(some)
            collapsed = sum("collapse_start" in run for run in some)
            assert float(cell.split()[0]) == pytest.approx(final, abs=0.0051), (arm, stem)
            assert cell.split()[1] == f"({collapsed})", (arm, stem)


def test_kept_numbers_belong_to_the_study_that_their_name_begins_with() -> None:
    assert study_of("without-critic-no-stress") == "without-critic-no-stress"
    assert study_of("model-sizes-starter-192") == "model-sizes"
    with pytest.raises(ConfigError, match=r"'without': .*Name one of budget, collapse"):
        study_of("without")
    with pytest.raises(ConfigError, match=r"reward-density.*no numbers.*correction-forms"):
        kept_runs("reward-density")


@pytest.mark.long
@pytest.mark.parametrize("name", known_studies())
def test_every_arm_of_a_study_parses_and_no_two_are_the_same(name: str) -> None:
    arms = [
        (settings_of(name, arm), settings.first, settings.trained, settings.share_of)
        for arm, settings in study_named(name).arms.items()
    ]
    assert not any(arm in arms[:number] for number, arm in enumerate(arms))
    for arm, lender in SAME.get(name, {}).items():
        assert settings_of(name, arm) == settings_of(*lender), "its runs stand for this arm's"


def test_no_part_of_a_study_lies_about_unused() -> None:
    for folder in {path.parent for path in known_studies().values()}:
        studies = [study_named(name) for name, path in known_studies().items() if path.parent == folder]
        used = {study.path(file) for study in studies for file in study.files}
        assert set((folder / "parts").rglob("*.yaml")) <= used


def test_the_command_that_makes_a_base_is_one_and_its_runs_are_kept() -> None:
    with (RESULTS / "bases.csv").open(encoding="utf-8", newline="") as file:
        bases = list(csv.DictReader(file))
    for base in bases:
        *program, command = base["command"].split(" ", 3)
        assert program == ["python", "-m", "studies.starter_base"]
        made = auto_parser(COMMANDS, as_positional=True).parse_args(command.split())
        given = made[made.subcommand]
        assert Path(given.out or f"runs/starter-thinking-{given.thinking}").name == base["folder"]
        assert f"model-sizes-{base['folder']}" in NAMES


def test_the_budget_page_has_the_tables_and_the_recommendation_of_the_kept_cells() -> None:
    lines = budget.budget_text().splitlines()
    table = [line for line in lines if line.startswith("|")]
    study = study_named("budget")
    assert study.budget
    assert len(table) == 2 + len(study.arms)
    for line in table[2:]:
        assert line.rpartition(" | ")[0] in BUDGET_PAGE, "all but the minutes, which depend on the machine"
    assert lines[-1] in re.sub(r"\s+", " ", BUDGET_PAGE)
    rows = budget.density_rows()
    assert len(rows) == 3
    assert not [row for row in rows if row not in BUDGET_PAGE]
    for row in read_rows(budget.BUDGET):
        assert 1 <= units_of(row) / study.budget.units < 1.2, "an iteration too much at most"


def marks(path: Path) -> list[float]:
    """Coordinates of everything that a figure marks."""
    pairs = re.findall(r'<use [^>]*x="([^"]*)" y="([^"]*)"', path.read_text(encoding="utf-8"))
    return [float(number) for pair in pairs for number in pair]


def test_the_kept_figures_show_the_kept_runs(tmp_path: Path) -> None:
    conditions.draw(tmp_path / "conditions.svg")
    budget_figure(read_rows(budget.BUDGET), tmp_path / "budget.svg")
    for kept in (conditions.FIGURE, budget.FIGURE):
        assert len(marks(kept)) > 50
        assert marks(kept) == pytest.approx(marks(tmp_path / kept.name), abs=0.01)
