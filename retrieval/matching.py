"""A filter as a condition of SQL over an index's passages."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Sequence

from retrieval.bibliography import plain_doi
from retrieval.filters import KINDS, Filter, FilterCondition, date_fits, folded, heading, language_code, language_codes

Values = list[str | int]
_LISTS = {"type": "types", "author": "authors", "keyword": "keywords"}


def prepare(database: sqlite3.Connection) -> None:
    """Give a connection the functions that the conditions call."""
    for function in (folded, heading, language_codes):
        database.create_function(function.__name__, 1, _of_text(function), deterministic=True)
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


def _clause(condition: FilterCondition, about: str) -> tuple[str, Values]:
    name, operator = condition.field, condition.operator
    if name == "year":
        if operator in ("=", "!="):
            return f"year IN ({_marks(condition.values)})", [int(value) for value in condition.values]
        return f"year {operator} ?", [int(condition.values[0])]
    if name == "date":
        said = f"COALESCE(json_extract({about}, '$.date'), CAST(year AS TEXT))"
        each = " OR ".join([f"date_fits({said}, ?, ?)"] * len(condition.values))
        return f"({each})", [mark for value in condition.values for mark in (operator, value)]
    if name in _LISTS:
        fits, values = _fits("folded(each.value)", _wanted(condition))
        if name == "keyword":
            subheaded, more = _fits("heading(each.value)", _wanted(condition))
            fits, values = f"({fits} OR {subheaded})", values + more
        each = f"SELECT 1 FROM json_each({about}, '$.{_LISTS[name]}') AS each WHERE {fits}"  # noqa: S608 (own names)
        return f"EXISTS ({each})", values
    if name == "language":
        codes = [f"*,{language_code(value)},*" for value in condition.values]
        return _fits(f"language_codes(json_extract({about}, '$.language'))", codes)
    if name in ("journal", "doi", "pmid"):
        return _fits(f"folded(json_extract({about}, '$.{name}'))", _wanted(condition))
    if name == "document":
        return _fits("folded(COALESCE(NULLIF(document, ''), id))", _wanted(condition))
    return _fits(f"folded({name})", _wanted(condition))


def _wanted(condition: FilterCondition) -> list[str]:
    """The values as they are compared; a kind of evidence stands for its publication types."""
    said = map(plain_doi, condition.values) if condition.field == "doi" else condition.values
    plain = [folded(value) for value in said]
    if condition.field != "type":
        return plain
    return [each for value in plain for each in (value, *KINDS.get(value, ()))]


def _fits(said: str, values: Sequence[str]) -> tuple[str, Values]:
    exact = list(dict.fromkeys(value for value in values if "*" not in value))
    patterns = list(dict.fromkeys(_glob(value) for value in values if "*" in value))
    some = [f"{said} IN ({_marks(exact)})"] if exact else []
    some += [f"{said} GLOB ?"] * len(patterns)
    return f"({' OR '.join(some)})", [*exact, *patterns]


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _glob(value: str) -> str:
    """A GLOB pattern in which only * is special."""
    return re.sub(r"[?\[]", lambda found: f"[{found[0]}]", value)


def _of_text(function: Callable[[str], str]) -> Callable[[object], str | None]:
    return lambda value: None if value is None else function(str(value))
