"""Draws the final accuracy of every seed in four conditions: alone, with a constant share of the step, corrected.

python -m studies.stability.tools.conditions [--out FILE]
"""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import mean

from matplotlib.figure import Figure

from studies.stability.tools.folders import RESULTS, figure_path

CONDITIONS = {
    "many passes, high rate": "collapse",
    "stale rollouts": "stale",
    "stale, decoupled": "decoupled",
    "no stress": "no-stress",
}
ROLES = {"alone": "#9aa5b1", "a quarter of its step": "#e08e0b", "with the correction": "#0b6b3a"}
LEVELS = {
    "token weights": ("PPO", "PPO at a quarter of its step", "S-PPO"),
    "turn weights": ("Turn-PPO", "Turn-PPO at a quarter of its step", "ST-PPO"),
}


def finals(path: Path) -> dict[str, list[float]]:
    """Final held-out accuracy of every run, by arm."""
    found: dict[str, list[float]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["arm"], []).append(float(row["final"]))
    return found


def draw(path: Path) -> None:
    """Draw it into `path`."""
    figure = Figure(figsize=(9.5, 0.9 + 0.62 * len(CONDITIONS)), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (level, arms) in zip(panels, LEVELS.items(), strict=True):
        for place, stem in enumerate(CONDITIONS.values()):
            values = finals(RESULTS / f"{stem}-runs.csv")
            for offset, (arm, (role, colour)) in enumerate(zip(arms, ROLES.items(), strict=True)):
                y, label = place + 0.24 * (offset - 1), role if place == 0 else None
                heights = [y + 0.03 * (number % 3 - 1) for number in range(len(values[arm]))]  # equal ones stay apart
                axes.scatter(values[arm], heights, s=14, color=colour, alpha=0.45, linewidths=0)
                axes.plot([mean(values[arm])] * 2, [y - 0.11, y + 0.11], color=colour, linewidth=2.5, label=label)
        axes.set_title(f"{level} ({arms[0]}, {arms[2]})", fontsize=10)
        axes.set_xlim(0, 1)
        axes.grid(axis="x", alpha=0.3)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("final held-out accuracy of each seed; bar: mean", fontsize=9)
    panels[0].set_yticks(range(len(CONDITIONS)), list(CONDITIONS), fontsize=9)
    panels[0].set_ylim(len(CONDITIONS) - 0.5, -0.5)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    figure.savefig(path, format="svg", metadata={"Date": None})


def main() -> None:
    """Draw it."""
    draw(figure_path(__doc__, "conditions.svg"))


if __name__ == "__main__":
    main()
