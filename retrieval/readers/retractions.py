"""Lists of retracted articles, as Retraction Watch publishes them: they keep documents out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime

from medagent.retrieval.bibliography import plain_doi
from medagent.retrieval.readers.base import Item, Skipped, Withdrawn

_PMID = re.compile(r"(?<![\d.])0*([1-9]\d*)(?:\.0+)?(?![\d.])")
# Between two DOIs: a semicolon may stand within one.
_BETWEEN = re.compile(r"[;,|\s]+(?=(?:https?://|doi:\s*|10\.))", re.IGNORECASE)
_COLUMNS = ("originalpaperpubmedid", "originalpaperdoi", "retractionnature")


def is_list_of_retractions(header: Sequence[str] | str) -> bool:
    """Whether a table with these columns lists notices of retraction."""
    return not isinstance(header, str) and {column.strip().lower() for column in header}.issuperset(_COLUMNS)


def retractions(header: Sequence[str], rows: Iterable[tuple[int, list[str] | str]], name: str) -> Iterator[Item]:
    """A `Withdrawn` per row that tells of a retraction, unless a later one reinstates the article; others are counted.

    `rows` have their number, and stand for a row that cannot be read by why.
    """
    columns = [column.strip().lower() for column in header]
    found: list[tuple[str, list[list[str]], Withdrawn]] = []
    reinstated: dict[str, str] = {}
    others: Counter[str] = Counter()
    for number, row in rows:
        where = f"{name}, line {number}"
        if isinstance(row, str):
            yield Skipped(where, row)
            continue
        said = {column: cell.strip() for column, cell in zip(columns, row, strict=False)}
        pmid, doi, nature = (said.get(column, "") for column in _COLUMNS)
        pmids = [f"pmid:{each}" for each in _PMID.findall(pmid)]
        dois = [f"doi:{plain}" for each in _BETWEEN.split(doi) if (plain := plain_doi(each))]
        names = [*pmids, *dois]
        date = _iso_date(said.get("retractiondate", ""))
        if nature.lower() == "retraction" and names:
            reason = said.get("reason", "").strip("+; ").replace("+", "")
            when = f" on {date}" if date else ""
            reason = f"was retracted{when}{f' ({reason})' if reason else ''}"
            found.append((date, [pmids, dois], Withdrawn(where, tuple(names), "retracted", reason, listed=True)))
            continue
        if nature.lower() == "reinstatement":
            reinstated |= {each: max(date, reinstated.get(each, "")) for each in names}
        others[nature.lower() if names else "notice without PMID and DOI"] += 1
    for date, named, each in found:  # without a date, a retraction may be the later one
        if not date or not any(same and all(reinstated.get(one, "") >= date for one in same) for same in named):
            yield each
    if others:
        counted = ", ".join(f"{number} {nature}" for nature, number in others.most_common())
        yield Skipped(name, f"keeps no document out by {sum(others.values())} of its notices: {counted}")


def _iso_date(text: str) -> str:
    """The date of "1/31/2025 0:00", month first, or of "2025-01-31"; else empty."""
    for form in ("%m/%d/%Y", "%Y-%m-%d"):
        with suppress(ValueError):
            return datetime.strptime(text.split(" ")[0], form).date().isoformat()
    return ""
