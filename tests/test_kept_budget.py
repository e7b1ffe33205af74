"""The page of the budget study says what its kept numbers say, and its figure shows them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from medagent.training.studies.budget_report import read_results
from medagent.training.studies.study import load_study
from studies.budget.tools import print_results
from tests.support import ROOT

PAGE = (ROOT / "studies" / "budget" / "README.md").read_text(encoding="utf-8")


def test_the_page_has_the_table_and_the_recommendation_of_the_kept_cells() -> None:
    lines = print_results.budget_text().splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + len(load_study("budget").arms)
    for line in table[2:]:
        assert line.rpartition(" | ")[0] in PAGE, "all but the minutes, which depend on the machine"
    assert lines[-1] in re.sub(r"\s+", " ", PAGE)


def test_the_page_has_the_table_of_the_reward_study() -> None:
    rows = print_results.density_rows()
    assert len(rows) == 3
    assert not [row for row in rows if row not in PAGE]


def test_the_kept_cells_spent_their_budget_and_hardly_more() -> None:
    study = load_study("budget")
    assert study.budget
    results = read_results(print_results.BUDGET)
    assert {result.arm for result in results} == set(study.arms)
    for result in results:
        first = study.arms[result.arm].first
        assert result.share == (first.share if first else 0)
        assert 1 <= result.units / study.budget.units < 1.2, "an iteration too much at most"
        assert result.examples.units == pytest.approx(result.share * study.budget.units, rel=0.05)


def test_the_kept_figure_shows_the_kept_cells(tmp_path: Path) -> None:
    def marks(path: Path) -> list[float]:
        pairs = re.findall(r'<use [^>]*x="([^"]*)" y="([^"]*)"', path.read_text(encoding="utf-8"))
        return [float(number) for pair in pairs for number in pair]

    print_results.draw(tmp_path / "budget.svg")
    assert marks(print_results.FIGURE)
    assert marks(print_results.FIGURE) == pytest.approx(marks(tmp_path / "budget.svg"), abs=0.01)
