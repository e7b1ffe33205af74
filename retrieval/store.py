"""The source of truth of an index: passages in SQLite, and row by row their vectors in a flat file of float32.

Vectors are flushed before the transaction that counts their rows, so a kill loses one batch at most. Rows are never
renumbered. A removed row leaves a gap, with its text overwritten and its vector set to zero.
"""

import json
import os
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from medagent.retrieval.access import database_uri, may_write
from medagent.retrieval.documents import DocumentChanges, DocumentTables, Withdrawal, select_in
from medagent.retrieval.embedders import Embedder
from medagent.retrieval.errors import IndexMismatchError
from medagent.retrieval.passages import Passage
from medagent.retrieval.stored_rows import COLUMNS, PartState, StoredRows

EMBEDDED_AT_ONCE = 256
Progress = Callable[[str, int, int, int], None]  # stage, done, total (in the units of the stage), passages so far
SCHEMA = files("medagent.retrieval").joinpath("schema.sql").read_text(encoding="utf-8")


class PassageStore(StoredRows):
    """Passages and vectors of one index. Safe to read from several threads."""

    def __init__(self, folder: Path, dimension: int) -> None:
        """Opens or creates both files; where this process may not write, opens them to read."""
        try:
            database = sqlite3.connect(database_uri(folder), uri=True, check_same_thread=False)
            super().__init__(folder, dimension, database)
            if not may_write(folder):
                _add_missing_tables(self._db)
            else:
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA secure_delete = ON")
                self._db.executescript(SCHEMA)
        except sqlite3.DatabaseError as error:
            raise IndexMismatchError(
                f"index {folder}: passages.sqlite cannot be read ({error}). Restore it from a backup, or build the "
                "index again with --overwrite."
            ) from error
        self.documents = DocumentTables(self._db)

    def close(self) -> None:
        """Close the database and fold its log into it."""
        self._db.close()

    def append(
        self,
        passages: Sequence[tuple[Passage, str]],
        vectors: NDArray[np.float32],
        *,
        parts: Mapping[str, PartState],
        skipped: Sequence[tuple[str, str]] = (),
        left_out: Sequence[tuple[str, str]] = (),
        counts: Counter[str] | None = None,
        changes: DocumentChanges | None = None,
    ) -> None:
        """Add passages, each with its document's name, and record how far parts were read, in one transaction."""
        first = self.num_rows
        self._write_vectors(first, vectors)
        changes, counts = changes or DocumentChanges(), Counter(counts or {})
        with self._db:
            for owner in (*changes.gone, *changes.replaced):
                counts["removed"] += self._db.execute("DELETE FROM passages WHERE owner = ?", (owner,)).rowcount
            for row, (passage, owner) in enumerate(passages, start=first):
                known = passage.about.to_json()
                more = (bytes.fromhex(passage.digest), owner, json.dumps(known, ensure_ascii=False) if known else "")
                values = (row, *(getattr(passage, name) for name in COLUMNS), *more)
                self._db.execute(f"INSERT INTO passages VALUES ({', '.join('?' * len(values))})", values)  # noqa: S608
            self.documents.apply(changes)
            self._db.executemany(
                "INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?)",
                [(name, state.fingerprint, state.position, state.complete) for name, state in parts.items()],
            )
            self._db.executemany("INSERT INTO skipped VALUES (?, ?)", skipped)
            self._db.executemany("INSERT INTO left_out VALUES (?, ?)", left_out)
            self._add_counts(counts, rows=first + len(passages))

    def _write_vectors(self, first: int, vectors: NDArray[np.float32]) -> None:
        path, size = self.folder / "embeddings.f32", self._check_vectors(first)
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.truncate(size)  # vectors of a batch that was killed before it was counted
            file.seek(0, os.SEEK_END)
            file.write(np.ascontiguousarray(vectors, dtype=np.float32).tobytes())
            file.flush()
            os.fsync(file.fileno())

    def _add_counts(self, counts: Counter[str], *, rows: int) -> None:
        added = "INSERT INTO counts VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET number = number + excluded.number"
        self._db.executemany(added, counts.items())
        self._db.execute("INSERT OR REPLACE INTO counts VALUES ('rows', ?)", (rows,))

    def remove(self, by_name: Mapping[str, Sequence[int]]) -> None:
        """Delete the rows of each name, which must stay out from now on, on disk and in the vectors."""
        number = self.num_rows
        out: dict[str, Withdrawal] = {}
        rows = sorted({row for found in by_name.values() for row in found})
        found_rows = select_in(self._db, "SELECT row, id, digest, owner FROM passages WHERE row IN", rows)
        told = {row: (id_, digest.hex(), owner) for row, id_, digest, owner in found_rows}
        with self._db:  # first, so that a kill in between leaves no passage without its vector
            self._db.executemany("DELETE FROM passages WHERE row = ?", [(row,) for row in rows])
            owners = {owner for _, _, owner in told.values()}
            empty = {
                owner for owner in owners if not select_in(self._db, "SELECT 1 FROM passages WHERE owner IN", [owner])
            }
            held, aliases = self.documents.held(owners), self.documents.aliases("name", empty)
            # An alias that others have too, such as the DOI of several rows, does not keep those out.
            others = self.documents.aliases("alias", {alias for alias, _ in aliases})
            shared = {alias for alias, owner in others if owner not in empty}
            for name, found in by_name.items():
                of = {told[row][2] for row in found}
                part = next((held[owner].part for owner in of if owner in held), "")
                # A passage is known by its words alone: its number may be another's when the document changes.
                keys = {f"digest:{told[row][1]}" for row in found} | ({name} if "#" not in name else set())
                keys |= {key for row in found for key in (told[row][0], told[row][2]) if told[row][2] in empty}
                keys |= {alias for alias, owner in aliases if owner in of and alias not in shared}
                why = "it was removed by name"
                owner = next(iter(of), "")
                out |= {
                    key: Withdrawal(key, "removed", why, asked=name, part=part, owner=owner)
                    for key in keys
                    if "#" not in key or key.startswith("digest:")
                }
            self.documents.apply(DocumentChanges(gone=empty, withdrawn=out))
            self._add_counts(Counter({"removed": len(rows)}), rows=number)
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.blank_gaps()

    def drop(self, documents: Sequence[str], parts: Sequence[str]) -> None:
        """Delete documents with their passages, which may come back, and forget that parts were read."""
        if documents:
            none = np.zeros((0, self.dimension), np.float32)
            self.append((), none, parts={}, changes=DocumentChanges(gone=set(documents)))
        with self._db:
            self._db.executemany("DELETE FROM parts WHERE name = ?", [(part,) for part in parts])

    def forget_notes(self, part: str) -> None:
        """Forget what was skipped and left out in a part, which is read anew."""
        with self._db:
            for table in ("skipped", "left_out"):
                query = f"DELETE FROM {table} WHERE place = ? OR substr(place, 1, ?) = ?"  # noqa: S608 (constant names)
                self._db.execute(query, (part, len(part) + 2, f"{part}, "))

    def restore(self, names: Sequence[str]) -> None:
        """Let what was withdrawn under these names come back; an unknown name is an error, and changes nothing."""
        with self._db:
            for name in names:
                if not self.documents.restore(name):
                    raise IndexMismatchError(
                        f"index {self.folder}: nothing was removed or retracted under the name {name!r}. "
                        "`medagent index stats` lists what must stay out. Nothing was restored."
                    )
            self._db.execute("DELETE FROM parts")

    def embed_again(self, embedder: Embedder, progress: Progress) -> None:
        """Make the file of vectors anew from the passages; until it is whole the old one stays."""
        part, rows = self.folder / "embeddings.f32.part", self.rows()
        made = np.memmap(part, dtype=np.float32, mode="w+", shape=(self.num_rows, self.dimension))
        for start in range(0, len(rows), EMBEDDED_AT_ONCE):
            some = rows[start : start + EMBEDDED_AT_ONCE]
            passages = self.fetch(some)
            made[some] = embedder.embed_passages([passages[int(row)] for row in some])
            progress("embedding", start + len(some), len(rows), len(rows))
        made.flush()
        os.replace(part, self.folder / "embeddings.f32")

    def blank_gaps(self) -> None:
        """Set the vectors of all rows that hold no passage to zero."""
        gaps = np.setdiff1d(np.arange(self.num_rows), self.rows(), assume_unique=True)
        if len(gaps):
            vectors = self.vectors("r+")
            vectors[gaps] = 0
            vectors.flush()


def _add_missing_tables(database: sqlite3.Connection) -> None:
    """Empty tables, for this connection alone, for those that an older index lacks."""
    held = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    for name, columns in re.findall(r"CREATE TABLE IF NOT EXISTS (\w+) ([^;]+)", SCHEMA):
        if name not in held:
            database.execute(f"CREATE TEMP TABLE {name} {columns}")
