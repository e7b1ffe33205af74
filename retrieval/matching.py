"""A filter as a condition of SQL over an index's passages."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Sequence
from functools import lru_cache

from medagent.retrieval.bibliography import plain_doi
from medagent.retrieval.filters import (
    KINDS,
    Filter,
    FilterCondition,
    date_fits,
    folded,
    heading,
    language_code,
    language_codes,
)

Values = list[str | int]
_LISTS = {"type": "types", "author": "authors", "keyword": "keywords"}


def prepare(database: sqlite3.Connection) -> None:
    """Give a connection the functions that the conditions call."""
    database.create_function("fits", 2, lambda said, wanted: said is not None and fits(str(said), wanted))
    database.create_function("date_fits", 3, lambda said, *more: said is not None and date_fits(str(said), *more))


def clause_of(wanted: Filter, about: str) -> tuple[str, Values]:
    """The condition of a filter, and the values of its marks. `about` is the column of the bibliography."""
    clauses, values = ["1"], Values()
    for condition in wanted.conditions:
        some, own = _clause(condition, f"NULLIF({about}, '')")
        # Unknown counts as not fitting, so that its opposite holds.
        clauses.append(f"{'NOT ' if condition.operator == '!=' else ''}COALESCE({some}, 0)")
        values += own
    return " AND ".join(clauses), values


@lru_cache(maxsize=300_000)  # a corpus has few sources, types and keywords, and each many times
def fits(said: str, wanted: str) -> bool:
    """Whether a text is one of those wanted, which `_wanted` wrote."""
    field, exact, patterns = _read(wanted)
    if field == "language":
        return any(f",{code}," in language_codes(said) for code in exact)
    texts = {folded(said), heading(said)} if field == "keyword" else {folded(said)}
    return not texts.isdisjoint(exact) or (patterns is not None and any(map(patterns.fullmatch, texts)))


def _clause(condition: FilterCondition, about: str) -> tuple[str, Values]:
    name, operator = condition.field, condition.operator
    if name == "year":
        if operator in ("=", "!="):
            return f"year IN ({', '.join('?' * len(condition.values))})", [int(value) for value in condition.values]
        return f"year {operator} ?", [int(condition.values[0])]
    if name == "date":
        said = f"COALESCE(json_extract({about}, '$.date'), CAST(year AS TEXT))"
        each = " OR ".join([f"date_fits({said}, ?, ?)"] * len(condition.values))
        return f"({each})", [mark for value in condition.values for mark in (operator, value)]
    if name in _LISTS:
        each = f"SELECT 1 FROM json_each({about}, '$.{_LISTS[name]}') AS each WHERE fits(each.value, ?)"  # noqa: S608
        return f"EXISTS ({each})", [_wanted(condition)]
    if name in ("journal", "doi", "pmid", "language"):
        return f"fits(json_extract({about}, '$.{name}'), ?)", [_wanted(condition)]
    said = "COALESCE(NULLIF(document, ''), id)" if name == "document" else name
    return f"fits({said}, ?)", [_wanted(condition)]


def _wanted(condition: FilterCondition) -> str:
    """The values as they are compared, in a text; a kind of evidence stands for its publication types."""
    if condition.field == "language":
        return json.dumps(["language", [language_code(value) for value in condition.values]])
    said = map(plain_doi, condition.values) if condition.field == "doi" else condition.values
    plain = [folded(value) for value in said]
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
