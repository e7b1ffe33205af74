"""Reports: one JSON for programs, one self-contained HTML page for people (no script, no outside asset)."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup
from matplotlib.figure import Figure

from evaluation.grading import grade
from medagent.protocol import NOT_ADVICE
from medagent.records import Rollout

matplotlib.use("svg")
Series = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Chart:
    """A line chart: label -> one value an iteration."""

    title: str
    series: Series
    percent: bool = False

    def svg(self) -> Markup:
        """The chart as inline SVG (made here from numbers, so it needs no escaping)."""
        figure = Figure(figsize=(4.6, 2.6), layout="constrained")
        axes = figure.add_subplot()
        for label, values in self.series.items():
            axes.plot(range(1, len(values) + 1), values, label=label, linewidth=1.8)
        axes.set_title(self.title, fontsize=10)
        axes.set_xlabel("iteration", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if self.percent:
            axes.set_ylim(0, 1)
            axes.yaxis.set_major_formatter("{x:.0%}")
        if len(self.series) > 1:
            axes.legend(fontsize=8, frameon=False)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
        text = buffer.getvalue()
        return Markup(text[text.index("<svg") :])  # noqa: S704


@dataclass(frozen=True)
class Table:
    """A table: head and rows of text."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def write_json(path: Path, report: Mapping[str, Any]) -> None:
    """Write the report for programs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_html(
    path: Path,
    *,
    title: str,
    summary: str,
    tables: Sequence[Table],
    charts: Sequence[Chart],
    rollouts: Mapping[str, Sequence[Rollout]],
) -> None:
    """Write the page; `rollouts` are shown turn by turn under their headings. All text is escaped."""
    environment = Environment(loader=PackageLoader("evaluation", "templates"), autoescape=select_autoescape())
    page = environment.get_template("report.html").render(
        title=title,
        summary=summary,
        tables=tables,
        charts=[chart.svg() for chart in charts],
        groups={name: [(rollout, grade(rollout)) for rollout in some] for name, some in rollouts.items()},
        notice=NOT_ADVICE,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
