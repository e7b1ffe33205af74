"""Bibliographic data of a document: authors, journal, names, address, and the date that it states."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import date
from typing import Any

from lxml import etree

from medagent.lazy import packaged

NARRATIVE = "narrative"
PASSAGE_KINDS = ("recommendation", "boxed warning", "table", NARRATIVE)
_DOI = re.compile(r"^(?:https?://(?:dx\.)?doi\.org/|doi:\s*)", re.IGNORECASE)
_OTHER_NAMES: dict[str, list[str]] = packaged("medagent.retrieval", "field_names.yaml")["rows"]
_SEVERAL = ("authors", "types", "keywords", "notices")
_YEAR = re.compile(r"(?<!\d)(?:1[5-9]|20)\d\d(?!\d)")
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


@dataclass(frozen=True)
class Bibliography:
    """A document's bibliography; what is unknown is empty.

    `date` is ISO 8601 as far as it is known ("2021-03"). `doi` and `pmid` are without prefix. `types` are publication
    types, as PubMed names them. `notices` tell of errata and expressions of concern. `kind` is one of `PASSAGE_KINDS`,
    and `grade` the grades of evidence that are printed, between semicolons: both belong to a passage.
    """

    url: str = ""
    doi: str = ""
    pmid: str = ""
    authors: tuple[str, ...] = ()
    journal: str = ""
    date: str = ""
    types: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    language: str = ""
    notices: tuple[str, ...] = ()
    kind: str = NARRATIVE
    grade: str = ""

    def of_kind(self, kind: str, grade: str) -> "Bibliography":
        """The same with a kind and grades that were found, unless its source gave them."""
        given = (kind, grade) == (self.kind, self.grade) or self.kind != NARRATIVE
        return self if given else replace(self, kind=kind, grade=grade)

    @property
    def link(self) -> str:
        """An address that leads to the document: its own, or its DOI's or PubMed's; empty where none is known."""
        if self.url:
            return self.url
        if self.doi:
            return f"https://doi.org/{self.doi}"
        return f"https://pubmed.ncbi.nlm.nih.gov/{self.pmid}/" if self.pmid else ""

    def to_json(self) -> dict[str, Any]:
        """Plain data, without the fields that are empty, and without the kind of a narrative."""
        values = {each.name: said for each in fields(self) if (said := getattr(self, each.name)) != each.default}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @staticmethod
    def from_json(row: Mapping[str, Any]) -> "Bibliography":
        """The inverse of `to_json`; other fields of the row are left alone."""
        known: dict[str, Any] = {name: row[name] for name in NAMES if name in row}
        made: dict[str, Any] = {name: tuple(said) if isinstance(said, list) else said for name, said in known.items()}
        return Bibliography(**made)

    @staticmethod
    def of_row(row: Mapping[str, Any]) -> "Bibliography":
        """The bibliography of a user's row; texts split at semicolons, and only addresses of the web count."""
        found: dict[str, Any] = {}
        for name in NAMES:
            value = next((row[key] for key in (name, *_OTHER_NAMES.get(name, ())) if says(row.get(key))), None)
            if value is None:
                continue
            if name in _SEVERAL:
                parts = value if isinstance(value, list | tuple) else str(value).split(";")
                found[name] = tuple(text for part in parts if (text := _text(part)))
            else:
                found[name] = _text(value)
        found["doi"] = plain_doi(found.get("doi", ""))
        found["date"] = iso_date(found.get("date", ""))
        pmid = found.get("pmid", "").removesuffix(".0")  # a column with gaps holds floats
        found["pmid"] = pmid if pmid.isdecimal() else ""
        found["kind"] = found.get("kind", "").lower().replace("-", " ")
        if found["kind"] not in PASSAGE_KINDS:  # a word of the user's own
            found |= {"kind": NARRATIVE, "grade": ""}
        if not re.match(r"https?://", found.get("url", ""), re.IGNORECASE):
            found["url"] = ""
        return Bibliography(**found)


def plain_doi(text: str) -> str:
    """A DOI without an address before it, in lower case; empty where the text is none ("N/A")."""
    plain = _DOI.sub("", text.strip()).lower()
    return plain if plain.startswith("10.") else ""


NAMES = tuple(each.name for each in fields(Bibliography))


def says(value: Any) -> bool:
    """Whether a cell of a row holds something."""
    return bool(value) and value == value  # NaN is not itself


def _text(value: Any) -> str:
    return " ".join(str(value).encode("utf-8", "replace").decode("utf-8").split())


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


YEAR = r"((?:1[89]|20)\d\d)(?!\d)"
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DATE = (
    rf"(?:(?:\d\d?(?:st|nd|rd|th)?\s+)?{_MONTH},?\s+(?:\d\d?,\s*)?{YEAR}|\d\d?[./]\d\d?[./]{YEAR}"
    rf"|{YEAR}(?:-\d\d){{0,2}})"
)
BEGINS = r"(?:^|[|;.•·]|(?<=\d\d\d\d)\s)\s*"
# Statements of publication, the surest first. "Published in 2015, the trial ..." is none.
_PRINTED = (
    rf"{BEGINS}(?:first\s+)?(?:published(?:\s+online)?|publication date|date of (?:publication|issue)|issued"
    rf"|issue date)(?::\s*|\s+(?:on\s+|in\s+)?){_DATE}(?=\s*(?:$|[.;|)•·]\D|by\b))",
    rf"{BEGINS}(?:version|edition|v\.?)\s*\d+(?:\.\d+)*(?:\s*[,;:(|–-]\s*|\s+(?:of\s+)?)(?:date:\s*)?{_DATE}",
)
_METADATA = re.compile(
    r"citation_(?:publication_|online_)?date|article:published_time|(?:dc|dcterms)\.(?:date\.)?issued|datepublished"
    r"|prism\.publicationdate",
    re.IGNORECASE,
)
_LINKED = re.compile(r'"datePublished"\s*:\s*"([^"]+)"')  # in JSON-LD


def printed_year(text: str, *others: str) -> int | None:
    """The year of publication as a text states it; None where two differ. `others` are patterns of less sure ones."""
    for pattern in (*_PRINTED, *others):
        found = re.findall(pattern, text, re.IGNORECASE | re.MULTILINE)
        years = {int(year) for each in found for year in ([each] if isinstance(each, str) else each) if year}
        if years:
            return years.pop() if len(years) == 1 else None
    return None


def published(page: etree._Element) -> str:
    """The date of publication that the metadata of a page of HTML state, in ISO 8601; else an empty text."""
    for node in page.iter("meta", "time", "script"):
        name = node.get("name") or node.get("property") or node.get("itemprop") or ""
        linked = _LINKED.search(node.text or "") if node.tag == "script" else None
        if _METADATA.fullmatch(name) or linked:
            said = linked[1] if linked else node.get("content") or node.get("datetime")
            if date := iso_date(said):
                return date
    return ""
