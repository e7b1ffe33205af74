"""What `medagent view` reads: a run's curves and its rollouts by iteration, or an evaluation's answers by mode."""

import csv
import gzip
import json
import math
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from medagent.errors import InputError
from medagent.evaluation.answer_folder import JsonLog
from medagent.files import write_whole

ROLLOUTS, PREDICTIONS, EVENTS, REPORT = "rollouts", "predictions.jsonl", "collapse.json", "report.json"
Row = dict[str, Any]


def summary_of(row: Mapping[str, Any]) -> Row:
    """A rollout's figures for the list: without texts, passages and tokens."""
    turns = row["turns"]
    numbers = [turn["numbers"] for turn in turns if turn.get("numbers")]
    counted = [
        clipped for each in numbers for clipped, counts in zip(each["clipped"], each["counts"], strict=True) if counts
    ]
    return {
        **{name: row[name] for name in ("question_id", "sample", "verdict", "stop_reason")},
        # An evaluation's answers earn nothing.
        "reward": None if "mode" in row else row["reward"] + sum(turn["reward"] for turn in turns),
        "searches": sum(turn["query"] is not None for turn in turns),
        "passages": len(shown := [hit["id"] for turn in turns for hit in turn["passages"]]),
        "gold": bool(row["gold_passage_ids"]) and {*row["gold_passage_ids"]} <= {*shown},
        "tokens": sum(turn["tokens"] for turn in turns),
        "clipped": sum(map(bool, counted)) / len(counted) if counted else None,
    }


@contextmanager
def reads(place: Path | str) -> Iterator[None]:
    """Raise InputError that names a damaged file, or a line of it."""
    try:
        yield
    except (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError) as error:
        raise InputError(f"{place}: found damage ({error!r}), wanted it as the run wrote it. Delete it.") from error


def write_summaries(place: Path, rows: Sequence[Row]) -> None:
    """Write what the list shows of an iteration, beside its rollouts at `place`."""
    write_whole(summary_path(place), json.dumps(_summaries(rows), ensure_ascii=False))


def _summaries(rows: Sequence[Row]) -> Row:
    questions = {row["question_id"]: row["question"] for row in rows}
    return {"rollouts": list(map(summary_of, rows)), "questions": questions}


def summary_path(place: Path) -> Path:
    """Where the summary of the rollouts at `place` is. It is written last, so that none is shown before."""
    return place.with_name(place.name.removesuffix(".jsonl.gz") + ".summary.json")


class RecordedRun:
    """A folder of `medagent train`, `sft`, `demo` or `evaluate`. What is half written is not shown.

    Raises:
        InputError: the folder holds neither rollouts nor answers, a report or metrics; later, a file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._answers = folder, folder / PREDICTIONS
        self._read: tuple[int, dict[str, list[Row]]] = 0, {}
        if not any(any(folder.glob(name)) for name in (PREDICTIONS, REPORT, ROLLOUTS, "logs/version_*")):
            found = "no such folder" if not folder.is_dir() else "neither rollouts, metrics nor predictions.jsonl in it"
            raise InputError(
                f"run {folder}: found {found}, wanted the folder of medagent train, sft or evaluate: the value of "
                "--trainer.default_root_dir or --out."
            )

    def overview(self, known: Sequence[str] = ()) -> Row:
        """Report, curves, events, and the summaries of parts not `known` by name; a damaged one is warned of."""
        return {
            "name": str(self.folder),
            "metrics": [{k: v for k, v in row.items() if math.isfinite(v)} for row in read_metrics(self.folder)],
            "report": self._json(REPORT) or {},
            "events": self._json(EVENTS) or [],
            "parts": {name: told for name in self.parts() if name not in known and (told := self._part(name))},
        }

    def _json(self, name: str) -> Any:
        path = self.folder / name
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def parts(self) -> list[str]:
        """The names of the iterations, as numbers from 0, or of an evaluation's modes."""
        if self._answers.exists():
            return list(self._by_mode())
        places = sorted((self.folder / ROLLOUTS).glob("iteration_*.jsonl.gz"))
        numbers = [place.name[10:-9] for place in places if summary_path(place).exists()]
        return [str(int(number)) for number in numbers if number.isdecimal()]

    def lines(self, name: str) -> bytes:
        """The rollouts of a part as compressed JSON lines. KeyError where there is none of this name."""
        if self._answers.exists():
            text = "".join(json.dumps(row) + "\n" for row in self._by_mode()[name])
            return gzip.compress(text.encode(), compresslevel=6, mtime=0)
        if name not in self.parts():
            raise KeyError(name)
        with reads(self._place(name)):
            packed = self._place(name).read_bytes()
            if not gzip.decompress(packed):
                raise EOFError("it is empty")
        return packed

    def rollout(self, part: str, question_id: str, sample: int) -> Row:
        """One rollout of a part, whole."""
        rows = map(json.loads, gzip.decompress(self.lines(part)).splitlines())
        return next(row for row in rows if (row["question_id"], row["sample"]) == (question_id, sample))

    def _place(self, name: str) -> Path:
        return self.folder / ROLLOUTS / f"iteration_{int(name):04d}.jsonl.gz"

    def _part(self, name: str) -> Any:
        if self._answers.exists():
            return _summaries(self._by_mode()[name])
        place = summary_path(self._place(name))
        try:
            with reads(place):
                told = json.loads(place.read_text(encoding="utf-8"))
                return {"rollouts": told["rollouts"], "questions": told["questions"]}
        except InputError as error:
            warnings.warn(f"{error} Until then iteration {name} is not shown.", stacklevel=1)
            return None

    def _by_mode(self) -> dict[str, list[Row]]:
        """The answers of an evaluation. A line that is still being written is left out."""
        size = self._answers.stat().st_size
        if size != self._read[0]:
            found: dict[str, list[Row]] = {}
            with reads(self._answers):
                lines = JsonLog(self._answers).lines()
            for number, line in enumerate(lines, start=1):
                with reads(f"{self._answers}, line {number}"):
                    row = json.loads(line)
                    rotated = f" rotation {row['rotation']}" if row["rotation"] else ""
                    found.setdefault(row["mode"] + rotated, []).append(row)
            self._read = size, found
        return self._read[1]


def read_metrics(run: Path) -> list[dict[str, float]]:
    """One row per iteration: means over its steps in all CSV logs, of which later ones count."""
    by_step: dict[tuple[int, int], dict[str, float]] = {}
    logs = sorted(run.glob("logs/version_*/metrics.csv"), key=lambda path: int(path.parent.name.split("_")[1]))
    for log in logs:
        with log.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if None in row.values():  # a kill tore it
                    continue
                values = {name: float(value) for name, value in row.items() if value}
                key = (int(values["epoch"]), int(values["step"]))
                if log is not logs[0]:
                    for old in [k for k in by_step if k[0] > key[0]]:
                        del by_step[old]
                by_step.setdefault(key, {}).update(values)
    rows: dict[int, dict[str, list[float]]] = {}
    for (epoch, _), values in sorted(by_step.items()):
        for name, value in values.items():
            rows.setdefault(epoch, {}).setdefault(name, []).append(value)
    return [{name: sum(v) / len(v) for name, v in rows[epoch].items()} for epoch in sorted(rows)]
