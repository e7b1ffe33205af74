"""The end of a demonstration: a table, and one answer turn by turn."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from medagent.agent_spec import read_spec, write_spec
from medagent.cli.console import TurnPrinter, show_answer, show_question
from medagent.evaluation.grading.grade import grade
from medagent.evaluation.metrics import Summary
from medagent.evaluation.modes import Mode
from medagent.evaluation.reports.tables import Table, short
from medagent.evidence.answers import checked
from medagent.evidence.check import EvidenceCheck
from medagent.protocol import TurnProtocol
from medagent.retrieval.retriever import Retriever
from medagent.types import Question, Rollout

SEARCH, SAMPLED, PERMUTED = Mode.SEARCH, "sampled", "permuted"
Columns = Mapping[str, Mapping[str, Summary]]  # column -> part -> figures
HEADINGS = {"examples": "after examples", "trained": "after RL"}  # of columns, as people read them
ROWS: tuple[tuple[str, str, Callable[[Summary], str]], ...] = (
    ("accuracy, greedy [95% interval]", SEARCH, lambda found: short(found.overall)),
    ("  one-hop questions", SEARCH, lambda found: f"{found.by_type['one_hop'].accuracy:.1%}"),
    ("  two-hop questions", SEARCH, lambda found: f"{found.by_type['two_hop'].accuracy:.1%}"),
    ("  read leniently, without tags too", SEARCH, lambda found: f"{found.lenient_accuracy:.1%}"),
    (
        "one search given, then the answer, read so too (chance 25%)",
        Mode.SINGLE_SHOT,
        lambda found: f"{found.lenient_accuracy:.1%}",
    ),
    ("accuracy, sampled", SAMPLED, lambda found: f"{found.overall.accuracy:.1%}"),
    ("with a search forced on the first turn", Mode.FORCED_SEARCH, lambda found: f"{found.overall.accuracy:.1%}"),
    ("searches return unrelated passages (chance 25%)", Mode.UNRELATED, lambda found: f"{found.overall.accuracy:.1%}"),
    ("follows a corpus of permuted facts", PERMUTED, lambda found: f"{found.overall.accuracy:.1%}"),
    ("answers that cite a passage", SEARCH, lambda found: f"{found.cited_share:.1%}"),
    ("searches per question", SEARCH, lambda found: f"{found.searches_per_question:.2f}"),
    ("unparsed or missing answers", SEARCH, lambda found: str(found.unparsed + found.no_answer)),
)


def line_of(found: Summary) -> str:
    """The figures of an agent, in a line."""
    kinds = ", ".join(f"{kind.replace('_', '-')} {share.accuracy:.0%}" for kind, share in found.by_type.items())
    return (
        f"accuracy {short(found.overall)} (95% interval), n = {found.overall.n}: {kinds}; read leniently "
        f"{found.lenient_accuracy:.1%}; {found.searches_per_question:.2f} searches per question"
    )


def report_table(columns: Columns, *, halved: bool) -> Table:
    """A row per figure; a cell is empty, and a row left out, where nothing was measured.

    `halved`: controls asked half of the questions.
    """
    rows = [
        (name, *(tell(parts[part]) if part in parts else "" for parts in columns.values())) for name, part, tell in ROWS
    ]
    also = "; half of them in a control" if halved else ""
    headings = ("", *(HEADINGS.get(name, name) for name in columns))
    title = f"test questions, conditions never trained on{also}"
    return Table(title, headings, [row for row in rows if any(row[1:])])


def show_one(console: Console, protocol: TurnProtocol, rollouts: Sequence[Rollout], retriever: Retriever) -> None:
    """Show one rollout turn by turn: a right two-hop answer after several searches, if there is one."""
    good = [r for r in rollouts if grade(r).correct and r.question.kind == "two_hop" and r.num_searches > 1]
    chosen = random.Random(0).choice(good or rollouts)
    console.print("[bold]One question aloud[/bold]")
    show_question(console, chosen.question)
    printer = TurnPrinter(console, protocol, retriever)
    for turn in chosen.turns:
        printer(turn)
    show_answer(console, checked(chosen, EvidenceCheck(shown="all")))


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
    (agent / "examples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in offered), encoding="utf-8")
