"""What `medagent evaluate` and `medagent index build` do, with progress and reports for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from evaluation.benchmarks import Benchmark, JsonlBenchmark, PubMedQABenchmark, StarterBenchmark, pubmedqa_passages
from evaluation.grading import grade
from evaluation.metrics import Summary, summarize
from evaluation.records import write_records
from evaluation.report import Table, write_html, write_json
from evaluation.run import run_benchmark
from medagent.asking import open_agent
from medagent.errors import InputError
from medagent.records import Question
from medagent.starter.world import Split, World
from retrieval.corpora import read_corpus
from retrieval.embedders import embedder_from_identity
from retrieval.index import build_index
from retrieval.passages import Passage

BenchmarkName = Literal["starter", "pubmedqa", "jsonl"]


def open_benchmark(name: BenchmarkName, *, path: str | None, split: Split) -> Benchmark:
    """A benchmark by name."""
    if name == "starter":
        return StarterBenchmark(split)
    if path is None:
        raise InputError(f"benchmark {name!r}: needs its file. Give it with --path.")
    return PubMedQABenchmark(path) if name == "pubmedqa" else JsonlBenchmark(path)


def evaluate_agent(
    agent: str,
    questions: Sequence[Question],
    *,
    name: str,
    index: str | None,
    temperature: float,
    force_search: bool,
    seed: int,
    out: Path,
) -> Summary:
    """Roll out, grade, print and write report.json, report.html, rollouts.jsonl and config.json to `out`."""
    if not questions:
        raise InputError("no question is left after --start and --stop. Widen the range.")
    console = Console(highlight=False)
    ready = open_agent(agent, index=index, lockstep=True)
    console.print(f"{len(questions)} questions of {name}, agent {agent} ...")
    rollouts = run_benchmark(ready, questions, temperature=temperature, seed=seed, force_search=force_search)
    summary = summarize(rollouts)
    settings = {
        "agent": agent,
        "benchmark": name,
        "questions": len(questions),
        "index": index,
        "temperature": temperature,
        "force_search": force_search,
        "seed": seed,
    }
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "config.json", settings)
    write_json(out / "report.json", {"settings": settings, **summary.to_json()})
    write_records(out / "rollouts.jsonl", rollouts)
    rows = summary_rows(summary)
    write_html(
        out / "report.html",
        title=f"{name}: {agent}",
        summary=json.dumps(settings),
        tables=[Table("Result", ("", ""), rows)],
        charts=[],
        rollouts={
            "Answered rightly": [r for r in rollouts if grade(r).correct][:5],
            "Answered wrongly": [r for r in rollouts if not grade(r).correct][:5],
        },
    )
    for label, value in rows:
        console.print(f"  {label:42s} {value}", markup=False)
    console.print(f"Report: {out / 'report.html'}")
    return summary


def summary_rows(summary: Summary) -> list[tuple[str, str]]:
    """A summary as rows of text."""
    rows = [("accuracy [95% interval], n", _interval(summary))]
    if len(summary.by_type) > 1:
        rows += [(f"  {kind}", f"{part.accuracy:.1%}, n = {part.n}") for kind, part in summary.by_type.items()]
    rows += [
        ("unparsed answers", str(summary.unparsed)),
        ("stopped without an answer", str(summary.no_answer)),
        ("searches a question", f"{summary.searches_per_question:.2f}"),
        ("questions with at least one search", f"{summary.answered_with_search:.1%}"),
        ("answers that cite a passage shown", f"{summary.cited_share:.1%}"),
    ]
    if summary.hit_rate is not None:
        rows.append(("all gold passages retrieved", f"{summary.hit_rate:.1%}"))
    rows.append(("stop reasons", ", ".join(f"{reason} {n}" for reason, n in sorted(summary.stop_reasons.items()))))
    return rows


def _interval(summary: Summary) -> str:
    part = summary.overall
    return f"{part.accuracy:.1%} [{part.ci_low:.1%}, {part.ci_high:.1%}], n = {part.n}"


def corpus_passages(corpus: str, *, max_words: int) -> list[Passage]:
    """The passages of a corpus by name: starter, starter:train, pubmedqa:FILE, or a path."""
    if corpus == "starter":
        return World.load().passages()
    if corpus == "starter:train":
        return World.load().passages(("train", "validation"))
    if corpus.startswith("pubmedqa:"):
        return pubmedqa_passages(Path(corpus.removeprefix("pubmedqa:")))
    return list(read_corpus(Path(corpus), max_words=max_words))


def build_index_aloud(corpus: str, out: Path, *, embedder: str, max_words: int, overwrite: bool) -> None:
    """Build an index with progress bars."""
    columns = (TextColumn("{task.description:10s}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as bars:
        tasks = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done)

        passages = corpus_passages(corpus, max_words=max_words)
        manifest = build_index(out, passages, embedder_from_identity(embedder), overwrite=overwrite, progress=show)
    print(f"Index {out}: {manifest.num_passages:,} passages, embedder {manifest.embedder}.")
