"""The interface of a benchmark, and the common part of those that read a file or the hub.

That part checks unique ids, takes ranges and seeded samples, and counts corrections as notes.
"""

import random
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from medagent.errors import ConfigError, InputError
from medagent.evaluation.benchmarks.rows import Kind, Notes, Row, hub_rows, read_rows
from medagent.retrieval.passages import Passage
from medagent.types import LETTERS, Question

_PATTERN = frozenset("*?[")


class Benchmark(Protocol):
    """Anything that yields questions."""

    def questions(self) -> list[Question]:
        """All questions, in a fixed order."""
        ...


@dataclass(eq=False)
class FileBenchmark:
    """Questions from a published file (or a folder of them), or from the same rows on the hub.

    A subclass names its `kind` of file and turns one row into one question, or into None where it is none of this task.
    `start` to `stop` of the source's order are used, so that training and evaluation can take disjoint parts. Then
    `limit` of these are drawn by `limit_seed`.
    """

    kind: ClassVar[Kind] = "jsonl"
    suffix: ClassVar[str] = ".jsonl"
    folders: ClassVar[bool] = False  # whether a folder of files, or a pattern of their names, is one benchmark
    repeats: ClassVar[bool] = False  # whether files may hold one question again, which is then taken once

    path: str | None = None
    hub: str | None = None
    subset: str | None = None
    split: str = "test"
    start: int = 0
    stop: int | None = None
    limit: int | None = None
    limit_seed: int = 0

    def __post_init__(self) -> None:
        if (self.path is None) == (self.hub is None):
            found = f"path {self.path!r} and hub {self.hub!r}"
            raise ConfigError(f"{type(self).__name__}: found {found}, wanted exactly one of them.")
        self.notes: Notes = Counter()

    def questions(self) -> list[Question]:
        """See `Benchmark.questions`. `notes` then counts what was corrected.

        Raises `InputError`, which names file and line.
        """
        self.notes = Counter()
        seen: dict[str, tuple[str, Question]] = {}
        for row in self.rows():
            if (question := self.question(row)) is None:
                continue
            where, first = seen.setdefault(question.id, (row.where, question))
            if self.repeats and first is not question and first == question:
                self.notes["questions that occur again, taken once"] += 1
            elif first is not question:
                told = f"the id {question.id!r} occurs twice, first in {where}"
                raise InputError(f"{row.where}: {told}. Give each question its own.")
        source, questions = self.path or self.hub, [question for _, question in seen.values()]
        if not questions:
            raise InputError(f"{source}: holds no question of this benchmark.")
        asked = Counter((wording(q.text), *sorted(map(wording, q.options))) for q in questions)
        if again := sum(count - 1 for count in asked.values()):
            self.notes["questions with the words and options of an earlier one, kept"] = again
        kept = questions[self.start : self.stop]
        if not kept:
            wanted = f"the range {self.start} to {self.stop}"
            raise ConfigError(f"{source}: no question in {wanted}; it has {len(questions)}.")
        return sample(kept, self.limit, self.limit_seed)

    def rows(self) -> Iterator[Row]:
        """The rows of the source."""
        if self.hub is not None:
            yield from hub_rows(self.hub, subset=self.subset, split=self.split, notes=self.notes)
            return
        for file in self.files():
            yield from read_rows(file, kind=self.kind, notes=self.notes)

    def files(self) -> list[Path]:
        """The files behind `path`."""
        path = Path(self.path or "")
        if self.folders and not path.exists() and _PATTERN.intersection(path.name):
            files, lacks = sorted(path.parent.glob(path.name)), "no file has a name of this pattern"
        elif not path.is_dir():
            return [path]
        elif self.folders:
            files, lacks = sorted(path.glob(f"*{self.suffix}")), f"a folder without a *{self.suffix} file"
        else:
            why = "so that no training questions are asked among the others"
            raise InputError(f"{path}: is a folder, wanted one file of this benchmark, {why}.")
        if not files:
            raise InputError(f"{path}: {lacks}. Check the path.")
        return files

    def question(self, row: Row) -> Question | None:
        """The question of a row, None for a row that belongs to another task."""
        raise NotImplementedError

    def passages(self) -> list[Passage]:
        """The passages with the evidence, where the benchmark carries them."""
        return []


def wording(text: str) -> str:
    """What of a text makes it another question: not its case, spaces, width of characters or final punctuation."""
    return re.sub(r"[^\w+%-]+$", "", " ".join(unicodedata.normalize("NFKC", text).casefold().split()))


def sample(questions: list[Question], limit: int | None, seed: int) -> list[Question]:
    """A seeded sample of `limit` questions, in their order."""
    if limit is None or limit >= len(questions):
        return questions
    if limit < 1:
        raise ConfigError(f"limit {limit}: wanted 1 or more.")
    return [questions[number] for number in sorted(random.Random(seed).sample(range(len(questions)), limit))]


def by_letter(row: Row, options: object) -> dict[str, object]:
    """Options as an object from letter to text; a list's are lettered in order. At most ten have a letter."""
    if not isinstance(options, list | dict):
        raise row.wrong(f"options {options!r}", "a list or an object from letter to text")
    if len(options) > len(LETTERS):
        raise row.wrong(f"{len(options)} options", f"at most {len(LETTERS)}")
    return options if isinstance(options, dict) else dict(zip(LETTERS, options, strict=False))


def choices(row: Row, options: Mapping[str, object], letter: str, notes: Notes) -> tuple[tuple[str, ...], str]:
    """Checked options (letters from A without a gap, no empty gold option) and the gold letter."""
    letters = [name for name, text in by_letter(row, dict(options)).items() if text is not None]  # the hub pads
    if sorted(letters) != list(LETTERS[: len(letters)]) or len(letters) < 2:
        raise row.wrong(f"options {letters}", "two or more, with letters from A without a gap")
    if letter not in letters:
        raise row.wrong(f"the answer {letter!r}", f"one of {', '.join(sorted(letters))}")
    texts = tuple(str(options[name]).strip() for name in sorted(letters))
    if not texts[LETTERS.index(letter)] or sum(map(bool, texts)) < 2:
        raise row.wrong(f"the options {texts}", f"a text for the right one ({letter}) and for at least one other")
    same = Counter(filter(None, (text.casefold() for text in texts)))
    if same[texts[LETTERS.index(letter)].casefold()] > 1:
        notes["questions with the right option twice, where one of its letters counts as wrong"] += 1
    elif len(same) < sum(same.values()):
        notes["questions with a wrong option twice, kept"] += 1
    if not all(texts):
        notes["questions with an empty wrong option, kept"] += 1
    return texts, letter
