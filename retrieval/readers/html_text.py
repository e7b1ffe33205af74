"""Trees of HTML to lines and sections as their reader sees them, and fragments of HTML to plain text."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from html import escape, unescape
from html.entities import html5

from lxml import etree, html
from lxml.html import HtmlElement, defs

from medagent.retrieval.bibliography import Bibliography, year_in
from medagent.retrieval.chunking import Document, Section
from medagent.retrieval.readers.base import Item, left_out_of, table_lines, usable
from medagent.retrieval.readers.html_tree import BLOCKS, cells_of, prepare, strikes_as_del
from medagent.retrieval.readers.marks import expand_ligatures
from medagent.retrieval.readers.text import title_from_name
from medagent.retrieval.readers.years import printed_year

PARSER = html.HTMLParser(huge_tree=True)  # pictures may stand in the text
_TOP = 2_000  # characters at the head of a document that may state its year

_NAMES = "|".join([*(defs.tags | BLOCKS), "template", r"jats:[\w-]+"])
_OPENED = re.compile("<[/A-Za-z!]")  # quick to find
_VALUE = r"""(?:"[^"]*"|'[^']*'|[^\s"'<>]+)"""
# Known tags only, with attributes that have values: "p <q and q> 3" and "<5 mg" are text.
_TAG = re.compile(rf"(</?(?:{_NAMES})(?:\s+[\w:.-]+\s*=\s*{_VALUE}|\s+hidden)*\s*/?>|<!--.*?-->)", re.I | re.S)
_BLOCK = re.compile(rf"<(?:{'|'.join(BLOCKS)}|br|jats:[\w-]+)\b", re.I)
_ENTITY = re.compile(r"&(?:#\d{1,7}|#x[\da-f]{1,6}|[a-z]\w{1,31});", re.I)


def sections_of(tree: etree._Element, title: str = "") -> tuple[Section, ...]:
    """Sections by the headings of a tree, "Medicines > First line"; a heading that repeats the title is none."""
    sections: list[tuple[str, list[str]]] = [("", [])]
    above: list[tuple[str, str]] = []  # tag and words of the headings that a section stands under
    for tag, line in lines_of(tree):
        if not tag:
            sections[-1][1].append(line)
        elif line != title:
            above = [*((each, words) for each, words in above if each < tag), (tag, line)]
            sections.append((" > ".join(words for _, words in above), []))
    return tuple(Section(heading, "\n".join(lines)) for heading, lines in sections if lines)


def document_of(
    name: str, title: str, trees: Iterable[HtmlElement], left_out: Counter[str], about: Bibliography, source: str = ""
) -> Iterator[Item]:
    """The document of a file's trees, with the year that is in `about` or printed, and what was left out."""
    title = title or title_from_name(name)
    sections = tuple(section for tree in trees for section in sections_of(tree, title))
    year = year_in(about.date) or printed_year("\n".join(each.text for each in sections)[:_TOP])
    yield usable(Document(title, sections, source or name, year=year, name=name, about=about), name, "has no text")
    yield from left_out_of(name, left_out)


def plain_text(fragment: str, left_out: Counter[str] | None = None) -> str:
    """The text of a field that may hold HTML: a line per block, struck-out text left out; other text is unchanged.

    >>> plain_text("p &lt; 0.05 at 10<sup>9</sup>/L, <del>9</del> <5 mg")
    'p < 0.05 at 10^9/L, <5 mg'
    """
    for _ in range(2):  # some exports escape what is escaped already
        if _OPENED.search(fragment) and _TAG.search(fragment):
            fragment = _without_tags(fragment, Counter() if left_out is None else left_out)
        elif "&" in fragment:
            fragment = _ENTITY.sub(_character, fragment)
        else:
            break
    return fragment


def _character(entity: re.Match[str]) -> str:
    known = entity[0][1] == "#" or entity[0][1:] in html5
    return unescape(entity[0]) if known else entity[0]


def without_entities(text: str) -> str:
    """Marked-up text with its characters in place of entities, but for those that XML needs."""
    return _ENTITY.sub(lambda found: escape(_character(found), quote=False), text)


def _without_tags(fragment: str, left_out: Counter[str]) -> str:
    pieces = _TAG.split(fragment)
    pieces[::2] = [escape(_ENTITY.sub(_character, text), quote=False) for text in pieces[::2]]
    if not _BLOCK.search(fragment):  # then its line ends are meant
        pieces[::2] = [text.replace("\n", "<br><br>") for text in pieces[::2]]
    whole = re.sub(r"(</?)jats:", r"\1", re.sub(r"(</?)jats:title\b", r"\1h4", "".join(pieces), flags=re.I), flags=re.I)
    tree = html.fragment_fromstring(strikes_as_del(whole), create_parent="div")
    left_out += prepare(tree)
    return "\n".join(line for _, line in lines_of(tree))


def lines_of(node: etree._Element) -> Iterator[tuple[str, str]]:
    """A line for each block and where lines are broken twice, with the tag of a heading; a line per row of a table."""
    parts: list[str] = []

    def flushed(tag: str = "") -> Iterator[tuple[str, str]]:
        text = re.sub(r"\r\s*\r[\s\r]*", "\n", expand_ligatures("".join(parts)))
        parts.clear()
        for each in text.split("\n"):
            if line := " ".join(each.split()):
                yield tag, line

    def walk(part: etree._Element, within: bool) -> Iterator[tuple[str, str]]:
        if not isinstance(part.tag, str):
            return
        if part.tag == "tr":  # of a table that lays out a page
            yield from flushed()
            cells = (" ".join(line for _, line in lines_of(cell)) for cell in cells_of(part))
            yield from (("", line) for line in table_lines([list(cells)], named=False) if line)
            return
        if part.tag in BLOCKS:
            yield from flushed()
        parts.append("\r" if part.tag == "br" else " ".join((part.text or part.get("alt") or "").split("\n")))
        held = within or part.tag in ("p", "li", "dd", "blockquote", "table")
        for child in part:
            yield from walk(child, held)
            parts.append(" ".join((child.tail or "").split("\n")))
        if part.tag in BLOCKS:
            yield from flushed("" if within or not re.fullmatch("h[1-6]", part.tag) else part.tag)

    yield from walk(node, False)
    yield from flushed()
