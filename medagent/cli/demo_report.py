"""The end of a demonstration: a table, one answer turn by turn, and a page."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from medagent.agent_spec import read_spec, write_spec
from medagent.cli.console import TurnPrinter, show_answer, show_question
from medagent.evaluation.grading.grade import grade
from medagent.evaluation.metrics import Summary
from medagent.evaluation.modes import Mode
from medagent.evaluation.reports.html import Table, chart, render_page
from medagent.evidence.answers import checked
from medagent.evidence.check import EvidenceCheck
from medagent.protocol import TurnProtocol
from medagent.retrieval.retriever import Retriever
from medagent.training.callbacks.collapse_monitor import describe_alarms
from medagent.training.callbacks.export import read_metrics
from medagent.types import Question, Rollout

SEARCH, FORCED, UNRELATED = Mode.SEARCH.value, Mode.FORCED_SEARCH.value, Mode.UNRELATED.value
SINGLE_SHOT, SAMPLED, PERMUTED = Mode.SINGLE_SHOT.value, "sampled", "permuted"
Columns = Mapping[str, Mapping[str, Mapping[str, Any]]]  # column -> part -> figures
INTERVAL, SHARE, NUMBER, COUNT = "interval", ".1%", ".2f", "d"
ROWS = (
    ("accuracy, greedy [95% interval]", SEARCH, "accuracy", INTERVAL),
    ("  one-hop questions", SEARCH, "one_hop", SHARE),
    ("  two-hop questions", SEARCH, "two_hop", SHARE),
    ("  read leniently, without tags too", SEARCH, "lenient_accuracy", SHARE),
    ("one search given, then the answer, read so too (chance 25%)", SINGLE_SHOT, "lenient_accuracy", SHARE),
    ("accuracy, sampled", SAMPLED, "accuracy", SHARE),
    ("with a search forced on the first turn", FORCED, "accuracy", SHARE),
    ("searches return unrelated passages (chance 25%)", UNRELATED, "accuracy", SHARE),
    ("follows a corpus of permuted facts", PERMUTED, "accuracy", SHARE),
    ("answers that cite a passage", SEARCH, "cited_share", SHARE),
    ("searches per question", SEARCH, "searches_per_question", NUMBER),
    ("unparsed or missing answers", SEARCH, "unparsed", COUNT),
)
CHARTS = {  # title -> label -> metric; those of a supervised training are `sft/...`
    "success of sampled rollouts": {"training": "reward/success"},
    "searches per question": {"training": "rollout/searches"},
    "examples: loss (nats per token)": {"per epoch": "sft/loss"},
    "clip fraction and correction scale": {
        "clip_fraction": "policy/clip_fraction",
        "clip_bias_scale": "policy/clip_bias_scale",
    },
    "critic: explained variance": {"fresh rollouts": "critic/explained_variance"},
    "KL to the base policy (k3)": {"per token": "kl/reference"},
    "entropy (nats per token)": {"policy": "policy/entropy"},
}


def flat_summary(summary: Summary) -> dict[str, Any]:
    """A summary with plain accuracies by type, and their intervals beside them."""
    row = summary.to_json()
    row["by_type_intervals"] = row["by_type"]
    row["by_type"] = {kind: part.accuracy for kind, part in summary.by_type.items()}
    row["unparsed"] = summary.unparsed + summary.no_answer
    return row


def print_row(console: Console, name: str, row: Mapping[str, Any]) -> None:
    """The figures of an agent, in a line."""
    kinds = ", ".join(f"{kind.replace('_', '-')} {share:.0%}" for kind, share in row["by_type"].items())
    console.print(
        f"   {name}: accuracy {row['accuracy']:.1%} (95% interval {row['ci_low']:.1%} to {row['ci_high']:.1%}, n = "
        f"{row['n']}): {kinds}; read leniently {row['lenient_accuracy']:.1%}; {row['searches_per_question']:.2f} "
        "searches per question"
    )


def table_rows(columns: Columns) -> list[tuple[str, ...]]:
    """A name, then a cell per column; a cell is empty, and a row left out, where nothing was measured."""

    def cell(parts: Mapping[str, Mapping[str, Any]], part: str, key: str, shown: str) -> str:
        row = parts.get(part)
        value = row and (row["by_type"].get(key) if key in ("one_hop", "two_hop") else row[key])
        if row is None or value is None:
            return ""
        if shown == INTERVAL:
            return f"{value:.1%} [{row['ci_low']:.1%}, {row['ci_high']:.1%}]"
        return f"{value:{shown}}"

    rows = [(name, *(cell(parts, *rest) for parts in columns.values())) for name, *rest in ROWS]
    return [row for row in rows if any(row[1:])]


def headings(columns: Columns) -> list[str]:
    """The columns as people read them."""
    return [{"examples": "after examples", "trained": "after RL"}.get(name, name) for name in columns]


def comparison(columns: Columns, found: Mapping[str, Any]) -> str:
    """The last agent against the one before it, in a sentence."""
    before, last = headings(columns)[-2:]
    return (
        f"Accuracy {last} less {before}: {found['difference']:+.1%} [{found['ci_low']:+.1%}, {found['ci_high']:+.1%}], "
        f"McNemar p = {found['p_mcnemar']:.2g}, n = {found['n']}."
    )


def print_table(console: Console, columns: Columns, compared: Mapping[str, Any], *, halved: bool) -> str:
    """Print the table and the comparison, which is returned. `halved`: controls asked half of the questions."""
    also = "; half of them in a control" if halved else ""
    table = RichTable(f"test questions, conditions never trained on{also}", *headings(columns))
    for row in table_rows(columns):
        table.add_row(*(cell.replace("[", "\\[") for cell in row))
    console.print(table)
    said = comparison(columns, compared)
    console.print(said.replace("[", "\\["))
    return said


def show_one(console: Console, protocol: TurnProtocol, rollouts: Sequence[Rollout], retriever: Retriever) -> Rollout:
    """Show one rollout turn by turn, and return it: a right two-hop answer after several searches, if there is one."""
    good = [r for r in rollouts if grade(r).correct and r.question.kind == "two_hop" and r.num_searches > 1]
    chosen = random.Random(0).choice(good or rollouts)
    console.print("[bold]One question aloud[/bold]")
    show_question(console, chosen.question)
    printer = TurnPrinter(console, protocol, retriever)
    for turn in chosen.turns:
        printer(turn)
    show_answer(console, checked(chosen, EvidenceCheck(shown="all")))
    return chosen


def write_page(
    out: Path, base: str, columns: Columns, compared: str, chosen: Rollout, rollouts: Sequence[Rollout]
) -> None:
    """The report as a page: the table, the curves of the trainings, and some answers."""
    metrics = read_metrics(out)
    if (out / "examples").is_dir():
        metrics = [*read_metrics(out / "examples"), *metrics]
    charts = []
    for title, wanted in CHARTS.items():
        series = {label: [row[name] for row in metrics if name in row] for label, name in wanted.items()}
        if any(series.values()):
            charts.append(chart(title, series, percent=title.startswith("success")))
    wrong = [rollout for rollout in rollouts if not grade(rollout).correct][:3]
    right = [rollout for rollout in rollouts if grade(rollout).correct][:3]
    groups = {"One question": [chosen], "Answered rightly": right, "Answered wrongly": wrong}
    render_page(
        out / "report.html",
        "report.html",
        title="medagent demo" if base == "starter" else f"medagent demo: {base}",
        summary=f"{base} learnt to search a medical corpus. Test questions are about conditions that no training "
        f"saw. {compared} {describe_alarms(out)}",
        tables=[Table("Before and after training", ("", *headings(columns)), table_rows(columns))],
        charts=charts,
        charts_title="While it learnt",
        groups={name: [(rollout, grade(rollout)) for rollout in some] for name, some in groups.items()},
    )


def finish_agent(out: Path, questions: Sequence[Question]) -> None:
    """Let the exported agent search the whole corpus, and write the questions that `medagent serve` offers."""
    agent, index = out / "agent", str((out / "index").resolve())
    spec = read_spec(agent)
    assert spec.retriever is not None
    write_spec(agent, replace(spec, retriever=replace(spec.retriever, index=index)))
    kinds = [[each for each in questions if each.kind == kind] for kind in sorted({each.kind for each in questions})]
    offered = [
        {"question": each.text, "options": each.options if number < 2 else []}
        for asked in kinds
        for number, each in enumerate(asked[:3])
    ]
    quiz = [{"question": each.text, "options": each.options, "answer": each.answer} for each in questions]
    for name, rows in (("quiz", quiz), ("examples", offered)):
        (agent / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
