"""Reads an index's database and its file of vectors: see `medagent.retrieval.store`."""

import hashlib
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from medagent.retrieval.bibliography import NARRATIVE, Bibliography, plain_doi
from medagent.retrieval.documents import select_in
from medagent.retrieval.errors import IndexMismatchError
from medagent.retrieval.filters import (
    KINDS,
    NO_FILTER,
    Filter,
    FilterCondition,
    date_fits,
    fold,
    language_code,
    language_codes,
    main_heading,
)
from medagent.retrieval.passages import Passage

COLUMNS = ("id", "title", "text", "source", "section", "year", "licence", "document")
SELECTED = f"SELECT row, {', '.join(COLUMNS)}, bibliography FROM passages"  # noqa: S608 (constant names)
_ABOUT = "NULLIF(bibliography, '')"
Values = list[str | int]
_LISTS = {"type": "types", "author": "authors", "keyword": "keywords"}


@dataclass(frozen=True)
class PartState:
    """How far one part of the corpus was read: how many of its documents are stored or decided on."""

    fingerprint: str
    position: int
    complete: bool


class StoredRows:
    """Passages and vectors of one index, to read from several threads."""

    def __init__(self, folder: Path, dimension: int, database: sqlite3.Connection) -> None:
        self.folder, self.dimension = folder, dimension
        self._db, self._lock = database, Lock()
        database.create_function("fits", 2, lambda said, wanted: said is not None and fits(str(said), wanted))
        database.create_function("date_fits", 3, lambda said, *more: said is not None and date_fits(str(said), *more))

    def _check_vectors(self, rows: int) -> int:
        """The length of so many vectors in bytes; an error where the file is shorter."""
        path, wanted = self.folder / "embeddings.f32", rows * self.dimension * 4
        found = path.stat().st_size if path.exists() else 0
        if found < wanted:
            raise IndexMismatchError(
                f"index {self.folder}: embeddings.f32 has {found:,} bytes, wanted {wanted:,}. Restore it from a "
                "backup, or build the index again with --overwrite."
            )
        return wanted

    @property
    def num_rows(self) -> int:
        """How many rows were ever used, removed ones included."""
        return self.counts()["rows"]

    def __len__(self) -> int:
        """How many passages there are, by the counts that every change keeps."""
        counts = self.counts()
        return counts["rows"] - counts["removed"]

    def _all(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock:
            return self._db.execute(query, values).fetchall()

    def _select_in(self, query: str, values: Sequence[str | int | bytes]) -> list[Any]:
        with self._lock:
            return select_in(self._db, query, values)

    def count(self, table: str = "passages") -> int:
        """How many rows a table has, counted one by one."""
        return int(self._db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])  # noqa: S608 (constant names)

    def owners(self, ids: Sequence[str]) -> dict[str, str]:
        """The documents that hold the passages of these ids; unknown ids are left out."""
        return dict(self._select_in("SELECT id, owner FROM passages WHERE id IN", ids))

    def rows_with(self, digests: Sequence[str]) -> dict[str, int]:
        """A row for each of these digests that a passage has."""
        values = [bytes.fromhex(digest) for digest in digests]
        found = self._select_in("SELECT digest, row FROM passages WHERE digest IN", values)
        return {digest.hex(): row for digest, row in found}

    def parts(self) -> dict[str, PartState]:
        """All parts by name."""
        rows = self._db.execute("SELECT name, fingerprint, position, complete FROM parts ORDER BY rowid")
        return {name: PartState(fingerprint, position, bool(done)) for name, fingerprint, position, done in rows}

    def skipped(self, *, limit: int = -1, table: str = "skipped") -> list[tuple[str, str]]:
        """Skipped parts of the corpus: (where, why). The table "left_out" has parts of documents that are used."""
        query = f"SELECT place, reason FROM {table} ORDER BY rowid LIMIT ?"  # noqa: S608 (constant names)
        return list(self._db.execute(query, (limit,)))

    def counts(self) -> Counter[str]:
        """Counts of the build by name: rows, duplicates, removed, and others that readers keep."""
        return Counter(dict(self._db.execute("SELECT name, number FROM counts")))

    def stream(self, *, after: int = -1) -> Iterator[tuple[int, Passage]]:
        """(row, passage) in row order, a thousand at a time in memory."""
        while True:
            found = self._all(f"{SELECTED} WHERE row > ? ORDER BY row LIMIT 1000", (after,))
            if not found:
                return
            for row, *values in found:
                yield row, stored_passage(values)
            after = found[-1][0]

    def fetch(self, rows: Iterable[int]) -> dict[int, Passage]:
        """The passages of these rows."""
        found = self._select_in(f"{SELECTED} WHERE row IN", [int(row) for row in rows])
        return {row: stored_passage(values) for row, *values in found}

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        """Row numbers by passage id; unknown ids are left out."""
        return dict(self._select_in("SELECT id, row FROM passages WHERE id IN", ids))

    def rows_of_document(self, id: str) -> list[int]:
        """Rows whose passage or document has this id."""
        query = "SELECT row FROM passages WHERE id = ? OR document = ? OR owner = ? ORDER BY row"
        return [row for (row,) in self._all(query, (id, id, id))]

    def rows(self) -> NDArray[np.int64]:
        """All row numbers, in order."""
        with self._lock:
            return np.fromiter((row for (row,) in self._db.execute("SELECT row FROM passages ORDER BY row")), np.int64)

    def matching(self, wanted: Filter) -> NDArray[np.int64]:
        """Row numbers that a filter lets through, in order."""
        return np.array(self._filtered("SELECT row FROM passages WHERE {} ORDER BY row", wanted), np.int64).reshape(-1)

    def _filtered(self, query: str, where: Filter, *more: int) -> list[Any]:
        """The rows of a query with a mark for the condition of the filter; `more` are its later values."""
        clauses, values = ["1"], Values()
        for condition in where.conditions:
            some, own = _clause(condition)
            # Unknown counts as not fitting, so that its opposite holds.
            clauses.append(f"{'NOT ' if condition.operator == '!=' else ''}COALESCE({some}, 0)")
            values += own
        return self._all(query.format(" AND ".join(clauses)), (*values, *more))

    def tally(self, column: str, *, limit: int, where: Filter = NO_FILTER) -> list[tuple[str, int]]:
        """The most frequent values of a column with their counts, of what a filter lets through."""
        assert column in COLUMNS
        counted = f"SELECT {column}, COUNT(*) AS n FROM passages"  # noqa: S608 (checked above)
        found = self._filtered(counted + " WHERE {} GROUP BY 1 ORDER BY n DESC, 1 LIMIT ?", where, limit)
        return [(str(value), number) for value, number in found]

    def titles(self, *, limit: int) -> list[str]:
        """Distinct titles, in alphabetical order; the empty one is none."""
        query = "SELECT DISTINCT title FROM passages WHERE title != '' ORDER BY title LIMIT ?"
        return [str(title) for (title,) in self._all(query, (limit,))]

    def num_sources(self, where: Filter = NO_FILTER) -> int:
        """How many distinct sources there are; the empty one is none."""
        query = "SELECT COUNT(DISTINCT source) FROM passages WHERE source != '' AND {}"
        return int(self._filtered(query, where)[0][0])

    def years(self, where: Filter = NO_FILTER) -> tuple[int, int] | None:
        """The first and the last year, None where no passage has one."""
        ((first, last),) = self._filtered("SELECT MIN(year), MAX(year) FROM passages WHERE year > 0 AND {}", where)
        return (int(first), int(last)) if first is not None else None

    def vectors(self, mode: Literal["r", "r+"] = "r") -> "np.memmap[Any, np.dtype[np.float32]]":
        """[rows, D] memory-mapped vectors; an error where the file is too short."""
        rows = self.num_rows
        self._check_vectors(max(rows, 1))
        return np.memmap(self.folder / "embeddings.f32", dtype=np.float32, mode=mode, shape=(rows, self.dimension))

    def content_sha256(self) -> str:
        """SHA-256 over every row number and passage, in order: it depends on the content alone."""
        digest = hashlib.sha256()
        for row, passage in self.stream():
            digest.update(json.dumps([row, passage.to_json()], ensure_ascii=False, sort_keys=True).encode())
        return digest.hexdigest()

    def embeddings_sha256(self) -> str:
        """SHA-256 over the vectors of all rows."""
        digest = hashlib.sha256()
        left = self.num_rows * self.dimension * 4
        with (self.folder / "embeddings.f32").open("rb") as file:
            while left and (block := file.read(min(left, 1 << 20))):
                digest.update(block)
                left -= len(block)
        return digest.hexdigest()

    def integrity(self) -> str:
        """SQLite's own verdict on its file: "ok", or what is wrong."""
        return str(self._db.execute("PRAGMA integrity_check(1)").fetchone()[0])


