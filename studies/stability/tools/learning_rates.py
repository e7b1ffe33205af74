"""Draws final accuracy under many passes against the policy's learning rate, with the correction and without.

python -m studies.stability.tools.learning_rates [--out FILE]
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean

from matplotlib.figure import Figure

from studies.stability.tools.conditions import finals
from studies.stability.tools.folders import RESULTS, figure_path

FULL, DOES = 5e-3, 0.05  # the rate of `collapse`; how far below PPO without stress a rate still does
LEVELS = {"token weights": ("PPO", "S-PPO"), "turn weights": ("Turn-PPO", "ST-PPO")}
COLOURS = {"alone": "#9aa5b1", "with the correction": "#0b6b3a"}


def by_rate(arm: str) -> dict[float, list[float]]:
    """Finals of every seed by rate; a quarter of the step in `collapse` is a quarter of the rate."""
    collapse, others = (finals(RESULTS / f"{stem}-runs.csv") for stem in ("collapse", "learning-rates"))
    found = {FULL: collapse[arm]}
    if f"{arm} at a quarter of its step" in collapse:
        found[FULL / 4] = collapse[f"{arm} at a quarter of its step"]
    found |= {
        float(name.removeprefix(f"{arm} at ")): values
        for name, values in others.items()
        if name.startswith(f"{arm} at ")
    }
    return dict(sorted(found.items()))


def draw(path: Path) -> None:
    """Draw it into `path`."""
    figure = Figure(figsize=(9.5, 3.4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    bar = mean(finals(RESULTS / "collapse-runs.csv")["PPO without stress"]) - DOES
    for axes, (level, arms) in zip(panels, LEVELS.items(), strict=True):
        axes.axhspan(bar, 1, color="#0b6b3a", alpha=0.07, linewidth=0, label="does: at most 5 points below no stress")
        for arm, (role, colour) in zip(arms, COLOURS.items(), strict=True):
            points = by_rate(arm)
            axes.plot(
                list(points), [mean(values) for values in points.values()], color=colour, linewidth=2.2, label=role
            )
            for rate, values in points.items():
                axes.scatter([rate] * len(values), values, s=14, color=colour, alpha=0.45, linewidths=0)
        axes.set_title(f"{level} ({', '.join(arms)})", fontsize=10)
        axes.set_xscale("log")
        axes.set_xticks([1.25e-3, 2.5e-3, 5e-3, 1e-2], ["1.25e-3", "2.5e-3", "5e-3", "1e-2"])
        axes.minorticks_off()
        axes.set_ylim(0, 1)
        axes.grid(axis="y", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlabel("learning rate of the policy", fontsize=9)
    panels[0].set_ylabel("final held-out accuracy; line: mean", fontsize=9)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    figure.savefig(path, format="svg", metadata={"Date": None})


def main() -> None:
    """Draw it."""
    draw(figure_path(__doc__, "learning-rates.svg"))


if __name__ == "__main__":
    main()
