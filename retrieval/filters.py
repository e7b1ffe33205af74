"""Which passages may be found: one grammar for the command line, HTTP, MCP, training data and answers.

    year>=2020 type=guideline language=en source=GARD,"Genetics Home Reference" keyword!=animals

Conditions are separated by spaces, and all must hold. Commas separate values of which one must hold. `=` compares
without case and accents, and a `*` in a value stands for anything. `!=` also keeps passages of which the field is
unknown; all other conditions leave them out.
"""

import re
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Literal

from babel import Locale
from babel.core import get_global

from medagent.lazy import packaged
from medagent.retrieval.bibliography import PASSAGE_KINDS
from medagent.retrieval.errors import RetrievalError
from medagent.retrieval.normalization import strip_accents

Operator = Literal[">=", "<=", "!=", "=", ">", "<"]
_WORDS = packaged("medagent.retrieval", "filters.yaml")
FIELDS: dict[str, str] = _WORDS["fields"]
KINDS: dict[str, list[str]] = _WORDS["kinds"]
_OTHER_NAMES: dict[str, str] = _WORDS["other_names"]
_ORDERED = ("year", "date")
_DATE = r"\d{4}(-\d{2}(-\d{2})?)?"
MAX_STARS = 5  # of a value
MAX_CONDITIONS, MAX_VALUES, MAX_PATTERNS = 50, 2000, 20  # of a filter; patterns are values with *
_CONDITION = re.compile(r"([^\s=<>!\"']+)\s*(>=|<=|!=|=|>|<)\s*")
_VALUE = re.compile(r"""\s*(?:"((?:[^"]|"")*)"|'([^']*)'|([^\s,"'][^\s,"]*))(?:\s*(,))?""")
EXAMPLE = "year>=2020 type=guideline language=en source=GARD"


