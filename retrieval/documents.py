"""Which documents an index holds, in which version and from where, and which must stay out of it.

A document is known by its name: `pmid:...`, `doi:...`, a path or an id of the user's. Other names of the same document
are its aliases. A version sorts as text; an empty one comes before all others.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

TABLES = """
CREATE TABLE IF NOT EXISTS documents (name TEXT PRIMARY KEY, version TEXT NOT NULL, part TEXT NOT NULL,
  reading TEXT NOT NULL, digest TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS documents_part ON documents (part);
CREATE TABLE IF NOT EXISTS aliases (alias TEXT PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS withdrawn (name TEXT PRIMARY KEY, kind TEXT NOT NULL, version TEXT NOT NULL,
  reason TEXT NOT NULL, asked TEXT NOT NULL, part TEXT NOT NULL);
"""
_VARIABLES = 500  # values of one "IN (...)"
Kind = Literal["deleted", "retracted", "removed"]


@dataclass(frozen=True)
class HeldDocument:
    """A document of the index: `reading` is the fingerprint of its part when it was read last."""

    name: str
    version: str
    part: str
    reading: str
    digest: str


@dataclass(frozen=True)
class Withdrawal:
    """A name that must stay out: of a document, of a passage, or "digest:..." of what a passage says.

    Deleted documents may come back in a newer version. Retracted and removed ones stay out until they are restored by
    the name that was `asked` for.
    """

    name: str
    kind: Kind
    reason: str
    version: str = ""
    asked: str = ""
    part: str = ""


@dataclass
class DocumentChanges:
    """What a transaction changes: `replaced` documents lose the passages that they had, and `gone` ones leave."""

    held: dict[str, HeldDocument] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    replaced: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    withdrawn: dict[str, Withdrawal] = field(default_factory=dict)


class DocumentTables:
    """The tables of documents in an index's database."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._db = database

    def held(self, names: Iterable[str]) -> dict[str, HeldDocument]:
        """The documents with these names that the index holds."""
        query = "SELECT name, version, part, reading, digest FROM documents WHERE name IN"
        return {row[0]: HeldDocument(*row) for row in self._in(query, list(names))}

    def named(self, names: Iterable[str]) -> dict[str, str]:
        """The documents' own names for these aliases; what is no alias is left out."""
        return dict(self._in("SELECT alias, name FROM aliases WHERE alias IN", list(names)))

    def withdrawn(self, names: Iterable[str]) -> dict[str, Withdrawal]:
        """What of these names must stay out."""
        query = "SELECT name, kind, reason, version, asked, part FROM withdrawn WHERE name IN"
        return {row[0]: Withdrawal(*row) for row in self._in(query, list(names))}

    def of_part(self, part: str, *, not_read_as: str | None = None) -> list[str]:
        """Names of the documents of a part; with `not_read_as` those that this reading of it did not see."""
        found = self._db.execute("SELECT name, reading FROM documents WHERE part = ? ORDER BY rowid", (part,))
        return [name for name, reading in found if reading != not_read_as]

    def apply(self, changes: DocumentChanges) -> None:
        """Write the changes; the caller holds the transaction."""
        gone = [(name,) for name in changes.gone]
        self._db.executemany("DELETE FROM documents WHERE name = ?", gone)
        self._db.executemany("DELETE FROM aliases WHERE name = ?", gone)
        self._db.executemany(
            "INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?, ?)",
            [(each.name, each.version, each.part, each.reading, each.digest) for each in changes.held.values()],
        )
        self._db.executemany("INSERT OR REPLACE INTO aliases VALUES (?, ?)", changes.aliases.items())
        self._db.executemany(
            "INSERT OR REPLACE INTO withdrawn VALUES (?, ?, ?, ?, ?, ?)",
            [
                (each.name, each.kind, each.version, each.reason, each.asked or each.name, each.part)
                for each in changes.withdrawn.values()
            ],
        )

    def restore(self, asked: str) -> list[Withdrawal]:
        """Let what was withdrawn under a name come back; returns it. The caller holds the transaction."""
        query = "SELECT name, kind, reason, version, asked, part FROM withdrawn WHERE asked = ? OR name = ?"
        found = [Withdrawal(*row) for row in self._db.execute(query, (asked, asked))]
        self._db.executemany("DELETE FROM withdrawn WHERE name = ?", [(each.name,) for each in found])
        return found

    def _in(self, query: str, values: Sequence[str]) -> list[Any]:
        found: list[Any] = []
        for start in range(0, len(values), _VARIABLES):
            some = values[start : start + _VARIABLES]
            found += self._db.execute(f"{query} ({', '.join('?' * len(some))})", tuple(some)).fetchall()
        return found
