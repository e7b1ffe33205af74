"""Rows with a text: JSON lines, CSV and TSV with a header, and hub datasets.

MedRAG's layout (id, title, content) is one of them.
"""

from __future__ import annotations

import codecs
import csv
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from retrieval.chunking import Document, Section
from retrieval.passages import id_of_row, passage_from_row
from retrieval.readers.base import UNREADABLE, Item, OpenFile, Skipped

csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # a column may hold a whole article


def read_json_lines(file: OpenFile) -> Iterator[Item]:
    """One document per line."""
    number = 0
    try:
        for number, line in enumerate(file.stream, start=1):
            if not line.strip():
                continue
            where = f"{file.name}, line {number}"
            try:
                row = json.loads(line.decode("utf-8-sig"))
            except (ValueError, RecursionError) as error:  # JSON's and Unicode's errors are both ValueErrors
                yield Skipped(where, f"no JSON object in UTF-8 ({error})")
                continue
            yield document_of_row(row, where, source=file.name)
    except UNREADABLE as error:
        yield Skipped(file.name, f"cannot be read after line {number:,} ({error}); what came before is used")


def read_table(file: OpenFile) -> Iterator[Item]:
    """One document per row of CSV or TSV (by the file's suffix); the header names the columns."""
    delimiter = "\t" if ".tsv" in [suffix.lower() for suffix in file.path.suffixes] else ","
    reader = csv.DictReader(codecs.iterdecode(file.stream, "utf-8-sig"), delimiter=delimiter)
    try:
        if not {"text", "content", "contents", "body"} & {name.strip().lower() for name in reader.fieldnames or ()}:
            yield Skipped(
                file.name,
                f"its header is {reader.fieldnames}; wanted a column 'text' or 'content' (and id, title, source, year)",
            )
            return
        for row in reader:
            where = f"{file.name}, line {reader.line_num}"
            if None in row:
                yield Skipped(
                    where, f"has more cells than the header; is a {'tab' if delimiter != ',' else 'comma'} unquoted?"
                )
                continue
            yield document_of_row(
                {(name or "").strip().lower(): cell for name, cell in row.items()}, where, source=file.name
            )
    except (csv.Error, UnicodeDecodeError, *UNREADABLE) as error:
        yield Skipped(file.name, f"cannot be read after line {reader.line_num:,} ({error}); what came before is used")


def document_of_row(row: Any, where: str, *, source: str) -> Item:
    """A document of a row's fields; `source` stands in for a row that names none."""
    try:
        passage = passage_from_row(dict(row) if isinstance(row, Mapping) else row)
    except ValueError as error:
        return Skipped(where, str(error))
    return Document(
        passage.title,
        (Section(passage.section, passage.text),),
        passage.source or source,
        id=id_of_row(row),
        year=passage.year,
        licence=passage.licence,
        group=passage.document,
    )
