"""Results across benchmarks: agents in rows, benchmarks in columns, from the folders of evaluations."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from medagent.errors import InputError
from medagent.evaluation.comparison import answers_in, common_mode, run_predictions
from medagent.evaluation.evaluator import LOADED
from medagent.evaluation.grading.grade import Verdict, grade
from medagent.evaluation.predictions import Prediction
from medagent.evaluation.reports.tables import interval, short
from medagent.evaluation.statistics import Accuracy, Estimate, macro_average

SHARED = {"limits": {}, "prompting": "tags", "shots": 0, "temperature": 0.0, "samples": 1}  # along rows and columns
OF_AGENT = {"agent_sha256": "", "parameters": {}, "dtype": "", "tools": {}}  # along rows; with what a report leaves out


@dataclass(frozen=True)
class Cell:
    """One agent on one benchmark, by the first sample of each question; `marks` are the strict grades."""

    run: str
    accuracy: Accuracy
    unparsed: int
    errors: int
    marks: tuple[bool, ...]
    questions: frozenset[tuple[str, ...]]
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class ResultsTable:
    """The cells that were measured, by agent and benchmark, in the order given."""

    mode: str
    benchmarks: tuple[str, ...]
    rows: Mapping[str, Mapping[str, Cell]]

    def macro_average(self, agent: str) -> Estimate | None:
        """The mean over all benchmarks, which weigh alike; None for an agent that lacks one."""
        own = self.rows[agent]
        return macro_average([cell.marks for cell in own.values()]) if len(own) == len(self.benchmarks) else None


def results_table(runs: Sequence[str | Path], *, mode: str | None = None) -> ResultsTable:
    """The table of evaluations, each of one agent on one benchmark. MMLU's subjects are columns of their own.

    Without `mode` it takes the first mode of the first run that all have.

    Raises:
        InputError: a folder holds no finished evaluation, or runs that share a row or a column differ in a setting of
            `SHARED` or `OF_AGENT` or in their questions.
    """
    opened = [run_predictions(run) for run in runs]
    chosen = mode or common_mode(opened, "Evaluate all in one mode.")
    rows: dict[str, dict[str, Cell]] = {}
    for run, predictions in opened:
        settings = _settings(Path(run))
        agent = f"{settings['model']} ({settings['agent']})" if settings["model"] else str(settings["agent"])
        agent += f" of {run}" * (agent == LOADED)  # which may be any agent
        columns: dict[str, list[Prediction]] = {}
        for each in answers_in(chosen, run, predictions):
            columns.setdefault(_column(settings, each.rollout.question.kind), []).append(each)
        for benchmark, answers in columns.items():
            new = _cell(run, answers, settings)
            for other, cells in rows.items():
                for name, cell in cells.items():
                    _check(cell, new, same_agent=other == agent, same_benchmark=name == benchmark)
            rows.setdefault(agent, {})[benchmark] = new
    return ResultsTable(chosen, tuple(dict.fromkeys(name for cells in rows.values() for name in cells)), rows)


def _settings(run: Path) -> dict[str, Any]:
    try:
        found = json.loads((run / "report.json").read_text(encoding="utf-8"))["settings"]
    except (OSError, ValueError, KeyError) as error:
        wanted = "the report of a finished evaluation. Run the same `medagent evaluate` again, which goes on"
        raise InputError(f"{run / 'report.json'}: cannot be read ({error!r}), wanted {wanted}.") from error
    return {**SHARED, **OF_AGENT, **found, "prompting": found.get("ask", "tags")}


def _column(settings: Mapping[str, Any], kind: str) -> str:
    name: str = settings["benchmark"]
    if name in ("jsonl", "open"):  # files of any questions
        return str(settings["subset"] or Path(settings["path"] or settings["hub"]).stem)
    return f"mmlu_{kind}" if name == "mmlu" else name


def _cell(run: str, answers: Sequence[Prediction], settings: Mapping[str, Any]) -> Cell:
    verdicts = [grade(each.rollout).verdict for each in answers]
    questions = (each.rollout.question for each in answers)
    return Cell(
        run,
        Accuracy.of(verdicts.count(Verdict.CORRECT), len(verdicts)),
        unparsed=verdicts.count(Verdict.UNPARSED) + verdicts.count(Verdict.MULTIPLE),
        errors=sum(verdict.value == "error" for verdict in verdicts),  # the endpoint failed
        marks=tuple(verdict is Verdict.CORRECT for verdict in verdicts),
        questions=frozenset((each.id, each.text, *each.options, each.answer) for each in questions),
        settings=settings,
    )


def _check(old: Cell, new: Cell, *, same_agent: bool, same_benchmark: bool) -> None:
    """Refuse two cells of one row or column that differ in what these must share."""
    where = f"{old.run} and {new.run}"
    if same_agent and same_benchmark:
        raise InputError(f"{where}: both measure one agent on one benchmark. Leave one of them out.")
    shared = [*(SHARED if same_agent or same_benchmark else ()), *(OF_AGENT if same_agent else ())]
    for name in shared:
        if old.settings[name] != new.settings[name]:
            found = f"{name} {old.settings[name]} and {new.settings[name]}"
            wanted = f"the same along a {'row' if same_agent else 'column'}"
            raise InputError(f"{where}: found {found}, wanted {wanted}. Evaluate one as the other, or leave it out.")
    if same_benchmark and (differing := {question[0] for question in old.questions ^ new.questions}):
        found = f"{len(differing)} questions that one of them asks otherwise or not at all, such as {min(differing)}"
        remedy = "Evaluate both on one file, with the same --start, --stop and --limit"
        raise InputError(f"{where}: found {found}, wanted the same along a column. {remedy}.")


def markdown_table(found: ResultsTable) -> str:
    """Agents by benchmarks with Wilson's intervals, the macro average, and how much was asked, unparsed and failed."""
    sizes = {name: cell.accuracy.n for cells in found.rows.values() for name, cell in cells.items()}
    columns = (f"{name} (n = {sizes[name]})" for name in found.benchmarks)
    rows = [("agent", *columns, "macro average", "n", "unparsed", "errors")]
    for agent, own in found.rows.items():
        macro = found.macro_average(agent)
        counts = zip(*((each.accuracy.n, each.unparsed, each.errors) for each in own.values()), strict=True)
        cells = [short(own[name].accuracy) if name in own else "-" for name in found.benchmarks]
        rows.append((agent, *cells, interval(macro) if macro else "-", *(str(sum(each)) for each in counts)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"| {' | '.join(map(str.ljust, row, widths))} |" for row in rows]
    return "\n".join([lines[0], f"| {' | '.join('-' * width for width in widths)} |", *lines[1:]])


def plain_rows(found: ResultsTable) -> list[dict[str, Any]]:
    """A row of figures for each agent and benchmark, and for each macro average."""
    rows: list[dict[str, Any]] = []
    for agent, own in found.rows.items():
        for name, cell in own.items():
            counts = {"unparsed": cell.unparsed, "errors": cell.errors, "run": cell.run}
            rows.append({"agent": agent, "benchmark": name, "mode": found.mode, **asdict(cell.accuracy), **counts})
        if macro := found.macro_average(agent):
            figures = {"accuracy": macro.value, "ci_low": macro.ci_low, "ci_high": macro.ci_high, "n": macro.n}
            rows.append({"agent": agent, "benchmark": "macro average", "mode": found.mode, **figures})
    return rows
