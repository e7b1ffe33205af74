"""A benchmark by name, with its file or hub dataset and the part of it that is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
from evaluation.names import BenchmarkName
from medagent.errors import InputError
from medagent.starter.world import SPLITS
from medagent.types import Question
from retrieval.passages import Passage

_FILES: dict[str, type[FileBenchmark]] = {
    "medqa": MedQABenchmark,
    "medmcqa": MedMCQABenchmark,
    "mmlu": MMLUBenchmark,
    "bioasq": BioASQBenchmark,
    "medxpertqa": MedXpertQABenchmark,
    "open": OpenQABenchmark,
    "jsonl": JsonlBenchmark,
}


@dataclass(frozen=True)
class BenchmarkSource:
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
        if self.start < 0 or (self.stop is not None and self.stop <= self.start):
            raise InputError(
                f"--start {self.start} and --stop {self.stop}: wanted a range of the file's order, from 0."
            )
        if self.benchmark == "starter" and (self.path or self.hub):
            raise InputError(
                "benchmark 'starter': is packaged and takes neither --path nor --hub, found "
                f"{self.path or self.hub!r}. Name the file's benchmark: --benchmark jsonl, medqa, ..."
            )
        if self.benchmark == "starter":
            split = self.split or "test"
            if split not in SPLITS:
                raise InputError(f"benchmark 'starter': found split {split!r}, wanted one of {', '.join(SPLITS)}.")
            return StarterBenchmark(split)
        if self.path is None and self.hub is None:
            raise InputError(
                f"benchmark {self.benchmark!r}: needs its questions. Give its file with --path, or its name on the "
                "hub with --hub."
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
