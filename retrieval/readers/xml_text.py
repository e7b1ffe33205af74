"""Text of XML elements, as MEDLINE and JATS write it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from xml.etree.ElementTree import Element

from medagent.retrieval.bibliography import iso_date

LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
GAPS = {"break", "td", "th"}
_YEAR = re.compile(r"(?<!\d)(?:1[89]|20)\d\d(?!\d)")
_EXPONENT = re.compile(r"\s*[-+−–]?\d")
_BLOCKS = {"p", "title", "list-item", "disp-quote", "caption", "label", "sec", "list"}
# References whose text is no word: "1", "[3,4]", "a", "*". Without the reference they say nothing.
_MARK = re.compile(r"^[\W\d_]*(?:[a-z][\W\d_]*)?$", re.IGNORECASE)
_MARKED_BY_NUMBER = ("bibr", "fn", "table-fn", "aff", "corresp", "author-notes", "")


def local(element: Element | None) -> str:
    """The element's name without its namespace."""
    return "" if element is None or not isinstance(element.tag, str) else element.tag.rpartition("}")[2]


def without_namespaces(article: Element) -> None:
    """Name the elements of an article without namespaces."""
    for node in article.iter():
        if isinstance(node.tag, str):
            node.tag = local(node)


def text_of(element: Element | None) -> str:
    """All text of an element in a line."""
    if element is None:
        return ""
    found = ""
    for node in _with_tails(element):
        found += node if isinstance(node, str) else _raised(node, found) + (" " if local(node) in GAPS else "")
    return " ".join(found.split())


def running_text(element: Element, silent: Collection[str]) -> str:
    """The text of an element, a line per block, without `silent` elements and marks; references in words stay."""
    lines = [""]

    def walk(node: Element) -> None:
        is_mark = node.tag == "xref" and node.get("ref-type", "") in _MARKED_BY_NUMBER and _MARK.match(text_of(node))
        if node.tag in silent or is_mark:
            return
        if node.tag in _BLOCKS:
            lines.append("")
        lines[-1] += _raised(node, lines[-1]) + (" " if node.tag in GAPS else "") + (node.text or "")
        for child in node:
            walk(child)
            lines[-1] += child.tail or ""
        if node.tag in _BLOCKS:
            lines.append("")

    walk(element)
    cleaned = (re.sub(r"\s*\[[\s,–-]*\]|\s*\([\s,;–-]*\)", "", " ".join(line.split())) for line in lines)
    return "\n".join(line for line in cleaned if line)


def _with_tails(element: Element) -> Iterator[Element | str]:
    """The element and its descendants, each followed by its text, in reading order."""
    yield element
    yield element.text or ""
    for child in element:
        yield from _with_tails(child)
        yield child.tail or ""


def _raised(node: Element, before: str) -> str:
    """A circumflex before an exponent: ten to the sixth must not read as 106."""
    exponent = local(node) == "sup" and _EXPONENT.match(node.text or "") and before.rstrip()[-1:].isdigit()
    return "^" if exponent else ""


def year_of(dated: Element | None) -> int | None:
    """The year of a date: its own element, or the first year in what else stands there."""
    if dated is None:
        return None
    texts = [text_of(part) for part in dated if local(part).lower() in ("year", "medlinedate")]
    match = _YEAR.search(" ".join((*texts, dated.get("iso-8601-date", ""), dated.text or "")))
    return int(match.group()) if match else None


def date_of(dated: Element | None) -> str:
    """A date in ISO 8601, as far as it is known: 2021, 2021-03 or 2021-03-04."""
    if dated is None:
        return ""
    named = {local(part).lower(): text_of(part) for part in reversed(dated)}
    if not named.get("year"):
        return str(year_of(dated) or "")
    known = ("year", "month", "day") if named.get("month") else ("year",)
    return iso_date(" ".join(named.get(name, "") for name in known).strip())
