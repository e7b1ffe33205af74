"""Years of publication that a document states. A date in the properties of a file is none."""

import re

from lxml import etree

from medagent.retrieval.bibliography import iso_date

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