def stored_passage(values: Sequence[Any]) -> Passage:
    """The passage of a row's columns, of which the last is its bibliography."""
    *plain, about = values
    known = Bibliography.from_json(json.loads(about)) if about else Bibliography()
    return Passage(**dict(zip(COLUMNS, plain, strict=True)), about=known)


@lru_cache(maxsize=300_000)  # a corpus has few sources, types and keywords, and each many times
def fits(said: str, wanted: str) -> bool:
    """Whether a text is one of those wanted, which `_wanted` wrote."""
    field, exact, patterns = _read(wanted)
    if field == "language":
        return any(f",{code}," in language_codes(said) for code in exact)
    texts = {fold(said), main_heading(said)} if field == "keyword" else {fold(said)}
    if field == "grade":  # "Level of evidence: 2b" is 2b too
        texts = {fold(text) for each in said.split("; ") for text in (each, each.split()[-1])}
    return not texts.isdisjoint(exact) or (patterns is not None and any(map(patterns.fullmatch, texts)))


def _clause(condition: FilterCondition) -> tuple[str, Values]:
    name, operator = condition.field, condition.operator
    if name == "year":
        if operator in ("=", "!="):
            return f"year IN ({', '.join('?' * len(condition.values))})", [int(value) for value in condition.values]
        return f"year {operator} ?", [int(condition.values[0])]
    if name == "date":
        said = f"COALESCE(json_extract({_ABOUT}, '$.date'), CAST(year AS TEXT))"
        each = " OR ".join([f"date_fits({said}, ?, ?)"] * len(condition.values))
        return f"({each})", [mark for value in condition.values for mark in (operator, value)]
    if name in _LISTS:
        each = f"SELECT 1 FROM json_each({_ABOUT}, '$.{_LISTS[name]}') AS each WHERE fits(each.value, ?)"  # noqa: S608
        return f"EXISTS ({each})", [_wanted(condition)]
    if name == "kind":
        return f"fits(COALESCE(json_extract({_ABOUT}, '$.kind'), '{NARRATIVE}'), ?)", [_wanted(condition)]
    if name in ("journal", "doi", "pmid", "language", "grade"):
        return f"fits(json_extract({_ABOUT}, '$.{name}'), ?)", [_wanted(condition)]
    said = "COALESCE(NULLIF(document, ''), id)" if name == "document" else name
    return f"fits({said}, ?)", [_wanted(condition)]


def _wanted(condition: FilterCondition) -> str:
    """The values as they are compared, in a text; a kind of evidence stands for its publication types."""
    if condition.field == "language":
        return json.dumps(["language", [language_code(value) for value in condition.values]])
    said = [plain_doi(each) or each for each in condition.values] if condition.field == "doi" else condition.values
    plain = [fold(value) for value in said]
    if condition.field == "type":
        plain = [each for value in plain for each in (value, *KINDS.get(value, ()))]
    return json.dumps([condition.field, plain])


@lru_cache(maxsize=100)
def _read(wanted: str) -> tuple[str, frozenset[str], re.Pattern[str] | None]:
    field, values = json.loads(wanted)
    patterns = [_pattern(value) for value in values if "*" in value]
    exact: Sequence[str] = [value for value in values if "*" not in value]
    return field, frozenset(exact), re.compile("|".join(patterns), re.DOTALL) if patterns else None


def _pattern(value: str) -> str:
    """A pattern in which only * is special; runs of it are one, so that none takes long."""
    return ".*".join(map(re.escape, re.sub(r"\*+", "*", value).split("*")))