@dataclass(frozen=True)
class FilterCondition:
    """A field, an operator, and values of which one must fit."""

    field: str
    operator: Operator
    values: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse what could filter nothing, or everything, by mistake."""
        if self.field not in FIELDS:
            raise RetrievalError(f"filter: found the field {self.field!r}, wanted one of {', '.join(FIELDS)}.")
        if not self.values or not all(value.strip() for value in self.values):
            raise RetrievalError(f"filter: {self.field}{self.operator} has an empty value. Write it as in: {EXAMPLE}")
        if self.operator not in ("=", "!=") and (self.field not in _ORDERED or len(self.values) > 1):
            raise RetrievalError(
                f"filter: found {self}, wanted {self.operator} with {' or '.join(_ORDERED)} and one value; other "
                "fields take = and !=."
            )
        if starred := [value for value in self.values if value.count("*") > MAX_STARS]:
            raise RetrievalError(f"filter: {starred[0][:80]!r} has more than {MAX_STARS} *; wanted fewer.")
        if self.field == "kind" and (wrong := [each for each in self.values if fold(each) not in PASSAGE_KINDS]):
            raise RetrievalError(f"filter: kind is compared with {wrong[0]!r}, wanted {', '.join(PASSAGE_KINDS)}.")
        for value in self.values if self.field in _ORDERED else ():
            if not (_is_date(value) if self.field == "date" else re.fullmatch(r"-?\d{1,9}", value)):
                wanted = "a date such as 2021-03" if self.field == "date" else "a year such as 2021"
                raise RetrievalError(f"filter: {self.field} is compared with {value!r}, wanted {wanted}.")

    def __str__(self) -> str:
        return f"{self.field}{self.operator}{','.join(map(_quoted, self.values))}"


@dataclass(frozen=True)
class Filter:
    """Conditions that all must hold; without any, everything may be found."""

    conditions: tuple[FilterCondition, ...] = ()

    def __post_init__(self) -> None:
        values = [value for condition in self.conditions for value in condition.values]
        patterns = sum("*" in value for value in values)
        found = (len(self.conditions), len(values), patterns)
        if any(a > b for a, b in zip(found, (MAX_CONDITIONS, MAX_VALUES, MAX_PATTERNS), strict=True)):
            raise RetrievalError(
                f"filter: found {found[0]} conditions with {found[1]} values, {found[2]} of them with *; wanted at "
                f"most {MAX_CONDITIONS}, {MAX_VALUES:,} and {MAX_PATTERNS}."
            )

    @property
    def empty(self) -> bool:
        """Whether everything may be found."""
        return not self.conditions

    @staticmethod
    def parse(text: str) -> "Filter":
        """The filter that a text describes; an empty text lets everything through.

        >>> str(Filter.parse("year >= 2020 source=WHO,'Genetics Home Reference'"))
        'year>=2020 source=WHO,"Genetics Home Reference"'

        Raises:
            RetrievalError: an unknown field, or something that is no condition.
        """
        found, position = [], 0
        while rest := text[position:].lstrip():
            position = len(text) - len(rest)
            begins = _CONDITION.match(text, position)
            if begins is None:
                raise RetrievalError(f"filter {text!r}: {rest!r} is no condition. Write it as in: {EXAMPLE}")
            values, position = _values(text, begins.end())
            found.append(FilterCondition(begins[1].lower(), begins[2], values))  # type: ignore[arg-type]
        return Filter(tuple(found))

    @staticmethod
    def of(sources: Sequence[str] = (), year_from: int | None = None, year_to: int | None = None) -> "Filter":
        """The filter of these sources and years, where they are given."""
        found = [FilterCondition("source", "=", tuple(sources))] if sources else []
        found += [FilterCondition("year", ">=", (str(year_from),))] if year_from is not None else []
        found += [FilterCondition("year", "<=", (str(year_to),))] if year_to is not None else []
        return Filter(tuple(found))

    def __and__(self, other: "Filter") -> "Filter":
        return Filter(tuple(dict.fromkeys((*self.conditions, *other.conditions))))

    def __str__(self) -> str:
        """As the grammar writes it; `parse` reads it back."""
        return " ".join(map(str, self.conditions))


NO_FILTER = Filter()


@lru_cache(maxsize=200_000)  # what filters compare are a few sources, types and keywords again and again
def fold(text: str) -> str:
    """A text as it is compared: without case, accents and hyphens."""
    plain = strip_accents(unicodedata.normalize("NFKC", text)).casefold().replace("’", "'")
    return " ".join(re.sub(r"[-_‐‑–]", " ", plain).split())


@lru_cache(maxsize=1000)
def language_code(text: str) -> str:
    """The shortest code of a language by a code (ISO 639, MEDLINE's), its English name or its own; else the text."""
    plain = fold(text)
    first = plain.split(" ")[0]
    found = _language_names().get(plain, first)
    return str(get_global("language_aliases").get(found, found))


@lru_cache(maxsize=1000)
def language_codes(text: str) -> str:
    """The codes of all languages that a text names, between commas: ",en,fr,"."""
    return f",{','.join(language_code(each) for each in re.split(r'[;,/&|]| and ', text) if each.strip())},"


@lru_cache(maxsize=1)
def _language_names() -> dict[str, str]:
    own = {fold(str(Locale(code).get_language_name())): code for code in _WORDS["own_names"].split()}
    return own | {fold(name): code for code, name in Locale("en").languages.items()} | _OTHER_NAMES


@lru_cache(maxsize=10_000)
def main_heading(text: str) -> str:
    """A keyword without MeSH's subheading and star, as it is compared."""
    return fold(text.partition("/")[0].strip("* "))


def date_fits(said: str, operator: str, wanted: str) -> bool:
    """Whether a date fits, as far as both say it; where that does not decide, it does not."""
    if not re.fullmatch(_DATE, said):
        said = said[:4] if re.match(r"\d{4}(?!\d)", said) else ""
    if not said:
        return False
    a, b = said[: len(wanted)], wanted[: len(said)]
    if a != b:
        return (a < b) if operator in ("<", "<=") else (a > b) if operator in (">", ">=") else False
    return len(said) >= len(wanted) and operator in ("=", "!=", "<=", ">=")


def _is_date(text: str) -> bool:
    with suppress(ValueError):
        return bool(re.fullmatch(_DATE, text) and date.fromisoformat(text + "-01-01"[len(text) - 4 :]))
    return False


def _values(text: str, position: int) -> tuple[tuple[str, ...], int]:
    """The values from a place on, and where they end."""
    found: list[str] = []
    while match := _VALUE.match(text, position):
        found.append(next(value for value in match.groups()[:3] if value is not None).replace('""', '"'))
        position = match.end()
        if match[4] is None:
            break
    else:
        found.append("")  # nothing follows the operator or the comma, which `FilterCondition` refuses
    return tuple(found), position


def _quoted(value: str) -> str:
    return value if re.fullmatch(r"[^\s,\"'][^\s,\"]*", value) else '"' + value.replace('"', '""') + '"'
