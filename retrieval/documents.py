"""The documents that an index holds, by name (`pmid:...`, `doi:...`, a path, a user's id), and those that stay out.

Other names of a document are its aliases. A version sorts as text; an empty one comes before all others.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from typing import Any, Literal

# Aliases before a name: the document is a preprint of that name; its article, or its preprint, has that name.
PREPRINT, PREPRINT_OF, ARTICLE_OF = "preprint ", "preprint of ", "article of "
_VARIABLES = 500  # values of one "IN (...)"
Kind = Literal["deleted", "retracted", "removed", "allowed"]


@dataclass(frozen=True)
class IndexedDocument:
    """A document of the index: `reading` is the fingerprint of its part when it was read last."""

    name: str
    version: str
    part: str
    reading: str
    digest: str


@dataclass(frozen=True)
class Withdrawal:
    """A name that must stay out, of a document, a passage, or "digest:..." of its words, until `asked` is restored.

    Deleted documents may come back in a newer version. A restored name is "allowed", whatever a notice says.
    """

    name: str
    kind: Kind
    reason: str
    version: str = ""
    asked: str = ""
    part: str = ""
    owner: str = ""  # the document that a passage was removed from


_WITHDRAWN = ", ".join(each.name for each in fields(Withdrawal))


@dataclass
class DocumentChanges:
    """Changes of one transaction: `replaced` documents lose passages, `gone` ones go, `seen` stand elsewhere too."""

    held: dict[str, IndexedDocument] = field(default_factory=dict)
    aliases: set[tuple[str, str]] = field(default_factory=set)
    seen: set[tuple[str, str]] = field(default_factory=set)
    replaced: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    withdrawn: dict[str, Withdrawal] = field(default_factory=dict)


class DocumentTables:
    """The tables of documents in an index's database."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._db = database

    def held(self, names: Iterable[str]) -> dict[str, IndexedDocument]:
        """The documents with these names that the index holds."""
        query = "SELECT name, version, part, reading, digest FROM documents WHERE name IN"
        return {row[0]: IndexedDocument(*row) for row in select_in(self._db, query, list(names))}

    def aliases(self, column: Literal["alias", "name"], values: Iterable[str]) -> set[tuple[str, str]]:
        """Aliases with the names of their documents; `values` are those of one column."""
        query = f"SELECT alias, name FROM aliases WHERE {column} IN"  # noqa: S608 (constant names)
        return set(select_in(self._db, query, list(values)))

    def other_parts(self, names: Iterable[str]) -> list[str]:
        """Parts in which these documents stand too."""
        return sorted(
            {part for _, part in select_in(self._db, "SELECT name, part FROM seen WHERE name IN", list(names))}
        )

    def withdrawn(self, names: Iterable[str]) -> dict[str, Withdrawal]:
        """The withdrawals under these names."""
        found = select_in(self._db, f"SELECT {_WITHDRAWN} FROM withdrawn WHERE name IN", list(names))  # noqa: S608
        return {row[0]: Withdrawal(*row) for row in found}

    def of_part(self, part: str, *, not_read_as: str | None = None) -> list[str]:
        """Names of the documents of a part; with `not_read_as` those that this reading of it did not see."""
        found = self._db.execute("SELECT name, reading FROM documents WHERE part = ? ORDER BY rowid", (part,))
        return [name for name, reading in found if reading != not_read_as]

    def apply(self, changes: DocumentChanges) -> None:
        """Write the changes; the caller holds the transaction."""
        gone = [(name,) for name in changes.gone]
        self._db.executemany("DELETE FROM documents WHERE name = ?", gone)
        self._db.executemany("DELETE FROM aliases WHERE name = ?", gone)
        held = map(astuple, changes.held.values())
        self._db.executemany("INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?, ?)", held)
        self._db.executemany("INSERT OR REPLACE INTO aliases VALUES (?, ?)", sorted(changes.aliases))
        self._db.executemany("DELETE FROM seen WHERE name = ?", gone)
        self._db.executemany("INSERT OR REPLACE INTO seen VALUES (?, ?)", sorted(changes.seen))
        withdrawn = (astuple(replace(each, asked=each.asked or each.name)) for each in changes.withdrawn.values())
        query = f"INSERT OR REPLACE INTO withdrawn ({_WITHDRAWN}) VALUES (?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
        self._db.executemany(query, withdrawn)

    def restore(self, asked: str) -> int:
        """Let what was withdrawn under a name come back; how many names that were. The caller holds the transaction."""
        found = self._db.execute(
            "UPDATE withdrawn SET kind = 'allowed' WHERE (asked = ? OR name = ?) AND kind != 'allowed'", (asked, asked)
        ).rowcount
        # A document that lacks a passage has the words that it was read with; without them it is read anew.
        self._db.execute(
            "UPDATE documents SET digest = '', reading = '' WHERE name IN "
            "(SELECT owner FROM withdrawn WHERE asked = ? OR name = ?)",
            (asked, asked),
        )
        return found

    def kept_out(self, *, limit: int) -> list[tuple[str, str]]:
        """Names that must stay out, each with the reason; not those that only follow from another."""
        query = "SELECT DISTINCT asked, reason FROM withdrawn WHERE kind != 'allowed' ORDER BY asked LIMIT ?"
        return list(self._db.execute(query, (limit,)))


def select_in(database: sqlite3.Connection, query: str, values: Sequence[str | int | bytes]) -> list[Any]:
    """The rows of a query that ends in "IN", some values at a time."""
    found: list[Any] = []
    for start in range(0, len(values), _VARIABLES):
        some = values[start : start + _VARIABLES]
        found += database.execute(f"{query} ({', '.join('?' * len(some))})", tuple(some)).fetchall()
    return found
