"""Progress and figures of `medagent rubric`, for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from medagent.cli.evaluate import shown_table
from medagent.evaluation.reports.html import Table
from medagent.evaluation.rubrics.judging import PROMPTS_SHA256, RubricReport
from medagent.evaluation.statistics import Estimate

NO_VERDICT = (
    "A model judged these texts by written criteria. That is no medical verdict, and says nothing of the safety of "
    "an answer."
)


@contextmanager
def progress_of(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each stage, while the block runs."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, Any] = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield show


def print_rubric(report: RubricReport, out: Path, console: Console) -> None:
    """Print the figures."""
    for table in tables(report):
        console.print(shown_table(table))
    console.print(
        f"{report.verdicts} verdicts, {report.unread} of them unreadable, for which {report.left_out} rows are left "
        f"out. {report.empty} replies are empty. Prompts {PROMPTS_SHA256[:12]}.\n{NO_VERDICT}\n"
        f"Report: {out / 'report.json'}",
        markup=False,
    )


def tables(report: RubricReport) -> list[Table]:
    """The figures as tables."""
    found: list[Table] = []
    rows: list[tuple[str, ...]]
    if report.scores:
        rows = [
            (name, f"{each.value:.3f} [{each.ci_low:.3f}, {each.ci_high:.3f}]", str(each.n))
            for name, each in report.scores.items()
        ]
        found.append(Table("Score by rubric", ("", "score [95%]", "cases"), rows))
    if report.agreement:
        rows = [
            ("judge and a person agree", _counted(report.agreement.agreed)),
            ("macro F1 of the judge", f"{report.agreement.macro_f1:.3f}"),
            ("two people agree", _counted(report.agreement.people)),
        ]
        found.append(Table("Agreement with people", ("", ""), rows))
    return found


def _counted(share: Estimate | None) -> str:
    """A share with its interval, and over how many rows."""
    if share is None:
        return "-"
    return f"{share.value:.1%} [{100 * share.ci_low:.1f}, {100 * share.ci_high:.1f}], {share.n}"
