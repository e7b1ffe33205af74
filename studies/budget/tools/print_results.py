"""Prints the tables of the budget study from the numbers kept in studies/budget/results, and draws its figure.

python -m studies.budget.tools.print_results
"""

from __future__ import annotations

from pathlib import Path

from studies.budget_report import budget_report
from studies.design import load_study
from studies.figures import budget_figure
from studies.report import by_arm, column, read_rows
from studies.statistics import paired, percent

FOLDER = Path(__file__).parents[1]
BUDGET, DENSITY = FOLDER / "results" / "budget.csv", FOLDER / "results" / "reward-density-runs.csv"
FIGURE = FOLDER / "figures" / "budget.svg"


def budget_text() -> str:
    """The report of the kept cells: table and recommendation."""
    study = load_study("budget")
    assert study.budget
    return budget_report(study.title, study.budget, read_rows(BUDGET))


def density_rows() -> list[str]:
    """Per algorithm: accuracies without and with rewards of turns, and their paired differences, in points."""
    arms, rows = by_arm(read_rows(DENSITY)), []
    for dense, sparse in load_study("reward-density").compared:
        seeds = sorted(arms[dense].keys() & arms[sparse].keys())
        cells = [sparse, str(len(seeds))]
        for measure in ("final", "mean"):
            with_turns, without = (column((arms[arm][seed] for seed in seeds), measure) for arm in (dense, sparse))
            difference, half, _ = paired(with_turns, without)
            cells += [percent(without), percent(with_turns), f"{100 * difference:+.1f} ± {100 * half:.1f}"]
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def main() -> None:
    """Print and draw all."""
    print(budget_text(), *density_rows(), sep="\n")
    budget_figure(read_rows(BUDGET), FIGURE)


if __name__ == "__main__":
    main()
