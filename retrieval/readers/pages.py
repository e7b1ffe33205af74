"""HTML pages, by their main text (trafilatura), and Word files (python-docx). Headings begin sections."""

from __future__ import annotations

import io
import logging
import re
import zipfile
from collections.abc import Iterator

import docx
import trafilatura
from docx.opc.exceptions import PackageNotFoundError
from docx.table import Table
from docx.text.paragraph import Paragraph
from lxml import etree
from trafilatura.settings import Document as TrafilaturaDocument

from medagent.retrieval.bibliography import year_in
from medagent.retrieval.chunking import Document, Section
from medagent.retrieval.readers.base import Item, OpenFile, UnusableFileError, table_lines, usable
from medagent.retrieval.readers.html_tree import CHARSET, prepared
from medagent.retrieval.readers.text import expand_ligatures, title_from_name

_LEVEL = re.compile(r"(?:Heading|Überschrift|Titre|Título) (\d)")
# It tells in the log of every page that has little text; what has none is reported here.
logging.getLogger("trafilatura").setLevel(logging.CRITICAL)


def read_html(file: OpenFile) -> Iterator[Item]:
    """One document of a page's main text: menus, banners and footers are left out, tables kept."""
    tree = prepared(file.text(declared=CHARSET))
    made = tree is not None and trafilatura.bare_extraction(
        tree, include_comments=False, include_tables=True, favor_recall=True, with_metadata=True
    )
    if not isinstance(made, TrafilaturaDocument) or made.body is None:
        raise UnusableFileError("has no main text")
    title = expand_ligatures(str(made.title or "")).strip() or title_from_name(file.name)
    sections, source = _sections_of(made.body, title), str(made.sitename or file.name)
    found = Document(title, sections, source, year=year_in(made.date), name=file.name)
    yield usable(found, file.name, "has no main text")


def _sections_of(body: etree._Element, title: str) -> tuple[Section, ...]:
    """Sections by the headings of trafilatura's tree, "Medicines > First line"; the title is none."""
    sections: list[tuple[str, list[str]]] = [("", [])]
    above: list[tuple[str, str]] = []  # level and words of the headings that a section stands under
    for node in body.iter("head", "p", "item", "table", "quote", "code"):
        if any(outer.tag in ("p", "item", "table", "quote") for outer in node.iterancestors()):
            continue
        if node.tag == "table":
            rows = [[" ".join(_lines(cell)) for cell in row.iter("cell")] for row in node.iter("row")]
            first = next(node.iter("row"), ())
            sections[-1][1].extend(table_lines(rows, named=any(cell.get("role") == "head" for cell in first)))
        elif node.tag == "head":
            text, level = " ".join(_lines(node)), node.get("rend", "h2")
            if text and text != title:
                above = [*((each, words) for each, words in above if each < level), (level, text)]
                sections.append((" > ".join(words for _, words in above), []))
        else:
            sections[-1][1].extend(_lines(node))
    return tuple(Section(heading, "\n".join(lines)) for heading, lines in sections if lines)


def _lines(node: etree._Element) -> list[str]:
    """The text of an element: a line for each item of lists within it, and where lines are broken twice."""
    parts: list[str] = []

    def walk(part: etree._Element) -> None:
        if part.tag == "lb":
            parts.append("\r")
        if part.tag in ("item", "p", "quote") and part is not node:
            parts.append("\n")
        parts.append(" ".join((part.text or "").split("\n")))
        for child in part:
            walk(child)
            if child.tag in ("item", "list", "p", "quote"):
                parts.append("\n")
            parts.append(" ".join((child.tail or "").split("\n")))

    walk(node)
    text = re.sub(r"\r\s*\r[\s\r]*", "\n", expand_ligatures("".join(parts)))
    return [line for each in text.split("\n") if (line := " ".join(each.split()))]


def read_docx(file: OpenFile) -> Iterator[Item]:
    """One document of a Word file, tables row by row."""
    try:
        word = docx.Document(io.BytesIO(file.whole()))
    except (PackageNotFoundError, KeyError, ValueError, zipfile.BadZipFile, etree.XMLSyntaxError) as error:
        raise UnusableFileError(
            f"is no readable Word file ({type(error).__name__}: {error}); is it encrypted?"
        ) from error
    title, sections = str(word.core_properties.title or "").strip(), [("", list[str]())]
    headings: list[str] = []
    for block in word.iter_inner_content():
        if isinstance(block, Table):
            rows = [[" ".join(cell.text.split()) for cell in row.cells] for row in block.rows]
            sections[-1][1].extend(table_lines(rows))
            continue
        assert isinstance(block, Paragraph)
        text, style = " ".join(block.text.split()), str(block.style.name if block.style is not None else "")
        level = _LEVEL.match(style)
        if not text:
            continue
        if style in ("Title", "Titel") and not title:
            title = text
        elif level:
            headings = [*headings[: int(level[1]) - 1], text]
            sections.append((" > ".join(headings), []))
        elif style not in ("Title", "Titel"):
            sections[-1][1].append(text)
    title = title or title_from_name(file.name)
    kept = tuple(Section(heading, "\n".join(lines)) for heading, lines in sections if lines)
    modified = word.core_properties.modified
    year = modified.year if modified and modified.year > 1990 else None
    yield usable(Document(title, kept, file.name, year=year, name=file.name), file.name, "has no text")
