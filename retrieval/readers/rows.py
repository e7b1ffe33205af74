"""Rows with a text: JSON lines, JSON arrays, and hub datasets, MedRAG's (id, title, content) among them."""

import codecs
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from itertools import islice
from typing import Any

import ijson

from medagent.retrieval.bibliography import Bibliography, says, year_in
from medagent.retrieval.chunking import Document, Section
from medagent.retrieval.passages import TEXT_FIELDS, replace_surrogates
from medagent.retrieval.readers.base import UNREADABLE, Item, OpenFile, Skipped, UnusableFileError, left_out_of, usable
from medagent.retrieval.readers.html_text import plain_text
from medagent.retrieval.readers.registries import read_record, reader_of, records_in

LONGEST_LINE = 64 << 20  # bytes; a longer one is no row
LONGEST_RECORD = 16 << 20  # bytes of a file that is one record
MAX_DEPTH = 500  # arrays and objects within one another


def read_json_lines(file: OpenFile) -> Iterator[Item]:
    """One document per line."""
    number = 0
    try:
        while line := file.stream.readline(LONGEST_LINE):
            number += 1
            where = f"{file.name}, line {number}"
            if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
                while (rest := file.stream.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
                    pass
                yield Skipped(where, f"is longer than {LONGEST_LINE >> 20} MiB")
                continue
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8-sig"))
            except (ValueError, RecursionError) as error:  # JSON's and Unicode's errors are both ValueErrors
                yield Skipped(where, f"no JSON object in UTF-8 ({error})")
                continue
            yield from items_of_row(row, where, source=file.name)
    except UNREADABLE as error:
        raise UnusableFileError(f"cannot be read after line {number:,} ({error}); what came before is used") from error
    if not number:
        raise UnusableFileError("is empty")


def read_json_array(file: OpenFile) -> Iterator[Item]:
    """One document per object of an array: the file's own, or those in the fields of the object that the file is.

    A file that is a source's record or answer is read as such.
    """
    if (record := _record(file)) is not None:
        yield from items_of_row(record, file.name, source=file.name)
        return
    number = 0
    try:
        for number, row in enumerate(_objects(file), start=1):
            yield from items_of_row(row, f"{file.name}, row {number}", source=file.name)
    except (ijson.JSONError, UnicodeDecodeError, *UNREADABLE) as error:
        raise UnusableFileError(f"cannot be read after row {number:,} ({error}); what came before is used") from error
    if not number:
        raise UnusableFileError("holds no array of objects")


def _record(file: OpenFile) -> Any:
    """The file's object, where it is a short record or answer of a source; else None, and the file is at its start."""
    head = b""
    with suppress(*UNREADABLE):
        head = file.stream.read(LONGEST_RECORD + 1)
    file.stream.seek(0)
    if len(head) > LONGEST_RECORD or not head.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"{"):
        return None
    try:
        row = json.loads(head)
    except (ValueError, RecursionError):  # the reader of arrays says what is wrong
        return None
    return row if reader_of(row) or records_in(row) else None


def _objects(file: OpenFile) -> Iterator[Any]:
    """The objects of the file's arrays, one at a time in memory; all at once where it has NaN, which JSON has not."""
    number, constants = 0, list[str]()
    try:
        for row in _streamed(file):
            yield row
            number += 1
    except ijson.JSONError:
        value = None
        with closing(OpenFile(file.path, file.name)) as again, suppress(ValueError, RecursionError, UnusableFileError):
            value = json.loads(again.whole(), parse_constant=constants.append)  # null
        if value is None or not constants:
            raise
        yield from islice(_in_arrays(value), number, None)


def _in_arrays(value: Any) -> Iterator[Any]:
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from (each,) if isinstance(value, list) and isinstance(each, dict) else _in_arrays(each)


def _streamed(file: OpenFile) -> Iterator[Any]:
    builder, within = ijson.ObjectBuilder(), 0  # the containers that are open inside a row, itself counted
    opened: list[str] = []  # those around it
    if file.stream.read(3) != codecs.BOM_UTF8:
        file.stream.seek(0)
    for event, value in ijson.basic_parse(file.stream, use_float=True):
        begins, ends = event.startswith("start_"), event.startswith("end_")
        if len(opened) + within > MAX_DEPTH:
            raise ijson.JSONError(f"nests more than {MAX_DEPTH} deep")
        if not within and event == "start_map" and opened[-1:] == ["start_array"]:
            builder = ijson.ObjectBuilder()
        elif not within:
            if begins:
                opened.append(event)
            elif ends:
                opened.pop()
            continue
        builder.event(event, value)
        within += begins - ends
        if not within:
            yield builder.value


def items_of_row(row: Any, where: str, *, source: str) -> Iterator[Item]:
    """The document of a source's record, those of the records in a source's answer, or that of a user's own fields."""
    records = records_in(row)
    for number, each in enumerate(records, start=1):
        yield from items_of_row(each, f"{where}, record {number}", source=source)
    if not records:
        yield from (documents_of_row if reader_of(row) is None else read_record)(row, where, source=source)


def documents_of_row(row: Any, where: str, *, source: str) -> Iterator[Item]:
    """The document of an object with `text` (MedRAG: `content`), and what was left out of it.

    `source` stands in for a row that names none.
    """
    if not isinstance(row, Mapping):
        yield Skipped(where, f"found a {type(row).__name__}, wanted an object")
        return
    found = next((row[name] for name in TEXT_FIELDS if says(row.get(name))), None)
    text = replace_surrogates(found).strip() if isinstance(found, str) else ""
    if not text or text.strip("[].").lower() in ("no abstract available", "no abstract"):
        wanted = f"no text: wanted one of the fields {', '.join(TEXT_FIELDS)} that is not empty"
        yield Skipped(where, "has no abstract" if text else wanted)
        return
    left_out, about = Counter[str](), Bibliography.of_row(row)
    named = f"pmid:{about.pmid}" if about.pmid else f"doi:{about.doi}" if about.doi else ""
    section, id_ = plain_text(_said(row, "section"), left_out).replace("\n", " "), row.get("id")
    document = Document(
        plain_text(_said(row, "title"), left_out).replace("\n", " "),
        (Section(section, plain_text(text, left_out)),),
        _said(row, "source") or source,
        id=named if id_ is None or id_ != id_ else replace_surrogates(str(id_)).strip() or named,  # NaN is none
        year=year_in(row.get("year")),
        licence=_said(row, "licence") or _said(row, "license"),
        group=_said(row, "document"),
        about=about,
    )
    yield usable(document, where)
    yield from left_out_of(where, left_out)


def _said(row: Mapping[str, Any], name: str) -> str:
    return replace_surrogates(str(row[name]) if says(row.get(name)) else "").strip()
