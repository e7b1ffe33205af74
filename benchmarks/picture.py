"""Draws docs/images/demo.svg and the README's table from the folders of finished demos.

    for seed in 0 1 2; do medagent demo --out runs/demo-$seed --seed $seed; done
    python -m benchmarks.picture runs/demo-0 runs/demo-1 runs/demo-2

Prints the table in Markdown.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from benchmarks.common import ROOT
from medagent.training.callbacks.export import read_metrics

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "medagent"
ROWS = {
    "accuracy, greedy": ("accuracy", None),
    "one-hop questions": ("by_type", "one_hop"),
    "two-hop questions": ("by_type", "two_hop"),
    "accuracy, sampled at temperature 1": ("sampled_accuracy", None),
    "with a search forced on the first turn": ("forced_search_accuracy", None),
    "searches return unrelated passages (chance: 25%)": ("no_search_accuracy", None),
    "searches per question": ("searches_per_question", None),
}


def cell(reports: list[dict[str, Any]], part: str, key: str, kind: str | None) -> str:
    """The values of all seeds and, where there are several, their mean."""
    values = [report[part][key][kind] if kind else report[part][key] for report in reports]
    if key == "searches_per_question":
        return " / ".join(f"{value:.2f}" for value in values)
    return " / ".join(f"{value:.1%}" for value in values)


def main() -> None:
    """Print the table and write the picture."""
    folders = [Path(name) for name in sys.argv[1:]]
    reports = [json.loads((folder / "report.json").read_text()) for folder in folders]
    print(
        f"| test questions, n = {reports[0]['after']['n']}; seeds {', '.join(str(r['seed']) for r in reports)} | "
        "before | after |"
    )
    print("|---|---|---|")
    for name, (key, kind) in ROWS.items():
        print(f"| {name} | {cell(reports, 'before', key, kind)} | {cell(reports, 'after', key, kind)} |")
    follows = " / ".join(f"{report['after']['counterfactual']['follows_corpus']:.1%}" for report in reports)
    print(f"| answers follow a corpus of permuted facts | | {follows} |")
    print(
        f"training {', '.join(str(r['train_seconds']) for r in reports)} s; whole demo "
        f"{', '.join(str(r['total_seconds']) for r in reports)} s"
    )

    figure = Figure(figsize=(9.5, 3.2), layout="constrained")
    bars, curve, searches = figure.subplots(1, 3)
    names = {
        "one-hop": ("by_type", "one_hop"),
        "two-hop": ("by_type", "two_hop"),
        "forced\nsearch": ("forced_search_accuracy", None),
        "unrelated\npassages": ("no_search_accuracy", None),
    }
    for offset, (part, colour) in enumerate((("before", "#9fb3c8"), ("after", "#0b6b3a"))):
        heights = [mean(r[part][key][kind] if kind else r[part][key] for r in reports) for key, kind in names.values()]
        bars.bar(
            [i + 0.4 * offset for i in range(len(names))], heights, width=0.38, color=colour, label=f"{part} training"
        )
    bars.set_xticks([i + 0.2 for i in range(len(names))], list(names), fontsize=8)
    bars.set_title("test accuracy, greedy", fontsize=10)
    # Below the axes: the bars leave no room inside.
    bars.legend(fontsize=8, frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.17))
    for folder in folders:
        rows = read_metrics(folder)
        curve.plot(range(1, len(rows) + 1), [row["reward/success"] for row in rows], color="#0b6b3a", alpha=0.7)
        searches.plot(range(1, len(rows) + 1), [row["rollout/searches"] for row in rows], color="#22577a", alpha=0.7)
    curve.set_title("success of sampled rollouts in training", fontsize=10)
    searches.set_title("searches per question in training", fontsize=10)
    for axes in (bars, curve):
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter("{x:.0%}")
    for axes in (bars, curve, searches):
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in (curve, searches):
        axes.set_xlabel("iteration (one line per seed)", fontsize=8)
    figure.savefig(ROOT / "docs" / "images" / "demo.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
