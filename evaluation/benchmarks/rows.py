"""Rows of benchmark files and hub datasets, each with its place, so that every error can name file and line.

What a format allows is corrected and counted in `notes`: a byte order mark, CRLF line ends, HTML entities. Anything
else is an error.
"""

import csv
import html
import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from medagent.errors import InputError

Kind = Literal["jsonl", "json", "csv"]
Notes = Counter[str]
LONGEST_CELL = 2**30  # characters; Python's own limit of 131,072 is said as an error of quotes
_ENTITY = re.compile(r"&(?:#\d{1,6}|#x[0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,30});")


@dataclass(frozen=True)
class Row:
    """One row's fields, and its place in the source."""

    where: str
    data: dict[str, Any]

    @property
    def number(self) -> str:
        """The number of its line or entry."""
        return self.where.rpartition(" ")[2]

    def wrong(self, found: str, wanted: str) -> InputError:
        """The error that names the place, and says what stands there and what was wanted."""
        return InputError(f"{self.where}: found {found}, wanted {wanted}.")


def read_text(path: Path, notes: Notes) -> str:
    """A file's text in UTF-8."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}). Check the path.") from error
    if raw.startswith(b"\xef\xbb\xbf"):
        notes["files with a byte order mark, ignored"] += 1
        raw = raw[3:]
    if b"\r\n" in raw:
        notes["files with CRLF line ends, accepted"] += 1
    try:
        return raw.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}, line {line}: found the byte {raw[error.start]:#x}, wanted UTF-8 text.") from error


def read_rows(path: Path, *, kind: Kind, notes: Notes) -> Iterator[Row]:
    """The rows of a file: JSON lines, one JSON value, or CSV without a header.

    Entries of a JSON object are rows of their own, keyed "id". Rows of a CSV have the field "cells".
    """
    text = read_text(path, notes)
    yield from {"jsonl": _json_lines, "csv": _csv_rows, "json": _json_value}[kind](path, text, notes)


def _csv_rows(path: Path, text: str, notes: Notes) -> Iterator[Row]:
    csv.field_size_limit(LONGEST_CELL)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    line = 1
    try:
        for cells in reader:
            if cells:
                yield Row(f"{path}, line {line}", {"cells": [clean(cell, notes) for cell in cells]})
            line = reader.line_num + 1
    except csv.Error as error:
        told = "a quote is opened there and not closed, or the file is cut off"
        raise InputError(f"{path}, line {line}: {error}; {told}.") from error


def _json_lines(path: Path, text: str, notes: Notes) -> Iterator[Row]:
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            value = json.loads(line, object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            last = number == len(lines) and isinstance(error, json.JSONDecodeError)
            remedy = " The last line has no end, so the file is cut off. Copy it again." * last
            raise InputError(f"{where}: found {line[:60]!r} ({error}), wanted a JSON object.{remedy}") from error
        if not isinstance(value, dict):
            raise InputError(f"{where}: found a {type(value).__name__}, wanted a JSON object.")
        yield Row(where, clean(value, notes))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    counts = Counter(name for name, _ in pairs)
    repeated = [name for name, count in counts.items() if count > 1]
    if repeated:
        raise _RepeatedNameError(repeated[0])
    return dict(pairs)


class _RepeatedNameError(ValueError):
    """A name occurs twice in one object."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the name {name!r} occurs twice in one object")
        self.name = name


def _json_value(path: Path, text: str, notes: Notes) -> Iterator[Row]:
    try:
        value = json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        told = f"{path}, line {error.lineno}: {error.msg} at column {error.colno}"
        raise InputError(f"{told}; wanted one whole JSON value. If the file is cut off, copy it again.") from error
    except _RepeatedNameError as error:
        line = text.count("\n", 0, max(0, text.find(json.dumps(error.name)))) + 1
        raise InputError(f"{path}, line {line}: {error}.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}, line 1: cannot be read as JSON ({error}).") from error
    if isinstance(value, dict) and isinstance(value.get("questions"), list):  # BioASQ
        value = value["questions"]
    if not isinstance(value, dict | list):
        raise InputError(f"{path}, line 1: found a {type(value).__name__}, wanted an object or a list.")
    entries = list(value.items()) if isinstance(value, dict) else [(None, row) for row in value]
    at, line = 0, 1
    for number, (name, row) in enumerate(entries, start=1):
        label = str(name if name is not None else row.get("id", "") if isinstance(row, dict) else "")
        # The search starts at the last one found, or a large file would be read once per row.
        if label and (found := text.find(json.dumps(label), at)) >= 0:
            at, line = found, line + text.count("\n", at, found)
        where = f"{path}, line {line}, entry {number}" + (f" ({label})" if label else "")
        if not isinstance(row, dict):
            raise InputError(f"{where}: found a {type(row).__name__}, wanted an object.")
        yield Row(where, clean({"id": name, **row} if name is not None else row, notes))


def clean(value: Any, notes: Notes) -> Any:
    """The value with HTML entities resolved in its texts."""
    if isinstance(value, str):
        if not _ENTITY.search(value):
            return value
        plain = html.unescape(value)
        if plain != value:
            notes["texts with HTML entities, resolved"] += 1
        return plain
    if isinstance(value, list):
        return [clean(item, notes) for item in value]
    if isinstance(value, dict):
        return {name: clean(item, notes) for name, item in value.items()}
    return value


def hub_rows(name: str, *, subset: str | None, split: str, notes: Notes) -> Iterator[Row]:
    """The rows of a dataset of the hub, or of a folder in a format that `datasets` reads."""
    try:
        import datasets
    except ImportError as error:
        raise InputError(
            f"hub dataset {name!r}: the package 'datasets' is missing. Install it: pip install 'medagent[hub]'."
        ) from error
    try:
        rows = datasets.load_dataset(name, subset, split=split)
    # RuntimeError: a dataset that is a script, which `datasets` refuses.
    except (OSError, ValueError, RuntimeError) as error:
        told = f"hub dataset {name!r} (subset {subset}, split {split}): cannot be loaded ({error})"
        raise InputError(f"{told}. Check the names, and the network or the cache.") from error
    for number, row in enumerate(rows):
        yield Row(f"{name}, {split}, row {number}", clean(dict(row), notes))


def text_field(row: Row, *names: str) -> str:
    """The first of these fields that the row has, as text. It is an error where there is none or it is empty."""
    for name in names:
        value = row.data.get(name)
        if isinstance(value, str | int | float) and not isinstance(value, bool) and str(value).strip():
            return str(value).strip()
    raise row.wrong(f"the fields {sorted(row.data)}", f"a text {' or '.join(map(repr, names))}")
