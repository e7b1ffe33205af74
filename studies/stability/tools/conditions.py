"""Draws the final accuracy of every seed in four conditions: alone, with a constant share of the step, corrected.

python -m studies.stability.tools.conditions
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean

from matplotlib.figure import Figure

from studies.figures import save
from studies.report import by_arm, column, read_rows
from studies.stability.tools.print_results import RESULTS, RUNS

FIGURE = Path(__file__).parents[1] / "figures" / "conditions.svg"

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


def draw(path: Path) -> None:
    """Draw it into `path`."""
    figure = Figure(figsize=(9.5, 0.9 + 0.62 * len(CONDITIONS)), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (level, arms) in zip(panels, LEVELS.items(), strict=True):
        for place, stem in enumerate(CONDITIONS.values()):
            runs = by_arm(read_rows(RESULTS / f"{stem}{RUNS}"))
            for offset, (arm, (role, colour)) in enumerate(zip(arms, ROLES.items(), strict=True)):
                y, label = place + 0.24 * (offset - 1), role if place == 0 else None
                values = column(runs[arm].values(), "final")
                heights = [y + 0.03 * (number % 3 - 1) for number in range(len(values))]  # equal ones stay apart
                axes.scatter(values, heights, s=14, color=colour, alpha=0.45, linewidths=0)
                axes.plot([mean(values)] * 2, [y - 0.11, y + 0.11], color=colour, linewidth=2.5, label=label)
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
    save(figure, path)


if __name__ == "__main__":
    draw(FIGURE)
