"""What `medagent evaluate`, `compare`, `grade` and `contamination` do, for people."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable
from rich.text import Text

from evaluation.benchmarks import (
    BioASQBenchmark,
    FileBenchmark,
    JsonlBenchmark,
    MedMCQABenchmark,
    MedQABenchmark,
    MedXpertQABenchmark,
    MMLUBenchmark,
    OpenQABenchmark,
    PubMedQABenchmark,
    StarterBenchmark,
)
from evaluation.benchmarks.base import sample
from evaluation.contamination import Contamination, contamination, question_texts
from evaluation.grading import grade
from evaluation.indexing import corpus_passages
from evaluation.metrics import ModeReport, report_mode
from evaluation.modes import Mode, baselines
from evaluation.predictions import Prediction, PredictionLog
from evaluation.replies import read_replies, summarize_replies, write_readings
from evaluation.report import Table, write_evaluation_html, write_json
from evaluation.run import Plan, run_plan
from evaluation.statistics import PairedComparison, compare_paired, wilson_interval
from evaluation.tables import curves, markdown, tables
from medagent.agent import Agent
from medagent.asking import open_agent
from medagent.errors import ConfigError, InputError
from medagent.records import Question
from medagent.starter.world import SPLITS
from retrieval.passages import Passage
from retrieval.search import HybridRetriever, NoRetriever

BenchmarkName = Literal[
    "starter",
    "medqa",
    "medmcqa",
    "pubmedqa",
    "pubmedqa_with_abstract",
    "pubmedqa_yes_no",
    "mmlu",
    "bioasq",
    "medxpertqa",
    "open",
    "jsonl",
]
_FILES: dict[str, type[FileBenchmark]] = {
    "medqa": MedQABenchmark,
    "medmcqa": MedMCQABenchmark,
    "mmlu": MMLUBenchmark,
    "bioasq": BioASQBenchmark,
    "medxpertqa": MedXpertQABenchmark,
    "open": OpenQABenchmark,
    "jsonl": JsonlBenchmark,
}
_SEARCHING = (Mode.SEARCH, Mode.FORCED_SEARCH, Mode.SINGLE_SHOT)


@dataclass(frozen=True)
class Source:
    """Where questions come from: a benchmark by name, its file or its name on the hub, and which of its questions."""

    benchmark: BenchmarkName = "starter"
    path: str | None = None
    hub: str | None = None
    subset: str | None = None
    split: str | None = None
    start: int = 0
    stop: int | None = None
    limit: int | None = None
    limit_seed: int = 0

    def open(self) -> FileBenchmark | StarterBenchmark:
        """The benchmark."""
        if self.benchmark == "starter":
            split = self.split or "test"
            if split not in SPLITS:
                raise InputError(f"benchmark 'starter': found split {split!r}, wanted one of {', '.join(SPLITS)}.")
            return StarterBenchmark(split)
        if self.path is None and self.hub is None:
            raise InputError(
                f"benchmark {self.benchmark!r}: needs its questions. Give its file with --path, or its name on the hub with --hub."
            )
        settings: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("path", "hub", "subset", "split", "start", "stop", "limit", "limit_seed")
            if getattr(self, name) is not None
        }
        if self.benchmark.startswith("pubmedqa"):
            task = self.benchmark.removeprefix("pubmedqa").lstrip("_") or "without_abstract"
            return PubMedQABenchmark(**settings, task=task)  # type: ignore[arg-type]
        return _FILES[self.benchmark](**settings)

    def questions(self) -> tuple[list[Question], list[Passage], dict[str, int]]:
        """Questions, the passages that the benchmark carries, and what was put right in its files."""
        benchmark = self.open()
        if isinstance(benchmark, FileBenchmark):
            questions = benchmark.questions()
            notes = dict(benchmark.notes)
            return questions, benchmark.passages(), notes
        questions = benchmark.questions()[self.start : self.stop]
        if not questions:
            raise InputError("no question is left after --start and --stop. Widen the range.")
        return sample(questions, self.limit, self.limit_seed), benchmark.passages(), {}


def evaluate_agent(
    agent: str,
    source: Source,
    plan: Plan,
    *,
    index: str | None,
    model: str,
    limits: Mapping[str, int],
    concurrency: int,
    overwrite: bool,
    out: Path,
) -> dict[Mode, ModeReport]:
    """Ask, grade, print, and write predictions.jsonl, report.json, report.md, report.html and config.json to `out`."""
    console = Console(highlight=False)
    questions, passages, notes = source.questions()
    ready = with_limits(open_agent(agent, index=index, lockstep=True, model=model), limits)
    searching = [mode.value for mode in plan.modes if mode in _SEARCHING]
    if isinstance(ready.retriever, NoRetriever) and searching:
        raise InputError(f"mode {searching[0]}: there is no index to search. Give one with --index, or other --modes.")
    corpus = ready.retriever.passages if isinstance(ready.retriever, HybridRetriever) else []
    if overwrite and out.exists():
        _clear(out)
    settings = {
        "agent": agent,
        "agent_sha256": fingerprint(agent),
        "model": model,
        "index": index,
        "limits": asdict(ready.limits),
        **asdict(source),
        "modes": [mode.value for mode in plan.modes],
        "samples": plan.samples,
        "rotations": plan.rotations,
        "temperature": plan.temperature,
        "seed": plan.seed,
    }
    console.print(
        f"{len(questions)} questions of {source.benchmark}, agent {agent}, modes {', '.join(settings['modes'])}.",
        markup=False,
    )
    for note, count in notes.items():
        console.print(f"  note: {count} {note}", markup=False)
    predictions = _run_aloud(ready, questions, plan, out, settings, corpus or passages, passages, concurrency, console)
    reports = {mode: report_mode([p for p in predictions if p.mode == mode.value]) for mode in plan.modes}
    write_reports(out, settings, notes, reports, questions, predictions)
    for table in tables(reports, questions):
        console.print(shown_table(table))
    console.print(f"\nReport: {out / 'report.html'}  table for a paper: {out / 'report.md'}")
    return reports


def with_limits(agent: Agent, limits: Mapping[str, int]) -> Agent:
    """The agent with other limits."""
    known = asdict(agent.limits)
    wrong = {name: value for name, value in limits.items() if name not in known or value < 1}
    if wrong:
        raise InputError(f"limits: found {wrong}, wanted numbers above 0 for some of {', '.join(known)}.")
    return replace(agent, limits=replace(agent.limits, **limits))


def _run_aloud(
    agent: Agent,
    questions: Sequence[Question],
    plan: Plan,
    out: Path,
    settings: dict[str, Any],
    corpus: Sequence[Passage],
    passages: Sequence[Passage],
    concurrency: int,
    console: Console,
) -> list[Prediction]:
    total = len(plan.modes) * sum(len(plan.jobs(question)) for question in questions)
    columns = (
        TextColumn("{task.description:14s}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[said]}"),
        TimeRemainingColumn(),
    )
    counts: dict[str, tuple[int, int]] = {}
    with Progress(*columns, console=console) as bars:
        task = bars.add_task("asking", total=total, said="")

        def show(prediction: Prediction) -> None:
            right, asked = counts.get(prediction.mode, (0, 0))
            right, asked = right + grade(prediction.rollout).correct, asked + 1
            counts[prediction.mode] = right, asked
            low, high = wilson_interval(right, asked)
            said = f"accuracy {right / asked:.1%} [{low:.1%}, {high:.1%}]"
            bars.update(task, advance=1, description=prediction.mode, said=said)

        evidence = {passage.id: passage for passage in (*corpus, *passages)}
        return run_plan(
            agent,
            questions,
            plan,
            out,
            identity=settings,
            corpus=corpus,
            evidence=evidence,
            concurrency=concurrency,
            on_done=show,
        )


def write_reports(
    out: Path,
    settings: dict[str, Any],
    notes: dict[str, int],
    reports: dict[Mode, ModeReport],
    questions: Sequence[Question],
    predictions: Sequence[Prediction],
) -> None:
    """report.json (the first mode's figures at the top, all under "modes"), report.md, report.html."""
    first = next(iter(reports.values()))
    simple = {
        name: value if isinstance(value, float) else asdict(value) for name, value in baselines(questions).items()
    }
    write_json(
        out / "report.json",
        {
            "settings": settings,
            **first.summary.to_json(),
            "baselines": simple,
            "modes": {mode.value: report.to_json() for mode, report in reports.items()},
            "notes": notes,
        },
    )
    title = f"{settings['benchmark']}: {settings['agent']}"
    (out / "report.md").write_text(markdown(title, reports, questions), encoding="utf-8")
    wrong_first = sorted(predictions, key=lambda prediction: grade(prediction.rollout).correct)
    write_evaluation_html(
        out / "report.html",
        title=title,
        summary=json.dumps(settings),
        tables=tables(reports, questions),
        curves=curves(reports),
        predictions=wrong_first,
    )


def shown_table(table: Table) -> RichTable:
    """A table for the terminal."""
    shown = RichTable(title=table.title, title_justify="left", box=None, padding=(0, 1))
    for number, name in enumerate(table.head):
        shown.add_column(name, justify="right" if number else "left")
    for row in table.rows:
        shown.add_row(*map(Text, row))
    return shown


def fingerprint(agent: str) -> str:
    """A digest of an agent's own files (not of its base model), empty where it is not a folder."""
    folder = Path(agent)
    if not folder.is_dir():
        return ""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    total = sha256()
    for file in files:
        total.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes())
    return total.hexdigest()


