"""Trees of XML articles and their text: marks, formulas and struck-out words are settled here for every source."""

import re
from collections import Counter
from collections.abc import Collection, Mapping
from xml.etree.ElementTree import Element

from medagent.retrieval.bibliography import iso_date
from medagent.retrieval.readers.marks import superscript

LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_GAPS = {"break", "td", "th"}
_YEAR = re.compile(r"(?<!\d)(?:1[89]|20)\d\d(?!\d)")
_BLOCKS = {"p", "title", "list-item", "disp-quote", "caption", "label", "sec", "list", "def-item", "term"}
# References whose text is no word: "1", "[3,4]", "a", "*". Without the reference they say nothing.
_REFERENCE = re.compile(r"^[\W\d_]*(?:[a-z][\W\d_]*)?$", re.IGNORECASE)
_MARKED_BY_NUMBER = ("bibr", "fn", "table-fn", "aff", "corresp", "author-notes", "")
# What stands for a mark, the end of a line, and the end of a label, until all of a text is known. XML holds none.
_MARK, _LINE, _LABELLED = "\x00", "\x01", "\x02"
_BETWEEN = r"[\s,;\u2010-\u2015\u2212-]*"  # what stands between marks
_RUN = rf"{_MARK}(?:{_BETWEEN}{_MARK})*"
_MARKS = re.compile(
    rf"\s*[\[(]{_BETWEEN}{_RUN}{_BETWEEN}[\])]|(?<=[\[(])\s*{_RUN}[\s,;]*|[\s,;]*{_RUN}(?=\s*[\])])|\s*{_RUN}"
)
_EMPTY = re.compile(r"\s*\[[\s,–-]*\]|\s*\([\s,;–-]*\)")
_ONLY_MARKS = re.compile(rf"[\s()\[\]]*{_BETWEEN}{_RUN}{_BETWEEN}[\s()\[\]]*")
_STRUCK = re.compile(r"line-through|strike|^del$", re.IGNORECASE)
_STYLES = ("style", "styleCode", "style-type", "rend", "rendition", "content-type")


def local(element: Element | None) -> str:
    """The element's name without its namespace."""
    return "" if element is None or not isinstance(element.tag, str) else element.tag.rpartition("}")[2]


def prepare(article: Element, names: Mapping[str, str]) -> Counter[str]:
    """Make a tree ready in place; counts what was left out: "struck-out text", "formula".

    Elements get their names in JATS, by `names` and without namespaces. Formulas within a line become text.
    """
    left_out: Counter[str] = Counter()
    waiting = [article]
    while waiting:
        node = waiting.pop()
        node.tag = names.get(local(node), local(node))
        struck = node.tag in ("strike", "del", "s") or any(_STRUCK.search(node.get(name, "")) for name in _STYLES)
        only_tex = node.tag == "inline-formula" and node.find(".//{*}math") is None
        if struck or node.tag == "disp-formula" or (only_tex and node.find(".//{*}tex-math") is not None):
            left_out["struck-out text" if struck else "formula"] += any(text.strip() for text in node.itertext())
            node.text, node[:] = None, []
        elif node.tag == "tex-math":  # it stands beside the same formula in MathML
            node.text = None
        elif node.tag == "math":
            node.text, node[:] = _formula(node), []
        waiting += node
    return left_out


def _formula(node: Element) -> str:
    """MathML in a line: "x≥5", "10^9", "(a+b)/c"."""
    tag = local(node)
    if tag in ("annotation", "annotation-xml"):
        return ""
    parts = [_formula(child) for child in node]
    if tag == "mfrac":
        parts = [part if re.fullmatch(r"[\w.,]*", part) else f"({part})" for part in parts]
    if tag == "msubsup":
        parts = ["".join(parts[:2]), *parts[2:]]
    text = (node.text or "") if tag == "mtext" else (node.text or "").strip(" \t\r\n\u2061\u2062")
    between = {"mfrac": "/", "msup": "^", "msubsup": "^"}.get(tag, "")
    return {"msqrt": "√", "mspace": " "}.get(tag, "") + text + between.join(parts)


def text_of(element: Element | None) -> str:
    """All text of an element in a line, without marks; its footnotes follow in brackets."""
    if element is None:
        return ""
    if not len(element):
        return " ".join((element.text or "").split())
    text, notes = _flat(element, ())
    return " ".join([*text.replace(_LINE, " ").split(), *(f"({note})" for note in notes)])


def running_text(element: Element, silent: Collection[str]) -> str:
    """The text of an element, a line per block, without `silent` elements and marks; footnotes are the last lines."""
    text, notes = _flat(element, silent)
    lines = [_EMPTY.sub("", " ".join(line.split())) for line in text.split(_LINE)]
    return "\n".join(line for line in (*lines, *notes) if line)


def _flat(element: Element, silent: Collection[str]) -> tuple[str, list[str]]:
    """The text of an element with `_LINE` around its blocks, and its footnotes."""
    pieces: list[str] = []
    notes: list[str] = []
    last = ""  # the last piece with words

    def add(text: str | None) -> None:
        nonlocal last
        if text:
            pieces.append(text)
            last = text if text.strip() else last

    def walk(node: Element) -> None:
        if node.tag in silent:
            return
        if node is not element and node.tag == "fn":
            notes.append(text_of(node))
            return
        marks = node.tag == "xref" and node.get("ref-type", "") in _MARKED_BY_NUMBER
        if marks and _REFERENCE.match("".join(node.itertext()).strip()):
            pieces.append(_MARK)
            return
        start, block = len(pieces), node.tag in _BLOCKS
        raised, exponent = "".join(node.itertext()).strip() if node.tag == "sup" else "", False
        if raised:
            added = superscript(raised, pieces[-1] if pieces and pieces[-1] else last, node.tail or "")
            if not added or added in ("°", f" {raised}"):
                pieces.append(added or _MARK)
                return
            exponent = added != raised
        pieces.append(_LINE if block else " " if node.tag in _GAPS else "^" if exponent else "")
        add(node.text)
        for child in node:
            walk(child)
            add(child.tail)
        if block:
            pieces.append({"label": f"{_LABELLED} ", "term": f"{_LABELLED}: "}.get(node.tag, _LINE))
        elif node.tag == "sup" and _ONLY_MARKS.fullmatch("".join(pieces[start + 1 :])):
            pieces[start:] = [_MARK]

    walk(element)
    text = "".join(pieces)
    if _LABELLED in text:
        text = re.sub(rf"{_LABELLED}([ :]+)[\s{_LINE}]*", r"\1", text)
    return _EMPTY.sub("", _MARKS.sub("", text)) if _MARK in text else text, notes


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
