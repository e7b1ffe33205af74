"""The work of `medagent rubric`: who replies, who judges, and what is printed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from medagent.cli.evaluate import shown_table
from medagent.errors import InputError
from medagent.evaluation.fingerprints import agent_fingerprint
from medagent.evaluation.reports.html import Table
from medagent.evaluation.rubrics.judge import PROMPTS_SHA256
from medagent.evaluation.rubrics.judging import JudgeSettings, RubricReport, judge_rows
from medagent.evaluation.rubrics.rows import Case, read_rubric_rows
from medagent.evaluation.rubrics.speakers import Speaker, speaker_of
from medagent.evaluation.statistics import Accuracy, Estimate
from medagent.loading import open_agent
from medagent.models.base_models import STARTER

NO_VERDICT = (
    "A model judged these texts by written criteria. That is no medical verdict, and says nothing of the safety of "
    "an answer."
)


@dataclass(frozen=True)
class Voice:
    """Who speaks, by the names of `medagent evaluate`; `model` names an endpoint's."""

    name: str
    model: str = ""
    index: str | None = None
    parameters: dict[str, Any] | None = None

    def open(self) -> Speaker:
        """Ready to reply."""
        agent = open_agent(
            self.name,
            index=self.index,
            lockstep=True,
            model=self.model,
            parameters=self.parameters or {},
            must_search=False,
        )
        exported = not (self.name == STARTER or self.name.startswith(("http://", "https://", "hf:")))
        return speaker_of(agent, trained=exported)

    def described(self) -> dict[str, Any]:
        """What names it in a report."""
        found = {"name": self.name, "model": self.model, "sha256": agent_fingerprint(self.name)}
        return {**found, "index": self.index, "parameters": self.parameters or {}}


def print_rubric(
    path: Path, agent: Voice | None, judge: Voice, *, limit: int | None, settings: JudgeSettings, out: Path
) -> RubricReport:
    """Judge, print the figures, and write report.json."""
    console = Console(highlight=False)
    if limit is not None and limit < 1:
        raise InputError(f"limit: found {limit}, wanted 1 or more.")
    rows = read_rubric_rows(path)[:limit]
    needs = isinstance(rows[0], Case)
    if needs and agent is None:
        raise InputError(f"{path}: its cases have no replies. Name an agent that gives them, with --agent.")
    console.print(f"{len(rows)} rows of {path}, judged by {judge.name} {judge.model}.", markup=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done)

        report = judge_rows(
            rows,
            judge.open(),
            out,
            settings,
            speaker=agent.open() if needs and agent is not None else None,
            identity={
                "agent": agent.described() if needs and agent is not None else None,
                "judge": judge.described(),
            },
            on_progress=show,
        )
    for table in tables(report):
        console.print(shown_table(table))
    console.print(
        f"{report.verdicts} verdicts, {report.unread} of them unreadable, for which {report.left_out} rows are left "
        f"out. {report.empty} replies are empty. Prompts {PROMPTS_SHA256[:12]}.\n{NO_VERDICT}\n"
        f"Report: {out / 'report.json'}",
        markup=False,
    )
    return report


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
    if report.preference:
        each = report.preference
        rows = [
            ("both orders give the same choice", _counted(each.consistent)),
            ("choices for the answer shown first (no bias: 50%)", _counted(each.first)),
            ("choices for the longer answer", _counted(each.longer)),
        ]
        if each.agreed is not None:
            rows += [
                ("people's choices for the longer answer", _counted(each.people_longer)),
                ("judge and a person agree (of three: better, worse, tie)", _counted(each.agreed)),
            ]
        found.append(Table("Pairs, each shown in both orders", ("", ""), rows))
    return found


def _counted(share: Accuracy | Estimate | None) -> str:
    """A share with its interval, and over how many rows."""
    if share is None:
        return "-"
    value = share.accuracy if isinstance(share, Accuracy) else share.value
    return f"{value:.1%} [{100 * share.ci_low:.1f}, {100 * share.ci_high:.1f}], {share.n}"