def _clear(out: Path) -> None:
    """Remove an earlier evaluation; a folder that is none is left alone."""
    if not any(out.iterdir()):
        return
    if not (out / "config.json").exists():
        raise ConfigError(f"{out}: is not empty and holds no evaluation (no config.json). Give another --out.")
    shutil.rmtree(out)


def compare_runs(a: Path, b: Path, *, mode: str | None, seed: int) -> PairedComparison:
    """Compare two evaluations on the questions that both asked; each with its first mode unless `mode` names one."""
    marks = []
    for folder in (a, b):
        predictions = PredictionLog(folder / "predictions.jsonl").read()
        if not predictions:
            raise InputError(
                f"{folder}: holds no predictions.jsonl. Give the folders of two evaluations (medagent evaluate --out)."
            )
        chosen = mode or predictions[0].mode
        kept = {
            p.rollout.question.id: p for p in predictions if (p.mode, p.rotation, p.rollout.sample) == (chosen, 0, 0)
        }
        if not kept:
            modes = sorted({prediction.mode for prediction in predictions})
            raise InputError(f"{folder}: holds no answers of mode {chosen!r}, only of {', '.join(modes)}.")
        marks.append(kept)
    common = marks[0].keys() & marks[1].keys()
    differing = [name for name in common if _asked(marks[0][name]) != _asked(marks[1][name])]
    if not common or differing:
        what = (
            f"question {differing[0]} has another text or answer in each"
            if differing
            else "they have no question in common"
        )
        raise InputError(f"{a} and {b}: cannot be compared, {what}. Evaluate both on the same file.")
    left_out = len(marks[0]) + len(marks[1]) - 2 * len(common)
    if left_out:
        print(f"note: {left_out} questions that only one of them asked are left out.")
    names = sorted(common)
    return compare_paired(*({name: grade(kept[name].rollout).correct for name in names} for kept in marks), seed=seed)


