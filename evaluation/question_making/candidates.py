"""Questions that passed the checks, before some of them are chosen; kept in a file while they are looked for.

    line 1    what they were made from: an interrupted run goes on only from the same
    then      one candidate per line
    and       after each stretch of passages a mark: how many are done, the counts so far, and what was asked

What follows the last mark belongs to a stretch that was not finished, and is made again.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from medagent.errors import InputError


@dataclass(frozen=True)
class Candidate:
    """A question with its answers, its passage's ids, and what search found for it.

    `gold_ids` are passages with the sentence, the question's own first.
    """

    kind: str
    family: str
    question: str
    answers: tuple[str, ...]
    sentence: str
    title: str
    source: str
    licence: str
    gold_ids: tuple[str, ...]
    hit_ids: tuple[str, ...]

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @staticmethod
    def from_json(row: Mapping[str, Any]) -> Candidate:
        """The inverse of `to_json`."""
        found = ((field.name, row[field.name]) for field in fields(Candidate))
        values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in found}
        return Candidate(**values)


class CandidateFile:
    """The candidates of a run so far, and how many passages they come from.

    `asked` are the questions, as the rules word them, that were searched or given to the writer, kept or not.
    """

    def __init__(self, path: Path, made_from: Mapping[str, Any]) -> None:
        """Goes on with the file where it was made from the same, and begins it otherwise."""
        self.path = path
        self.candidates: list[Candidate] = []
        self.done, self.counts = 0, Counter[str]()
        self.asked: set[str] = set()
        header = json.dumps(made_from, sort_keys=True)
        whole = self._read(header) if path.exists() else 0
        try:
            if not whole:
                path.write_text(header + "\n", encoding="utf-8")
            else:
                os.truncate(path, whole)
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror}). Choose another --out.") from error

    def _read(self, header: str) -> int:
        """Take what is finished, and return its length in bytes; 0 where the file is of something else."""
        raw = self.path.read_bytes()
        lines = raw.split(b"\n")
        if lines[0] != header.encode():
            return 0
        at = whole = len(lines[0]) + 1
        some: list[Candidate] = []
        for line in lines[1:-1]:
            at += len(line) + 1
            row = json.loads(line)
            if "done" not in row:
                some.append(Candidate.from_json(row))
                continue
            self.candidates += some
            self.done, self.counts = row["done"], Counter(row["counts"])
            self.asked.update(row["asked"])
            some, whole = [], at
        return whole

    def add(
        self, candidates: Sequence[Candidate], *, done: int, counts: Mapping[str, int], asked: Sequence[str]
    ) -> None:
        """Append a finished stretch with what was asked in it; `done` passages are then finished."""
        self.candidates += candidates
        self.asked.update(asked)
        self.done = done
        self.counts.update(counts)
        mark = json.dumps({"done": done, "counts": self.counts, "asked": list(asked)}, ensure_ascii=False)
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(f"{each.to_json()}\n" for each in candidates) + mark + "\n")
            file.flush()
            os.fsync(file.fileno())
