"""Prints the tables of the budget study from the numbers kept in studies/budget/results, and draws its figure.

python -m studies.budget.tools.print_results
"""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import mean

import matplotlib

from medagent.training.studies.budget_report import budget_figure, budget_report, percent, read_results
from medagent.training.studies.report import paired
from medagent.training.studies.study import load_study

FOLDER = Path(__file__).parents[1]
BUDGET, DENSITY = FOLDER / "results" / "budget.csv", FOLDER / "results" / "reward-density-runs.csv"
FIGURE = FOLDER / "figures" / "budget.svg"


def budget_text() -> str:
    """The report of the kept cells: table and recommendation."""
    study = load_study("budget")
    assert study.budget
    return budget_report(study.title, study.budget, read_results(BUDGET))


def density_rows() -> list[str]:
    """Per algorithm: accuracies without and with rewards of turns, and their paired differences, in points."""
    with DENSITY.open(encoding="utf-8", newline="") as file:
        runs = {(row["arm"], row["seed"]): row for row in csv.DictReader(file)}
    rows = []
    for dense, sparse in load_study("reward-density").compared:
        seeds = [seed for arm, seed in runs if arm == dense and (sparse, seed) in runs]
        cells = [sparse, str(len(seeds))]
        for measure in ("final", "mean"):
            with_turns, without = ([float(runs[arm, seed][measure]) for seed in seeds] for arm in (dense, sparse))
            cells += [percent(without), percent(with_turns)]
            if len(seeds) > 1:
                difference, half, _ = paired(with_turns, without)
                cells.append(f"{100 * difference:+.1f} ± {100 * half:.1f}")
            else:
                cells.append(f"{100 * (mean(with_turns) - mean(without)):+.1f}")
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def draw(path: Path) -> None:
    """Draw the figure of the kept cells."""
    # Marks get the same names every time, and text stays text. So a figure drawn again is the same file, and small.
    with matplotlib.rc_context({"svg.hashsalt": "medagent", "svg.fonttype": "none"}):
        budget_figure(read_results(BUDGET), path)


def main() -> None:
    """Print and draw all."""
    print(budget_text(), *density_rows(), sep="\n")
    draw(FIGURE)


if __name__ == "__main__":
    main()