def _asked(prediction: Prediction) -> tuple[str, tuple[str, ...], str]:
    question = prediction.rollout.question
    return question.text, question.options, question.answer


def comparison_text(result: PairedComparison) -> str:
    """A comparison as two lines for people."""
    verdict = "differ" if result.p_mcnemar < 0.05 else "cannot be told apart"
    return (
        f"A {result.accuracy_a:.1%}, B {result.accuracy_b:.1%}: B - A = {result.difference:+.1%} [{result.ci_low:+.1%}, {result.ci_high:+.1%}] "
        f"(paired bootstrap, 95%), n = {result.n}\n"
        f"Right in A only: {result.only_a}, in B only: {result.only_b}; McNemar's exact p = {result.p_mcnemar:.4f}: at 5% they {verdict}."
    )


def grade_file(path: Path, *, letters: str, out: Path | None) -> dict[str, Any]:
    """Grade raw replies; `out` takes one line a reply."""
    replies = read_replies(path, letters=letters)
    if out is not None:
        write_readings(out, replies)
    return summarize_replies(replies)


def check_contamination(test: Source, train: Source | None, corpus: str | None, *, threshold: float) -> Contamination:
    """Compare a test benchmark with training questions, or with a corpus."""
    if (train is None) == (corpus is None):
        raise InputError("wanted training questions (--train PATH) or a corpus (--corpus NAME), one of them.")
    tests = test.open().questions()
    if train is not None:
        return contamination(tests, question_texts(train.open().questions()), threshold=threshold)
    passages = corpus_passages(corpus or "", max_words=10_000)
    return contamination(tests, ((passage.id, passage.indexed_text) for passage in passages), threshold=threshold)
