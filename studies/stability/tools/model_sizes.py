"""Compares the algorithms on bases of several turn lengths and sizes, and draws a figure, from the kept runs.

python -m studies.stability.tools.model_sizes [--out FILE]
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import mean

from matplotlib.figure import Figure

from medagent.training.studies.report import holm, outcome, paired
from studies.stability.tools.folders import figure_path
from studies.stability.tools.print_results import kept_runs

BASES = {
    "turns of 10 tokens": "model-sizes-starter-thinking-0",
    "of 40 tokens": "model-sizes-starter-thinking-22",
    "of 74 tokens": "model-sizes-starter-thinking-54",
    "width 128": "model-sizes",
    "width 192": "model-sizes-starter-192",
}
COLOURS = {"PPO": "#9aa5b1", "Turn-PPO": "#5b7fa6", "S-PPO": "#e08e0b", "ST-PPO": "#0b6b3a"}
TURN_AND_TOKEN = {
    "alone": ("Turn-PPO", "PPO", "#9aa5b1"),
    "a quarter of the step": ("Turn-PPO at a quarter of its step", "PPO at a quarter of its step", "#5b7fa6"),
    "corrected": ("ST-PPO", "S-PPO", "#0b6b3a"),
}
DIFFERENCES = (
    ("Turn-PPO", "PPO"),
    ("S-PPO", "PPO"),
    ("ST-PPO", "Turn-PPO"),
    ("ST-PPO", "S-PPO"),
    ("S-PPO", "PPO at a quarter of its step"),
    ("ST-PPO", "Turn-PPO at a quarter of its step"),
)

Values = Mapping[tuple[str, int], float]


def measured(measure: str) -> dict[str, Values]:
    """`final` or `mean` accuracy of every run, by base and then by (arm, seed)."""
    return {
        base: {key: getattr(outcome(rows), measure) for key, rows in kept_runs(name).items()}
        for base, name in BASES.items()
    }


def main() -> None:
    """Print the differences, with Holm's correction over the twelve tests of a base, and draw the figure."""
    out = figure_path(__doc__, "model-sizes.svg")
    print("| base | accuracy | arms | seeds | difference | p | p (Holm) | tests |\n|---|---|---|---|---|---|---|---|")
    by_measure = {measure: measured(measure) for measure in ("final", "mean")}
    for base in by_measure["final"]:
        rows = []
        for measure, values in ((measure, bases[base]) for measure, bases in by_measure.items()):
            for ours, theirs in DIFFERENCES:
                seeds = [seed for arm, seed in values if arm == ours and (theirs, seed) in values]
                if len(seeds) > 1:
                    pair = [[values[arm, seed] for seed in seeds] for arm in (ours, theirs)]
                    rows.append((f"{measure} | {ours} less {theirs} | {len(seeds)}", *paired(*pair)))
        for (what, by, half, p), corrected in zip(rows, holm([p for *_, p in rows]), strict=True):
            print(f"| {base} | {what} | {by:+.3f} ± {half:.3f} | {p:.2g} | {corrected:.2g} | {len(rows)} |")
    draw(out)


def draw(path: Path) -> None:
    """Draw two panels with a group per base.

    Left: the final accuracy of every seed of the four algorithms. Right: by how much the mean accuracy of turn weights
    exceeds that of token weights.
    """
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    finals, means = measured("final"), measured("mean")
    for place, values in enumerate(finals.values()):
        for number, (arm, colour) in enumerate(COLOURS.items()):
            x, some = place + 0.19 * (number - 1.5), [value for (name, _), value in values.items() if name == arm]
            left.scatter([x] * len(some), some, s=16, color=colour, alpha=0.5, linewidths=0)
            if some:
                label = arm if place == 0 else None
                left.plot([x - 0.07, x + 0.07], [mean(some)] * 2, color=colour, linewidth=2.5, label=label)
    for place, values in enumerate(means.values()):
        for number, (state, (turn, token, colour)) in enumerate(TURN_AND_TOKEN.items()):
            seeds = [seed for arm, seed in values if arm == turn and (token, seed) in values]
            if len(seeds) > 2:
                by, half, _ = paired(*([values[arm, seed] for seed in seeds] for arm in (turn, token)))
                x, label = place + 0.2 * (number - 1), state if place == 0 else None
                right.errorbar([x], [by], [half], color=colour, fmt="o", markersize=5, capsize=3, label=label)
    right.axhline(0, color="#888888", linewidth=0.8)
    left.set_ylim(0, 1)
    left.set_ylabel("final held-out accuracy; bar: mean", fontsize=9)
    right.set_ylabel("mean accuracy, turn less token weights", fontsize=9)
    for axes in (left, right):
        axes.set_xticks(range(len(finals)), list(finals), fontsize=8)
        axes.grid(axis="y", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=4, fontsize=8, frameon=False)
    figure.savefig(path, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
