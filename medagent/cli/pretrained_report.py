"""What `medagent demo --base smollm2` shows at its end: a table, one answer turn by turn, and a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from medagent.cli.console import TurnPrinter, show_answer, show_question
from medagent.cli.demo import showcase
from medagent.evaluation.grading.grade import grade
from medagent.evaluation.modes import Mode
from medagent.evaluation.reports.html import Chart, Table, write_html
from medagent.evidence.answers import checked
from medagent.evidence.check import EvidenceCheck
from medagent.protocol import TurnProtocol
from medagent.training.callbacks.collapse_monitor import describe_alarms
from medagent.training.callbacks.export import read_metrics
from medagent.types import Rollout

COLUMNS = {"untrained": "untrained", "examples": "after examples", "trained": "after RL"}
TITLE = "test questions about conditions never trained on; half of them in a control"
SEARCH, FORCED, UNRELATED, PERMUTED = Mode.SEARCH.value, Mode.FORCED_SEARCH.value, Mode.UNRELATED.value, "permuted"


def table_rows(report: dict[str, Any]) -> list[tuple[str, ...]]:
    """A name, then a cell for each of `COLUMNS`; empty where something was not measured."""

    def cells(part: str, key: str, shown: str = "share") -> tuple[str, ...]:
        found = []
        for column in COLUMNS:
            row = report[column].get(part)
            value = row and (row["by_type"].get(key) if key in ("one_hop", "two_hop") else row[key])
            if value is None:
                found.append("")
            elif shown == "interval":
                found.append(f"{value:.1%} [{row['ci_low']:.1%}, {row['ci_high']:.1%}]")
            else:
                found.append(f"{value:.1%}" if shown == "share" else f"{value:.2f}")
        return tuple(found)

    return [
        ("accuracy, greedy [95% interval]", *cells(SEARCH, "accuracy", "interval")),
        ("  one-hop questions", *cells(SEARCH, "one_hop")),
        ("  two-hop questions", *cells(SEARCH, "two_hop")),
        ("  read leniently, without tags too", *cells(SEARCH, "lenient_accuracy")),
        (
            "one search given, then the answer, read so too (chance 25%)",
            *cells(Mode.SINGLE_SHOT.value, "lenient_accuracy"),
        ),
        ("with a search forced on the first turn", *cells(FORCED, "accuracy")),
        ("searches return unrelated passages (chance 25%)", *cells(UNRELATED, "accuracy")),
        ("follows a corpus of permuted facts", *cells(PERMUTED, "accuracy")),
        ("answers that cite a passage", *cells(SEARCH, "cited_share")),
        ("searches per question", *cells(SEARCH, "searches_per_question", "number")),
    ]


def comparison(report: dict[str, Any]) -> str:
    """RL against examples alone, in a sentence."""
    found = report["trained_against_examples"]
    return (
        f"RL over examples alone: {found['difference']:+.1%} [{found['ci_low']:+.1%}, {found['ci_high']:+.1%}], "
        f"McNemar p = {found['p_mcnemar']:.2g}, n = {found['n']}."
    )


def print_table(console: Console, report: dict[str, Any]) -> None:
    """The table and the comparison."""
    table = RichTable(TITLE, *COLUMNS.values())
    for row in table_rows(report):
        table.add_row(*(cell.replace("[", "\\[") for cell in row))
    console.print(table)
    console.print(comparison(report).replace("[", "\\["))


def tell_one(console: Console, protocol: TurnProtocol, rollouts: list[Rollout]) -> Rollout:
    """Show one rollout turn by turn, and return it."""
    chosen = showcase(rollouts)
    console.print("\n[bold]One question aloud[/bold]")
    show_question(console, chosen.question)
    printer = TurnPrinter(console, protocol)
    for turn in chosen.turns:
        printer(turn)
    show_answer(console, checked(chosen, EvidenceCheck(shown="all")))
    return chosen


def write_page(out: Path, report: dict[str, Any], chosen: Rollout, rollouts: list[Rollout]) -> None:
    """The report as a page."""
    learnt, taught = read_metrics(out), read_metrics(out / "examples")

    def curve(rows: list[dict[str, float]], name: str) -> list[float]:
        return [row[name] for row in rows if name in row]

    charts = [
        Chart("success of sampled rollouts", {"training": curve(learnt, "reward/success")}, percent=True),
        Chart("searches per question", {"training": curve(learnt, "rollout/searches")}),
        Chart("examples: loss (nats per token)", {"per epoch": curve(taught, "sft/loss")}),
        Chart(
            "clip fraction and correction scale",
            {name: curve(learnt, f"policy/{name}") for name in ("clip_fraction", "clip_bias_scale")},
        ),
        Chart("entropy (nats per token)", {"policy": curve(learnt, "policy/entropy")}),
    ]
    settings = report["settings"]
    wrong = [rollout for rollout in rollouts if not grade(rollout).correct][:3]
    right = [rollout for rollout in rollouts if grade(rollout).correct][:3]
    write_html(
        out / "report.html",
        title=f"medagent demo: {settings['base']}",
        summary=f"{settings['base']} learnt to search a medical corpus: first from examples written by rule, then by "
        f"ST-PPO (seed {settings['seed']}). Test questions are about conditions that no training saw. "
        f"{comparison(report)} {describe_alarms(out)}",
        tables=[Table("Untrained, after examples, after RL", ("", *COLUMNS.values()), table_rows(report))],
        charts=charts,
        rollouts={"One question": [chosen], "Answered rightly": right, "Answered wrongly": wrong},
    )
