"""A filter as a condition of SQL over an index's passages."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable

from retrieval.filters import KINDS, Filter, FilterCondition, folded, language_code

_ABOUT = "NULLIF({about}, '')"
_IN_ABOUT = {"journal": "journal", "language": "language", "doi": "doi", "pmid": "pmid"}
_LISTS = {"type": "types", "author": "authors", "keyword": "keywords"}


def prepare(database: sqlite3.Connection) -> None:
    """Give a connection the functions that the conditions call."""
    for name, function in (("folded", folded), ("language_code", language_code)):
        database.create_function(name, 1, _of_text(function), deterministic=True)


def clause_of(wanted: Filter, about: str) -> tuple[str, list[str | int]]:
    """The condition of a filter, and the values of its marks. `about` is the column of the bibliography."""
    clauses, values = ["1"], list[str | int]()
    for condition in wanted.conditions:
        some, own = _clause(condition, _ABOUT.format(about=about))
        # Unknown counts as not fitting, so that its opposite holds.
        clauses.append(f"{'NOT ' if condition.operator == '!=' else ''}COALESCE({some}, 0)")
        values += own
    return " AND ".join(clauses), values


def _clause(condition: FilterCondition, about: str) -> tuple[str, list[str | int]]:
    name = condition.field
    if name == "year":
        return _compared([("year", int(value)) for value in condition.values], condition)
    if name == "date":
        # As far as both say it: 2021-03 is compared with a day of its month by the month.
        said = f"COALESCE(json_extract({about}, '$.date'), CAST(year AS TEXT))"
        return _compared([(f"SUBSTR({said}, 1, {len(value)})", value) for value in condition.values], condition)
    if name in _LISTS:
        fits, values = _fits("folded(each.value)", _wanted(condition))
        each = f"SELECT 1 FROM json_each({about}, '$.{_LISTS[name]}') AS each WHERE {fits}"  # noqa: S608 (own names)
        return f"EXISTS ({each})", values
    if name == "language":
        return _fits(
            f"language_code(json_extract({about}, '$.language'))", [language_code(v) for v in condition.values]
        )
    if name in _IN_ABOUT:
        return _fits(f"folded(json_extract({about}, '$.{_IN_ABOUT[name]}'))", _wanted(condition))
    if name == "document":
        return _fits("folded(COALESCE(NULLIF(document, ''), id))", _wanted(condition))
    return _fits(f"folded({name})", _wanted(condition))


def _wanted(condition: FilterCondition) -> list[str]:
    """The values as they are compared; a kind of evidence stands for its publication types."""
    plain = [folded(value) for value in condition.values]
    if condition.field != "type":
        return plain
    return [each for value in plain for each in (value, *KINDS.get(value, ()))]


def _compared(
    pairs: list[tuple[str, int]] | list[tuple[str, str]], condition: FilterCondition
) -> tuple[str, list[str | int]]:
    operator = "=" if condition.operator == "!=" else condition.operator
    return "(" + " OR ".join(f"{said} {operator} ?" for said, _ in pairs) + ")", [value for _, value in pairs]


def _fits(said: str, values: list[str]) -> tuple[str, list[str | int]]:
    marks = [f"{said} GLOB ?" if "*" in value else f"{said} = ?" for value in values]
    return "(" + " OR ".join(marks) + ")", [_glob(value) if "*" in value else value for value in values]


def _glob(value: str) -> str:
    """A GLOB pattern in which only * is special."""
    return re.sub(r"[?\[]", lambda found: f"[{found[0]}]", value)


def _of_text(function: Callable[[str], str]) -> Callable[[object], str | None]:
    return lambda value: None if value is None else function(str(value))
