"""One reader per kind of file. It never raises for what is wrong with a file: it yields `Skipped` and goes on."""

from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

from medagent.retrieval.formats import READERS, kind_of
from medagent.retrieval.readers.base import Item, LeftOut, OpenFile, Skipped, UnusableFileError, Withdrawn, completed

__all__ = ["Item", "LeftOut", "OpenFile", "Skipped", "Withdrawn", "read_documents", "read_file", "read_row"]


def read_file(file: OpenFile) -> Iterator[Item]:
    """The documents of an open file, and what had to be skipped.

    A reader's module is imported when a file of its kind is read: some take their time, and a search reads no file.
    """
    module, _, function = READERS[kind_of(file.path)].reader.partition(".")
    try:
        yield from map(completed, getattr(import_module(f"medagent.retrieval.readers.{module}"), function)(file))
    except UnusableFileError as error:
        yield Skipped(file.name, str(error))


def read_row(row: dict[str, Any], where: str, *, source: str) -> Iterator[Item]:
    """The document of a row of a hub's dataset, and what was left out of it."""
    read = import_module("medagent.retrieval.readers.rows").documents_of_row
    return map(completed, read(row, where, source=source))


def read_documents(path: str | Path) -> Iterator[Item]:
    """The documents of a file, and what had to be skipped; a `KeyError` for kinds without a reader."""
    with closing(OpenFile(Path(path), Path(path).name)) as file:
        yield from read_file(file)
