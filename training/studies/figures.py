"""A study's figures: every metric against the iteration, and one that sums it up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

import matplotlib
import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from scipy.stats import t as student_t

matplotlib.use("svg")
PANELS = (
    ("validation/accuracy", "held-out accuracy (greedy)"),
    ("reward/success", "success of sampled rollouts"),
    ("policy/clip_fraction", "clip fraction"),
    ("kl/reference", "KL to the reference (k3, nats per token)"),
    ("policy/grad_norm", "policy gradient norm"),
    ("rollout/searches", "searches per question"),
)
HEAVY_TAILED = ("kl/reference", "policy/grad_norm")
Row = Mapping[str, float]


def curves_figure(arms: Sequence[str], runs: Mapping[tuple[str, int], Sequence[Row]], path: Path) -> None:
    """Each metric against the iteration.

    Lines are means over seeds. From three seeds on, a band shows the 95% t-interval. Heavy-tailed metrics have the
    median and the range instead.
    """
    shown = [arm for arm in arms if any(a == arm for a, _ in runs)]
    many = len(shown) > 10
    palette = colormaps["tab20" if many else "tab10"]
    colours = {arm: palette(number % palette.N) for number, arm in enumerate(shown)}
    figure = Figure(figsize=(11, 6 + 0.25 * math.ceil(len(shown) / 4)), layout="constrained")
    for panel, (name, title) in enumerate(PANELS, start=1):
        axes = figure.add_subplot(2, 3, panel)
        for arm in shown:
            curves = [[row[name] for row in rows] for (a, _), rows in runs.items() if a == arm and name in rows[0]]
            if not curves:
                continue
            width = min(len(curve) for curve in curves)
            values = np.array([curve[:width] for curve in curves])
            x, heavy = range(1, width + 1), name in HEAVY_TAILED
            middle = np.median(values, axis=0) if heavy else values.mean(axis=0)
            axes.plot(x, middle, label=arm if panel == 1 else None, color=colours[arm], linewidth=1.5)
            if len(curves) > 2:  # a t-interval of two is wider than the panel
                half = student_t.ppf(0.975, len(curves) - 1) * values.std(axis=0, ddof=1) / math.sqrt(len(curves))
                band = (values.min(axis=0), values.max(axis=0)) if heavy else (middle - half, middle + half)
                axes.fill_between(x, *band, alpha=0.06 if many else 0.12, color=colours[arm], linewidth=0)
        axes.set_title(title, fontsize=9)
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if name in ("validation/accuracy", "reward/success"):
            axes.set_ylim(0, 1)
        if name == "policy/clip_fraction":
            axes.set_ylim(0, None)
        if name in HEAVY_TAILED:
            axes.set_yscale("log")
    figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.savefig(path, format="svg", metadata={"Date": None})


def summary_figure(points: Mapping[str, Sequence[tuple[float, float]]], path: Path) -> None:
    """(best, final) held-out accuracy of every seed, by arm.

    A line leads from best to final, so its length is what was lost. A bar marks the mean final.
    """
    shown = {arm: pairs for arm, pairs in points.items() if pairs}
    figure = Figure(figsize=(8, 0.8 + 0.45 * len(shown)), layout="constrained")
    axes = figure.add_subplot()
    for place, pairs in enumerate(shown.values()):
        for number, (best, final) in enumerate(pairs):
            y = place + 0.5 * ((number + 0.5) / len(pairs) - 0.5)
            axes.plot([best, final], [y, y], color="#999999", linewidth=1, zorder=1)
            axes.scatter([best], [y], s=16, facecolors="white", edgecolors="#555555", linewidths=0.8, zorder=2)
            axes.scatter([final], [y], s=16, color="#1f4e9c", zorder=3)
        middle = mean(final for _, final in pairs)
        axes.plot([middle, middle], [place - 0.38, place + 0.38], color="#1f4e9c", linewidth=2.5, zorder=4)
    axes.set_yticks(range(len(shown)), list(shown), fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel("held-out accuracy: best (open) and final (filled) of each seed; bar: mean final", fontsize=9)
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.savefig(path, format="svg", metadata={"Date": None})
