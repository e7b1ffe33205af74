"""One reader per kind of file: a file -> documents, and what had to be skipped and why.

A reader never raises for what is wrong with a file. It yields `Skipped` and goes on where it can. So one bad file
cannot end a long build.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from retrieval.readers.base import Item, OpenFile, Read, Skipped
from retrieval.readers.pdf import read_pdf
from retrieval.readers.rows import read_json_lines, read_table
from retrieval.readers.text import read_markdown, read_text
from retrieval.readers.xml import read_xml

READERS: dict[str, Read] = {
    ".jsonl": read_json_lines,
    ".ndjson": read_json_lines,
    ".csv": read_table,
    ".tsv": read_table,
    ".txt": read_text,
    ".md": read_markdown,
    ".markdown": read_markdown,
    ".pdf": read_pdf,
    ".xml": read_xml,
    ".nxml": read_xml,
}


def kind_of(path: Path) -> str:
    """The suffix that decides how a file is read: "a.xml.gz" is ".xml"."""
    return (path.with_suffix("") if path.suffix.lower() == ".gz" else path).suffix.lower()


def read_file(file: OpenFile) -> Iterator[Item]:
    """The documents of an open file, and what had to be skipped."""
    return READERS[kind_of(file.path)](file)


__all__ = ["READERS", "Item", "OpenFile", "Skipped", "kind_of", "read_file"]
