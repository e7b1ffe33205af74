"""The year and the date that a text names, as rows, references and documents write them."""

from __future__ import annotations

import math
import re
from datetime import date
from typing import Any

_YEAR = re.compile(r"(?<!\d)(?:1[5-9]|20)\d\d(?!\d)")


def year_in(value: Any) -> int | None:
    """The first year from 1500 to 2099 in a value; None where it names none ("n.d.", NaN).

    >>> [year_in(value) for value in ("c2019", 2018.0, "12/05/2018", "n.d.", float("nan"), "20180512")]
    [2019, 2018, 2018, None, None, 2018]
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    text = str(value)
    found = _YEAR.search(text) or re.match(r"((?:1[5-9]|20)\d\d)(?:0[1-9]|1[0-2])(?:[0-3]\d)?$", text.strip())
    return int(found[0][:4]) if found else None


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_NAME = r"(?P<name>[A-Za-z]{3,})\.?"
_DATES = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?P<year>\d{4})[-/. ](?P<month>\d{1,2})(?:[-/. ](?P<day>\d{1,2}))?(?!\d)",
        r"(?P<year>(?:1[5-9]|20)\d\d)(?P<month>\d\d)(?P<day>\d\d)?(?!\d)",
        r"(?P<a>\d{1,2})[-/. ](?P<b>\d{1,2})[-/. ](?P<year>\d{4})(?!\d)",
        rf"(?P<year>\d{{4}})\W+{_NAME}(?:\W+(?P<day>\d{{1,2}})(?!\d))?",
        rf"(?:(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\W+)?{_NAME}\W+(?P<year>\d{{4}})(?!\d)",
        rf"{_NAME}\W+(?P<day>\d{{1,2}})(?:st|nd|rd|th)?,?\W+(?P<year>\d{{4}})(?!\d)",
    )
)


def iso_date(value: Any) -> str:
    """The date of a text in ISO 8601, as far as it is said and plain; empty where there is no year.

    >>> [iso_date(text) for text in ("15/03/2021", "2021-3-5", "2021 Mar-Apr", "March 5, 2021", "03/04/2021", "n.d.")]
    ['2021-03-15', '2021-03-05', '2021-03', '2021-03-05', '2021', '']
    """
    year = year_in(value)
    text = str(value).strip()
    for pattern in _DATES if year is not None else ():
        if found := pattern.match(text):
            return _as_far_as_known(found.groupdict())
    return "" if year is None else str(year)


def _as_far_as_known(said: dict[str, str | None]) -> str:
    year, day, month = int(said["year"] or 0), said.get("day"), int(said.get("month") or 0)
    if name := said.get("name"):
        month = _MONTHS.index(name[:3].lower()) + 1 if name[:3].lower() in _MONTHS else 0
    if said.get("a"):  # day or month first: told only by what can be no month
        first, second = int(said["a"] or 0), int(said["b"] or 0)
        if first > 12 or first == second:
            day, month = str(first), second
        elif second > 12:
            day, month = str(second), first
    if not 1 <= month <= 12:
        return f"{year:04}"
    try:
        return date(year, month, int(day)).isoformat() if day else f"{year:04}-{month:02}"
    except ValueError:
        return f"{year:04}-{month:02}"
