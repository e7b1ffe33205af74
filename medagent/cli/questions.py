"""What `medagent questions` does and prints."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console

from medagent.cli.progress import index_bars
from medagent.cli.safe_text import escape
from medagent.errors import InputError
from medagent.evaluation.benchmarks.source import BenchmarkSource
from medagent.evaluation.names import BENCHMARKS
from medagent.evaluation.question_making.making import Making, make_questions
from medagent.evaluation.question_making.output import lines_of, read_ratings
from medagent.evaluation.statistics import Accuracy
from medagent.files import write_whole
from medagent.retrieval.analysis import Analyser
from medagent.retrieval.search import HybridRetriever
from medagent.types import Question

PRINTED = 5  # questions of the sample that are also printed


def make_with_progress(index: str, out: Path, making: Making, without: Sequence[str]) -> None:
    """Make questions with progress, and say what was dropped and why."""
    _check_target(out, sampled=making.sample > 0)
    barred = [question for each in without for question in _benchmark(each)]
    if not (Path(index) / "manifest.json").exists():
        raise InputError(f"{index}: holds no index. Build one with: medagent index build CORPUS --out {index}")
    begun = time.monotonic()
    with closing(HybridRetriever(index)) as retriever, index_bars() as bars:
        made = make_questions(
            retriever,
            Analyser(retriever.manifest.settings.analyser),
            making,
            without=barred,
            progress=lambda stage, done, total: bars(stage, done, total, done),
        )
    print(f"{made.drafts:,} drafts, {len(made.rows):,} kept. Dropped:")
    for reason, number in made.dropped.most_common():
        print(f"  {number:7,}  {reason}")
    if not made.rows:
        raise InputError(
            f"{index}: no question is left. Its texts may lack definitions and abbreviations; the counts above say "
            "what was dropped."
        )
    write_whole(out, lines_of(made.rows))
    if made.sample:
        write_whole(sample_path(out), lines_of(made.sample))
    _print_sample(made.sample)
    kinds = ", ".join(f"{kind} {number:,}" for kind, number in Counter(row["kind"] for row in made.rows).most_common())
    print(f"{out}: {len(made.rows):,} questions ({kinds}) in {time.monotonic() - begun:.0f} s.")
    if made.sample:
        print(
            f"{sample_path(out)}: {len(made.sample)} of them with their passages. Read them, set well_formed and "
            f"answered to true or false, then: medagent questions rate {sample_path(out)}"
        )


def sample_path(out: Path) -> Path:
    """The file of the sample beside an output."""
    return out.with_name(f"{out.stem}.sample.jsonl")


def print_ratings(path: Path) -> None:
    """Print the shares of a labelled sample."""
    ratings = read_ratings(path)
    for name, share in (
        ("well-formed", ratings.well_formed),
        ("answered by the passage", ratings.answered),
        ("both", ratings.both),
    ):
        print(f"{name:24s} {_share(share)}")
    if ratings.unlabelled:
        print(f"{ratings.unlabelled} questions have no labels yet.")


def _share(share: Accuracy) -> str:
    return f"{share.accuracy:6.1%} [{share.ci_low:.1%}, {share.ci_high:.1%}] of {share.n}"


def _check_target(out: Path, *, sampled: bool) -> None:
    if out.is_dir():
        raise InputError(f"--out {out}: is a folder, wanted a file such as questions.jsonl.")
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: its folder does not exist. Make it first, or choose another.")
    sample = sample_path(out)
    if sampled and sample.exists() and (labels := read_ratings(sample).well_formed.n):
        raise InputError(
            f"{sample}: {labels} of its questions are labelled, and a new sample would replace them. Move the file, "
            "choose another --out, or draw no sample: --sample 0."
        )


def _benchmark(name: str) -> list[Question]:
    """The questions of BENCHMARK:PATH, or of a path alone, which is then of the custom format."""
    benchmark, colon, path = name.partition(":")
    if not colon or benchmark not in BENCHMARKS:
        benchmark, path = "jsonl", name
    return BenchmarkSource(benchmark, path=path or None).questions()[0]


def _print_sample(sample: Sequence[dict[str, Any]]) -> None:
    console = Console(highlight=False)
    for row in sample[:PRINTED]:
        answer = row["answer"] if isinstance(row["answer"], str) else " / ".join(row["answer"])
        console.print(f"[bold]{escape(row['question'])}[/bold]", soft_wrap=True)
        for letter, option in zip("ABCDEFGHIJ", row.get("options", ()), strict=False):
            console.print(f"   {letter}) {escape(option)}", soft_wrap=True)
        console.print(f"   {escape(answer)}  [dim]{escape(row['passage_id'])}[/dim]", soft_wrap=True)
