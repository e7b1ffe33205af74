"""Reports: one JSON for programs, one self-contained HTML page for people (no script, no outside asset)."""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from medagent.protocol import NOT_ADVICE

matplotlib.use("svg")


def chart(title: str, series: Mapping[str, Sequence[float]], *, percent: bool = False) -> Markup:
    """A line chart as inline SVG: from each label to one value per iteration."""
    figure, axes = _axes(title, "iteration", "", size=(4.6, 2.6))
    for label, values in series.items():
        axes.plot(range(1, len(values) + 1), values, label=label, linewidth=1.8)
    if percent:
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter("{x:.0%}")
    if len(series) > 1:
        axes.legend(fontsize=8, frameon=False)
    return _inline(figure)


def curve(title: str, x: str, y: str, points: Sequence[tuple[float, float]], *, diagonal: bool = False) -> Markup:
    """Points of one share against another as inline SVG. `diagonal` draws where they would be equal."""
    figure, axes = _axes(title, x, y, size=(3.6, 3.2))
    if diagonal:
        axes.plot([0, 1], [0, 1], color="0.7", linewidth=1, linestyle="--")
    axes.plot(*zip(*points, strict=True), marker="o" if len(points) < 30 else None, markersize=4, linewidth=1.8)
    axes.set_xlim(0, 1.02)
    axes.set_ylim(0, 1.02)
    return _inline(figure)


def _axes(title: str, x: str, y: str, *, size: tuple[float, float]) -> tuple[Figure, Axes]:
    """An empty figure of `size` inches, with small labels and a light grid."""
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _inline(figure: Figure) -> Markup:
    """A figure as inline SVG (made here from numbers, so it needs no escaping)."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return Markup(text[text.index("<svg") :])  # noqa: S704


@dataclass(frozen=True)
class Table:
    """A table with a head and rows of text."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def write_json(path: Path, report: Mapping[str, Any]) -> None:
    """Write the report for programs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def render_page(path: Path, **content: object) -> None:
    """Write the page of a report: `title`, `summary`, `tables`, `charts` and `charts_title`. All text is escaped."""
    loader = PackageLoader("medagent.evaluation.reports", "templates")
    environment = Environment(loader=loader, autoescape=select_autoescape())
    page = environment.get_template("report.html").render(notice=NOT_ADVICE, **content)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
