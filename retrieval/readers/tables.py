"""CSV and TSV with a header, by RFC 4180: delimiter, encoding and names are found out; an open quote costs one line.

Lists of retracted articles, as Retraction Watch publishes them, keep documents out.
"""

import csv
import io
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from medagent.lazy import packaged
from medagent.retrieval.bibliography import iso_date, plain_doi
from medagent.retrieval.readers.base import SAMPLE, UNREADABLE, Item, OpenFile, Skipped, Withdrawn, encoding_of
from medagent.retrieval.readers.rows import documents_of_row

csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # a column may hold a whole article
MAX_ROW_LINES = 2_000  # lines, within which a quote must be closed
DELIMITERS = ",\t;|"
COLUMNS: dict[str, list[str]] = packaged("medagent.retrieval", "field_names.yaml")["columns"]
_PMID = re.compile(r"(?<![\d.])0*([1-9]\d*)(?:\.0+)?(?![\d.])")
# Between two DOIs: a semicolon may stand within one.
_BETWEEN = re.compile(r"[;,|\s]+(?=(?:https?://|doi:\s*|10\.))", re.IGNORECASE)
_COLUMNS = ("originalpaperpubmedid", "originalpaperdoi", "retractionnature")


def read_table(file: OpenFile) -> Iterator[Item]:
    """One document per row."""
    number = 0
    try:
        head = file.stream.read(SAMPLE)
        if not head.strip():
            yield Skipped(file.name, "is empty")
            return
        encoding = encoding_of(head)
        delimiter = delimiter_of(head.decode(encoding, "replace"), file.path.suffixes)
        file.stream.seek(0)
        # A carriage return alone ends a line too, as old spreadsheets write.
        with io.TextIOWrapper(file.stream, encoding, "replace", newline="") as lines:
            rows = records(lines, delimiter)
            number, header = next(rows)
            if isinstance(header, list) and header and header[0].lower().startswith("sep="):
                number, header = next(rows)
            if {column.strip().lower() for column in header}.issuperset(_COLUMNS):
                yield from retractions(header, rows, file.name)
                return
            names = [] if isinstance(header, str) else [known_name(name) for name in header]
            if "text" not in names:
                yield Skipped(
                    file.name,
                    f"its header is {header}; wanted a column 'text', 'content' or 'abstract' (and id, title, source, "
                    "year), by commas, tabs, semicolons or bars",
                )
                return
            for number, row in rows:
                where = f"{file.name}, line {number}"
                if isinstance(row, str):
                    yield Skipped(where, row)
                elif any(cell.strip() for cell in row[len(names) :]):
                    yield Skipped(where, f"has more cells than the header; is a {delimiter!r} unquoted?")
                elif any(row):
                    yield from documents_of_cells(names, row, where, file.name)
    except (csv.Error, *UNREADABLE) as error:
        yield Skipped(file.name, f"cannot be read after line {number:,} ({error}); what came before is used")


def documents_of_cells(names: Sequence[str], row: Sequence[str], where: str, source: str) -> Iterator[Item]:
    """The document of a row of cells; `names` has a field for each cell, or an empty text."""
    fields: dict[str, str] = {}
    for name, cell in zip(names, row, strict=False):
        if name and cell.strip() and name not in fields:
            fields[name] = cell
    yield from documents_of_row(fields, where, source=source)


def known_name(column: str) -> str:
    """The field that a column's name stands for; empty for others."""
    plain = " ".join(re.sub(r"[_\-.]+", " ", column).lower().split())
    return next((name for name, others in COLUMNS.items() if plain in others), "")


def delimiter_of(head: str, suffixes: Sequence[str] = ()) -> str:
    """The delimiter of a table: the one that the header has most of; a tab where the file's name says so."""
    if ".tsv" in [suffix.lower() for suffix in suffixes]:
        return "\t"
    header = next((line for line in head.splitlines() if line.strip()), "")
    if header.lower().startswith("sep=") and len(header.strip()) == 5:  # Excel's own line
        return header.strip()[4]
    unquoted = re.sub(r'"[^"]*"', "", header)
    return max(DELIMITERS, key=unquoted.count)


def records(lines: Iterator[str], delimiter: str) -> Iterator[tuple[int, list[str] | str]]:
    """The table's rows, each with the number of its first line; in place of a row that cannot be read, why."""
    number = 1
    while line := next(lines, ""):
        held = [line]
        row = _row(line, delimiter)
        while row is None:
            following = next(lines, "")
            if not following or len(held) == MAX_ROW_LINES:
                row = "opens a quote that is never closed; the line is left out"
            else:
                held.append(following)
                if '"' in following:  # nothing else closes a quote
                    row = _row("".join(held), delimiter)
            if isinstance(row, str):  # the lines that the quote would have swallowed are rows of their own
                lines = chain(held[1:], [following] if following and following is not held[-1] else [], lines)
                del held[1:]
        if any(row):
            yield number, row
        number += len(held)


def _row(text: str, delimiter: str) -> list[str] | str | None:
    """The cells of a row; None where a quote is still open at its end; why it cannot be read, where it cannot."""
    try:
        return next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True), [])
    except csv.Error as error:
        if "unexpected end of data" in str(error):
            return None
        if text.count("\n") > 1:
            return f"opens a quote that is not closed where a cell ends ({error}); the line is left out"
        return next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])  # a quote within a cell


def retractions(header: Sequence[str], rows: Iterable[tuple[int, list[str] | str]], name: str) -> Iterator[Item]:
    """A `Withdrawn` per row that tells of a retraction, unless a later one reinstates the article; others are counted.

    `rows` have their number, and stand for a row that cannot be read by why.
    """
    columns = [column.strip().lower() for column in header]
    found: list[tuple[str, list[list[str]], Withdrawn]] = []
    reinstated: dict[str, str] = {}
    others: Counter[str] = Counter()
    for number, row in rows:
        where = f"{name}, line {number}"
        if isinstance(row, str):
            yield Skipped(where, row)
            continue
        said = {column: cell.strip() for column, cell in zip(columns, row, strict=False)}
        pmid, doi, nature = (said.get(column, "") for column in _COLUMNS)
        pmids = [f"pmid:{each}" for each in _PMID.findall(pmid)]
        dois = [f"doi:{plain}" for each in _BETWEEN.split(doi) if (plain := plain_doi(each))]
        names = [*pmids, *dois]
        date = iso_date(re.sub(r"(\d+)/(\d+)/(\d{4}).*", r"\3-\1-\2", said.get("retractiondate", "")))  # month first
        if nature.lower() == "retraction" and names:
            reason = said.get("reason", "").strip("+; ").replace("+", "")
            when = f" on {date}" if date else ""
            reason = f"was retracted{when}{f' ({reason})' if reason else ''}"
            found.append((date, [pmids, dois], Withdrawn(where, tuple(names), "retracted", reason, listed=True)))
            continue
        if nature.lower() == "reinstatement":
            reinstated |= {each: max(date, reinstated.get(each, "")) for each in names}
        others[nature.lower() if names else "notice without PMID and DOI"] += 1
    for date, named, each in found:  # without a date, a retraction may be the later one
        if not date or not any(same and all(reinstated.get(one, "") >= date for one in same) for same in named):
            yield each
    if others:
        counted = ", ".join(f"{number} {nature}" for nature, number in others.most_common())
        yield Skipped(name, f"keeps no document out by {sum(others.values())} of its notices: {counted}")
