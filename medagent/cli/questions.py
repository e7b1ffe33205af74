"""What `medagent questions` does and prints."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from medagent.cli.progress import index_bars
from medagent.cli.safe_text import escape
from medagent.errors import InputError
from medagent.evaluation.benchmarks.source import BenchmarkSource
from medagent.evaluation.names import BENCHMARKS
from medagent.evaluation.question_making.checks import Checks
from medagent.evaluation.question_making.making import count_index, find_candidates
from medagent.evaluation.question_making.options import with_options
from medagent.evaluation.question_making.output import lines_of, question_row, read_ratings, sample_rows
from medagent.evaluation.question_making.rules import RuleMaker
from medagent.evaluation.question_making.selection import select
from medagent.evaluation.question_making.statistics import CorpusStatistics
from medagent.evaluation.statistics import Accuracy
from medagent.files import write_whole
from medagent.retrieval.analysis import Analyser
from medagent.retrieval.search import HybridRetriever
from medagent.types import Question

PRINTED = 5  # questions of the sample that are also printed


@dataclass(frozen=True)
class Making:
    """How questions are made; see `medagent questions make`."""

    top_k: int
    per_answer: int
    options: int
    limit: int
    sample: int
    seed: int
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse values out of range, before anything is read."""
        if self.top_k < 1 or self.per_answer < 1 or min(self.limit, self.sample) < 0:
            raise InputError(
                f"questions: found --top_k {self.top_k}, --per_answer {self.per_answer}, --limit {self.limit} and "
                f"--sample {self.sample}, wanted at least 1 for the first two and at least 0 for the others."
            )
        if self.options and not 2 <= self.options <= 10:
            raise InputError(f"--options {self.options}: wanted 0 for open questions, or 2 to 10.")


def make_with_progress(index: str, out: Path, making: Making) -> None:
    """Make questions with progress, and say what was dropped and why."""
    _check_target(out, sampled=making.sample > 0)
    barred = [question for each in making.without for question in _benchmark(each)]
    if not (Path(index) / "manifest.json").exists():
        raise InputError(f"{index}: holds no index. Build one with: medagent index build CORPUS --out {index}")
    begun = time.monotonic()
    with closing(HybridRetriever(index)) as retriever:

        def texts_of(ids: Sequence[str]) -> str:
            passages = [retriever.passage(id_) for id_ in ids]
            return "\n".join(passage.indexed_text for passage in passages if passage is not None)

        statistics = CorpusStatistics(Analyser(retriever.manifest.settings.analyser))
        with index_bars() as bars:

            def show(stage: str, done: int, total: int) -> None:
                bars(stage, done, total, done)

            count_index(retriever, statistics, show)
            maker, checks = RuleMaker(statistics), Checks(statistics)
            found = find_candidates(retriever, maker, checks, top_k=making.top_k, progress=show)
        chosen, dropped = select(
            found.candidates,
            seed=making.seed,
            per_answer=making.per_answer,
            limit=making.limit,
            without=barred,
            analyser=statistics.analyser,
        )
        dropped += found.dropped
        rows = [question_row(each) for each in chosen]
        if making.options:
            choices, without_options = with_options(
                chosen, making.options, statistics=statistics, texts_of=texts_of, seed=making.seed
            )
            dropped += without_options
            rows = [question_row(each) for each in choices]
        _print_counts(found.drafts, dropped, len(rows))
        if not rows:
            raise InputError(
                f"{index}: no question is left. Its texts may lack definitions and abbreviations; the counts above say "
                "what was dropped."
            )
        sample = sample_rows(rows, making.sample, seed=making.seed, text_of=lambda id_: texts_of([id_]))
    write_whole(out, lines_of(rows))
    if sample:
        write_whole(sample_path(out), lines_of(sample))
    _print_sample(sample)
    kinds = ", ".join(f"{kind} {number:,}" for kind, number in Counter(row["kind"] for row in rows).most_common())
    print(f"{out}: {len(rows):,} questions ({kinds}) in {time.monotonic() - begun:.0f} s.")
    if sample:
        print(
            f"{sample_path(out)}: {len(sample)} of them with their passages. Read them, set well_formed and answered "
            f"to true or false, then: medagent questions rate {sample_path(out)}"
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


def _print_counts(drafts: int, dropped: Counter[str], kept: int) -> None:
    print(f"{drafts:,} drafts, {kept:,} kept. Dropped:")
    for reason, number in dropped.most_common():
        print(f"  {number:7,}  {reason}")


def _print_sample(sample: Sequence[dict[str, Any]]) -> None:
    console = Console(highlight=False)
    for row in sample[:PRINTED]:
        answer = row["answer"] if isinstance(row["answer"], str) else " / ".join(row["answer"])
        console.print(f"[bold]{escape(row['question'])}[/bold]", soft_wrap=True)
        for letter, option in zip("ABCDEFGHIJ", row.get("options", ()), strict=False):
            console.print(f"   {letter}) {escape(option)}", soft_wrap=True)
        console.print(f"   {escape(answer)}  [dim]{escape(row['passage_id'])}[/dim]", soft_wrap=True)
