"""A study's figures: every metric against the iteration, and accuracy against the share of demonstrations."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib
import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from studies.statistics import half_interval

matplotlib.use("svg")
# Marks get the same names every time, and text stays text. So a figure drawn again is the same file, and small.
matplotlib.rcParams.update({"svg.hashsalt": "medagent", "svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"]})
PANELS = {
    "validation/accuracy": "held-out accuracy (greedy)",
    "reward/success": "success of sampled rollouts",
    "policy/clip_fraction": "clip fraction",
    "kl/reference": "KL to the reference (k3, nats per token)",
    "policy/grad_norm": "policy gradient norm",
    "rollout/searches": "searches per question",
}
HEAVY_TAILED = ("kl/reference", "policy/grad_norm")
COLOURS = ("#1f4e9c", "#c2571a", "#2f7d4f", "#7a4fa3")


def save(figure: Figure, path: Path) -> None:
    """Write a figure as SVG, without a date and small: without indents, and with two digits behind the point."""
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    text = re.sub(r"(?m)^ +", "", drawn.getvalue())
    path.write_text(re.sub(r"\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}", text), encoding="utf-8")


def curves_figure(
    arms: Sequence[str], runs: Mapping[tuple[str, int], Sequence[Mapping[str, float]]], path: Path
) -> None:
    """Each metric against the iteration.

    Lines are means over seeds. From three seeds on, a band shows the 95% t-interval. Heavy-tailed metrics have the
    median and the range instead.
    """
    shown = [arm for arm in arms if any(a == arm for a, _ in runs)]
    many = len(shown) > 10
    palette = colormaps["tab20" if many else "tab10"]
    figure = Figure(figsize=(11, 6 + 0.25 * math.ceil(len(shown) / 4)), layout="constrained")
    for panel, (name, title) in enumerate(PANELS.items(), start=1):
        axes, heavy = figure.add_subplot(2, 3, panel), name in HEAVY_TAILED
        for number, arm in enumerate(shown):
            curves = [[row[name] for row in rows] for (a, _), rows in runs.items() if a == arm and name in rows[0]]
            if not curves:
                continue
            width, colour = min(len(curve) for curve in curves), palette(number % palette.N)
            values, x = np.array([curve[:width] for curve in curves]), range(1, width + 1)
            middle = np.median(values, axis=0) if heavy else values.mean(axis=0)
            axes.plot(x, middle, label=arm if panel == 1 else None, color=colour, linewidth=1.5)
            if len(curves) > 2:  # a t-interval of two is wider than the panel
                half = np.array([half_interval(list(column)) for column in values.T])
                band = (values.min(axis=0), values.max(axis=0)) if heavy else (middle - half, middle + half)
                axes.fill_between(x, *band, alpha=0.06 if many else 0.12, color=colour, linewidth=0)
        axes.set_title(title, fontsize=9)
        axes.tick_params(labelsize=7)
        _plain(axes)
        if name in ("validation/accuracy", "reward/success"):
            axes.set_ylim(0, 1)
        if heavy:
            axes.set_yscale("log")
    figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    save(figure, path)


def budget_figure(results: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Accuracy against the share of demonstrations, from the rows of budget.csv.

    A panel per kind of demonstrations, a line per set and kind of question, bars for the 95% intervals over seeds.
    """
    kinds = list(dict.fromkeys(result["kind"] for result in results if result["kind"])) or [""]
    figure = Figure(figsize=(1.5 + 4.2 * len(kinds), 4), layout="constrained")
    panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for axes, kind in zip(panels, kinds, strict=True):
        shares: dict[float, list[Mapping[str, Any]]] = {}
        for result in sorted(results, key=lambda each: each["share"]):
            if result["kind"] in ("", kind):
                shares.setdefault(100 * result["share"], []).append(result)
        for number, column in enumerate(each for each in results[0] if "/" in each):
            values = [[run[column] for run in runs] for runs in shares.values()]
            axes.errorbar(
                [share + 0.6 * (number - 1.5) for share in shares],  # so that bars do not hide each other
                [100 * mean(each) for each in values],
                yerr=[100 * half_interval(each) for each in values],
                label=column.replace("/", ", ").replace("_", "-"),
                color=COLOURS[number % len(COLOURS)],
                marker="o",
                markersize=4,
                linewidth=1.5,
                capsize=2,
            )
        axes.set_title(kind, fontsize=10)
        axes.set_xticks(list(shares))
        axes.set_xlabel("share of the budget spent on demonstrations (%)", fontsize=9)
        axes.tick_params(labelsize=8)
        _plain(axes)
    panels[0].set_ylabel("right, greedy (%)", fontsize=9)
    panels[-1].legend(fontsize=8, frameon=False)
    save(figure, path)


def _plain(axes: Any) -> None:
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
