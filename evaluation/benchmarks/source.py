"""A benchmark by name, with its file or hub dataset and the part of it that is asked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import import_module
from inspect import getsource, signature
from pathlib import Path
from typing import Any

from medagent.errors import InputError
from medagent.evaluation.benchmarks import multiple_choice
from medagent.evaluation.benchmarks.base import Benchmark, FileBenchmark, sample
from medagent.evaluation.benchmarks.custom import JsonlBenchmark, OpenQABenchmark, StarterBenchmark
from medagent.evaluation.benchmarks.literature import BioASQBenchmark, PubMedQABenchmark
from medagent.evaluation.names import CopFrom
from medagent.retrieval.passages import Passage
from medagent.starter.world import SPLITS
from medagent.types import Question

KNOWN: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "starter": (StarterBenchmark, {}),
    "medqa": (multiple_choice.MedQABenchmark, {}),
    "medmcqa": (multiple_choice.MedMCQABenchmark, {}),
    "pubmedqa": (PubMedQABenchmark, {}),
    "pubmedqa_with_abstract": (PubMedQABenchmark, {"task": "with_abstract"}),
    "pubmedqa_yes_no": (PubMedQABenchmark, {"task": "yes_no"}),
    "mmlu": (multiple_choice.MMLUBenchmark, {}),
    "bioasq": (BioASQBenchmark, {}),
    "bioasq_factoid": (BioASQBenchmark, {"types": ("factoid",)}),
    "bioasq_list": (BioASQBenchmark, {"types": ("list",)}),
    "bioasq_yes_no": (BioASQBenchmark, {"types": ("yes_no",)}),
    "medxpertqa": (multiple_choice.MedXpertQABenchmark, {}),
    "open": (OpenQABenchmark, {}),
    "jsonl": (JsonlBenchmark, {}),
}


@dataclass(frozen=True)
class BenchmarkSource:
    """The source of the questions: a benchmark, its file or its name on the hub, and the range to use.

    `benchmark` is a known name or a class path. `benchmark_args` are for a class path alone. `cop_from` says whether
    MedMCQA's `cop` counts from 0 or 1, instead of going by the source.
    """

    benchmark: str = "starter"
    path: str | None = None
    hub: str | None = None
    subset: str | None = None
    split: str | None = None
    start: int = 0
    stop: int | None = None
    limit: int | None = None
    limit_seed: int = 0
    benchmark_args: Mapping[str, Any] = field(default_factory=dict)
    cop_from: CopFrom | None = None

    def open(self) -> Benchmark:
        """The benchmark."""
        if self.start < 0 or (self.stop is not None and self.stop <= self.start):
            raise InputError(f"--start {self.start} and --stop {self.stop}: wanted a range of the file's order from 0.")
        given = {name: getattr(self, name) for name in ("path", "hub", "subset", "split", "cop_from")}
        arguments = {name: value for name, value in given.items() if value is not None}
        if self.cop_from and self.benchmark != "medmcqa":
            raise InputError(f"--cop_from {self.cop_from}: found benchmark {self.benchmark!r}, wanted medmcqa.")
        if self.benchmark in KNOWN:
            self._check_known()
            found, fixed = KNOWN[self.benchmark]
        else:
            found, fixed = benchmark_class(self.benchmark), dict(self.benchmark_args)
        if issubclass(found, FileBenchmark):
            arguments |= {"start": self.start, "stop": self.stop, "limit": self.limit, "limit_seed": self.limit_seed}
        arguments |= fixed
        wanted = signature(found)
        try:
            wanted.bind(**arguments)
        except TypeError as error:
            raise InputError(
                f"benchmark {self.benchmark!r}: found the arguments {arguments} ({error}), wanted those of "
                f"{found.__name__}{wanted}. Give them with --benchmark_args '{{\"name\": value}}'."
            ) from error
        made: Benchmark = found(**arguments)
        return made

    def _check_known(self) -> None:
        """Refuse arguments that the packaged benchmark does not take."""
        if self.benchmark_args:
            found = f"--benchmark_args {dict(self.benchmark_args)}, wanted none. They are for a class of your own"
            raise InputError(f"benchmark {self.benchmark!r}: found {found}.")
        if self.benchmark == "starter":
            if self.path or self.hub:
                found = f"{self.path or self.hub!r}. Name the file's benchmark: --benchmark jsonl, medqa, ..."
                raise InputError(f"benchmark 'starter': is packaged and takes neither --path nor --hub, found {found}")
            if self.split and self.split not in SPLITS:
                raise InputError(f"benchmark 'starter': found split {self.split!r}, wanted one of {', '.join(SPLITS)}.")
        elif self.path is None and self.hub is None:
            remedy = "Give its file with --path, or its name on the hub with --hub"
            raise InputError(f"benchmark {self.benchmark!r}: needs its questions. {remedy}.")

    def questions(self, opened: Benchmark | None = None) -> tuple[list[Question], list[Passage], dict[str, int]]:
        """Questions, the passages that the benchmark carries, and the corrections in its files, counted."""
        benchmark = opened or self.open()
        if isinstance(benchmark, FileBenchmark):
            questions = benchmark.questions()
            notes = dict(benchmark.notes)
            return questions, benchmark.passages(), notes
        questions = benchmark.questions()[self.start : self.stop]
        if not questions:
            raise InputError("no question is left after --start and --stop. Widen the range.")
        passages = benchmark.passages() if isinstance(benchmark, StarterBenchmark) else []
        return sample(questions, self.limit, self.limit_seed), passages, {}


def benchmark_class(path: str) -> type[Any]:
    """The class of a benchmark by its path, such as "my_task.MyBenchmark". Raises `InputError` where there is none."""
    module, _, name = path.rpartition(".")
    remedy = f"Give one of {', '.join(KNOWN)}, or a class that Python finds from here, such as my_task.MyBenchmark."
    try:
        found = vars(import_module(module))[name]
    except Exception as error:  # a user's module may raise anything when it is imported
        raise InputError(
            f"benchmark {path!r}: cannot be imported ({error!r}), wanted a known name or a class path. {remedy}"
        ) from error
    if not (isinstance(found, type) and any(callable(vars(base).get("questions")) for base in found.__mro__)):
        wanted = "a class with the method questions() -> list[Question]"
        raise InputError(f"benchmark {path!r}: found {found!r}, wanted {wanted}. {remedy}")
    return found


def benchmark_digest(path: str) -> str:
    """A digest of a class's source; empty for a known name."""
    return "" if path in KNOWN else sha256(getsource(benchmark_class(path)).encode()).hexdigest()


def source_named(benchmark: str | Path | BenchmarkSource) -> BenchmarkSource:
    """The source of a benchmark: a packaged name, "NAME:FILE", a class's path, or a file of your own (JSON lines)."""
    if isinstance(benchmark, BenchmarkSource):
        return benchmark
    if not isinstance(benchmark, str | Path):
        wanted = "a name, a file of questions or a BenchmarkSource. Write your questions to a .jsonl file"
        raise InputError(f"benchmark: found a {type(benchmark).__name__}, wanted {wanted}.")
    name, _, path = str(benchmark).partition(":")
    if path and name in KNOWN:
        return BenchmarkSource(name, path=path)
    is_file = isinstance(benchmark, Path) or benchmark.endswith(".jsonl")
    return BenchmarkSource("jsonl", path=str(benchmark)) if is_file else BenchmarkSource(str(benchmark))
