"""One reader per kind of file. It never raises for what is wrong with a file: it yields `Skipped` and goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path

from medagent.retrieval.readers.base import Item, LeftOut, OpenFile, Skipped, UnusableFileError, Withdrawn

# Module and function of each kind. A module is imported when a file of its kind is read: some take their time, and a
# search reads no file.
READERS = {
    ".jsonl": ("rows", "read_json_lines"),
    ".ndjson": ("rows", "read_json_lines"),
    ".json": ("rows", "read_json_array"),
    ".csv": ("tables", "read_table"),
    ".tsv": ("tables", "read_table"),
    ".txt": ("text", "read_text"),
    ".md": ("text", "read_markdown"),
    ".markdown": ("text", "read_markdown"),
    ".nbib": ("references", "read_medline_text"),
    ".ris": ("references", "read_ris"),
    ".bib": ("references", "read_bibtex"),
    ".html": ("pages", "read_html"),
    ".htm": ("pages", "read_html"),
    ".docx": ("pages", "read_docx"),
    ".pdf": ("pdf", "read_pdf"),
    ".xml": ("xml", "read_xml"),
    ".nxml": ("xml", "read_xml"),
}

# Kinds that are read otherwise than before, each with a number that grows with each such change: `sync` and `add` then
# read files again that did not change themselves.
READINGS = {".pdf": 2, ".html": 2, ".htm": 2, ".docx": 2}
__all__ = ["READERS", "READINGS", "Item", "LeftOut", "OpenFile", "Skipped", "Withdrawn", "kind_of", "read_documents", "read_file"]


def kind_of(path: Path) -> str:
    """The suffix that decides how a file is read: "a.xml.gz" is ".xml"."""
    return (path.with_suffix("") if path.suffix.lower() == ".gz" else path).suffix.lower()


def read_file(file: OpenFile) -> Iterator[Item]:
    """The documents of an open file, and what had to be skipped."""
    module, function = READERS[kind_of(file.path)]
    try:
        yield from getattr(import_module(f"medagent.retrieval.readers.{module}"), function)(file)
    except UnusableFileError as error:
        yield Skipped(file.name, str(error))


def read_documents(path: str | Path) -> Iterator[Item]:
    """The documents of a file, and what had to be skipped; a `KeyError` for kinds without a reader."""
    with closing(OpenFile(Path(path), Path(path).name)) as file:
        yield from read_file(file)
