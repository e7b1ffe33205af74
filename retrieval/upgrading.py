"""Older formats of an index's database, brought to the present one."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from medagent.retrieval.documents import DocumentChanges, DocumentTables, HeldDocument
from medagent.retrieval.passages import Passage, document_digest


def add_owners(database: sqlite3.Connection, passages: str, columns: Sequence[str]) -> None:
    """Format 2 to 3: passages get the document that they are of, which follows from their fields.

    `passages` makes the new table, and `columns` are those of a passage. Searches are the same before and after.
    """
    named = ", ".join(columns)
    with database:
        database.execute("BEGIN IMMEDIATE")
        database.execute("DROP INDEX IF EXISTS passages_document")
        database.execute("ALTER TABLE passages RENAME TO passages_of_format_2")
        for statement in passages.strip().removesuffix(";").split(";"):
            database.execute(statement)
        # A document is named by its passages' field where their ids are its parts, or where it has no name but the
        # digest of its words. A row's own field names a larger thing.
        digest = "(length(document) = 16 AND document NOT GLOB '*[^0-9a-f]*')"
        owner = f"CASE WHEN document != '' AND (instr(id, '#') > 0 OR {digest}) THEN document ELSE id END"
        query = f"SELECT row, {named}, digest, {owner}, '' FROM passages_of_format_2"  # noqa: S608 (constant names)
        database.execute(f"INSERT INTO passages {query}")
        database.execute("DROP TABLE passages_of_format_2")
        owned: dict[str, list[Passage]] = {}
        query = f"SELECT owner, {named} FROM passages ORDER BY row"  # noqa: S608 (constant names)
        for name, *values in database.execute(query):
            owned.setdefault(name, []).append(Passage(**dict(zip(columns, values, strict=True))))
        held = {name: HeldDocument(name, "", "", "", document_digest(found)) for name, found in owned.items()}
        DocumentTables(database).apply(DocumentChanges(held=held))
        database.execute("DELETE FROM parts")  # read again, they tell which document is from where
