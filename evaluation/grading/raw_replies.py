"""Grades a file of raw replies (`medagent grade`): what a model wrote, without the rollout around it."""

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medagent.errors import InputError
from medagent.evaluation.benchmarks.base import by_letter
from medagent.evaluation.benchmarks.rows import Row, read_rows, text_field
from medagent.evaluation.grading.option_named import Outcome, Reading
from medagent.evaluation.grading.replies import read_reply, read_selection
from medagent.files import write_whole
from medagent.types import LETTERS


@dataclass(frozen=True)
class Reply:
    """The reading of a raw reply, and its gold letter."""

    id: str
    gold: str
    reading: Reading


def read_replies(path: Path, *, letters: str, last_line_asked: bool = False) -> list[Reply]:
    """Read JSON lines with `id`, `gold` (a letter, or several as "A, C"), `raw`, and optionally `options`.

    `options` is a list or an object from letter to text. `letters` name an option where a row has no `options`.
    `last_line_asked`: see `read_reply`. Raises `InputError` with file and line.
    """
    if not letters or letters != LETTERS[: len(letters)]:
        raise InputError(f"letters {letters!r}: wanted the first letters of {LETTERS}, such as ABCD.")
    replies = [_reply(row, letters, last_line_asked) for row in read_rows(path, kind="jsonl", notes=Counter())]
    repeated = [name for name, count in Counter(reply.id for reply in replies).items() if count > 1]
    if repeated:
        raise InputError(f"{path}: the id {repeated[0]!r} occurs twice. Give each reply its own.")
    if not replies:
        raise InputError(f"{path}: holds no reply, wanted JSON lines with 'id', 'gold' and 'raw'.")
    return replies


def _reply(row: Row, letters: str, last_line_asked: bool) -> Reply:
    found = by_letter(row, row.data.get("options") or [])
    if "".join(sorted(found)) != LETTERS[: len(found)]:
        raise row.wrong(f"options named {', '.join(sorted(found))}", f"the first letters of {LETTERS}, none left out")
    options = [str(found[letter]) for letter in sorted(found)]
    known = LETTERS[: len(options)] if options else letters
    given = row.data.get("gold")
    right = [str(each) for each in given] if isinstance(given, list) else re.split(r"\s*,\s*", text_field(row, "gold"))
    if not right or not set(right) <= set(known):
        wanted = f"one of {known}, or several as 'A, C'. Other letters: --letters"
        raise row.wrong(f"the gold answer {given!r}", wanted)
    gold = ", ".join(sorted(set(right)))
    raw = row.data.get("raw")
    if not isinstance(raw, str):
        raise row.wrong("no text 'raw'", "what the model replied (it may be empty)")
    if len(right) > 1:
        reading = read_selection(raw, known, options)
    else:
        reading = read_reply(raw, known, options, last_line_asked=last_line_asked)
    return Reply(text_field(row, "id"), gold, reading)


def summarize_replies(replies: list[Reply]) -> dict[str, Any]:
    """Counts and accuracies. `multiple` and `truncated` are parts of `unparsed`, `refused` of `abstained`."""
    outcomes = Counter(reply.reading.outcome for reply in replies)
    n = len(replies)
    return {
        "n": n,
        "strict_accuracy": sum(reply.reading.strict == reply.gold for reply in replies) / n,
        "lenient_accuracy": sum(reply.reading.lenient == reply.gold for reply in replies) / n,
        "parsed": outcomes[Outcome.PARSED],
        "unparsed": outcomes[Outcome.UNPARSED] + outcomes[Outcome.MULTIPLE] + outcomes[Outcome.TRUNCATED],
        "abstained": outcomes[Outcome.ABSTAINED],
        "multiple": outcomes[Outcome.MULTIPLE],
        "truncated": outcomes[Outcome.TRUNCATED],
        "refused": sum(reply.reading.refused for reply in replies),
    }


def write_readings(path: Path, replies: list[Reply]) -> None:
    """Write one JSON line per reply: id, gold, what was read, and the outcome."""
    path.parent.mkdir(parents=True, exist_ok=True)
    read = [{name: getattr(reply.reading, name) for name in ("strict", "lenient", "outcome")} for reply in replies]
    rows = ({"id": reply.id, "gold": reply.gold, **own} for reply, own in zip(replies, read, strict=True))
    write_whole(path, "".join(json.dumps(row) + "\n" for row in rows))
