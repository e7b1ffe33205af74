"""A benchmark by its class path."""

from __future__ import annotations

import pytest

from medagent.errors import InputError
from medagent.evaluation.benchmarks.source import BenchmarkSource, benchmark_digest
from medagent.types import Question


class Mine:
    """Three questions."""

    def __init__(self, split: str = "train", size: int = 3) -> None:
        self.split, self.size = split, size

    def questions(self) -> list[Question]:
        return [Question(f"{self.split}:{number}", "What?", answer="x") for number in range(self.size)]


NAME = f"{__name__}.Mine"


def test_a_class_is_made_with_the_options_and_its_own_arguments() -> None:
    questions, passages, notes = BenchmarkSource(NAME, split="test", start=1, benchmark_args={"size": 4}).questions()
    assert ([each.id for each in questions], passages, notes) == (["test:1", "test:2", "test:3"], [], {})
    assert len(benchmark_digest(NAME)) == 64
    assert benchmark_digest("medqa") == ""


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (BenchmarkSource("no_such.Thing"), "cannot be imported .* wanted a known name"),
        (BenchmarkSource("medagent.types.Question"), "wanted a class with the method questions"),
        (BenchmarkSource(NAME, path="x.jsonl"), "found the arguments .* wanted those of Mine"),
        (BenchmarkSource("starter", benchmark_args={"size": 1}), "wanted none"),
    ],
)
def test_errors_say_what_was_wanted(source: BenchmarkSource, said: str) -> None:
    with pytest.raises(InputError, match=said):
        source.questions()
