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

from retrieval.chunking import Document, Section
from retrieval.readers.base import Item, OpenFile, Skipped
from retrieval.readers.retractions import why_left_out
from retrieval.readers.text import decoded, title_of
from retrieval.years import year_in

_LEVEL = re.compile(r"(?:Heading|Überschrift|Titre|Título) (\d)")
# It tells in the log of every page that has little text; what has none is reported here.
logging.getLogger("trafilatura").setLevel(logging.CRITICAL)


def read_html(file: OpenFile) -> Iterator[Item]:
    """One document of a page's main text: menus, banners and footers are left out, tables kept."""
    page = decoded(file)
    if isinstance(page, Skipped):
        yield page
        return
    made = trafilatura.bare_extraction(
        page, include_comments=False, include_tables=True, favor_recall=True, with_metadata=True
    )
    if not isinstance(made, TrafilaturaDocument) or made.body is None:
        yield Skipped(file.name, "has no main text")
        return
    title = str(made.title or "").strip() or title_of(file.name)
    if reason := why_left_out(title):
        yield Skipped(file.name, f"{reason}, by its title")
        return
    sections = _sections_of(made.body, title)
    if not sections:
        yield Skipped(file.name, "has no main text")
        return
    yield Document(title, sections, str(made.sitename or file.name), year=year_in(made.date), name=file.name)


def _sections_of(body: etree._Element, title: str) -> tuple[Section, ...]:
    """Sections by the headings of trafilatura's tree: elements head, p, list, item, row, cell and others."""
    sections: list[tuple[str, list[str]]] = [("", [])]
    for node in body.iter("head", "p", "item", "table", "quote", "code"):
        if any(above.tag in ("p", "item", "table", "quote") for above in node.iterancestors()):
            continue
        text = _text(node)
        if node.tag == "table":
            rows = [[_text(cell) for cell in row.iter("cell")] for row in node.iter("row")]
            sections[-1][1].extend(_rows([row for row in rows if any(row)]))
        elif node.tag == "head" and text != title:
            sections.append((text, []))
        elif text and node.tag != "head":
            sections[-1][1].append(text)
    return tuple(Section(heading, "\n".join(lines)) for heading, lines in sections if lines)


def _text(node: etree._Element) -> str:
    return " ".join("".join(node.itertext()).split())


def read_docx(file: OpenFile) -> Iterator[Item]:
    """One document of a Word file, tables row by row."""
    try:
        word = docx.Document(io.BytesIO(file.stream.read()))
    except (PackageNotFoundError, KeyError, ValueError, zipfile.BadZipFile, etree.XMLSyntaxError) as error:
        yield Skipped(file.name, f"is no readable Word file ({type(error).__name__}: {error}); is it encrypted?")
        return
    title, sections = str(word.core_properties.title or "").strip(), [("", list[str]())]
    headings: list[str] = []
    for block in word.iter_inner_content():
        if isinstance(block, Table):
            rows = [[" ".join(cell.text.split()) for cell in row.cells] for row in block.rows]
            sections[-1][1].extend(_rows(rows))
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
    title = title or title_of(file.name)
    if reason := why_left_out(title):
        yield Skipped(file.name, f"{reason}, by its title")
        return
    kept = tuple(Section(heading, "\n".join(lines)) for heading, lines in sections if lines)
    if not kept:
        yield Skipped(file.name, "has no text")
        return
    modified = word.core_properties.modified
    yield Document(
        title, kept, file.name, year=modified.year if modified and modified.year > 1990 else None, name=file.name
    )


def _rows(rows: list[list[str]]) -> list[str]:
    """A line for each row, its cells after the names of their columns."""
    if len(rows) < 2:
        return ["; ".join(row) for row in rows]
    names = rows[0]
    return [
        "; ".join(f"{name}: {cell}" if name else cell for name, cell in zip(names, row, strict=False))
        for row in rows[1:]
    ]
