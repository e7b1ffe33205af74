"""HTML pages, by their main text (trafilatura), and Word files (python-docx). Headings begin sections."""

from __future__ import annotations

import io
import logging
import re
import zipfile
from collections import Counter
from collections.abc import Iterator

import docx
import trafilatura
from docx.opc.exceptions import PackageNotFoundError
from docx.table import Table
from docx.text.paragraph import Paragraph
from lxml import etree
from trafilatura.htmlprocessing import convert_to_html
from trafilatura.settings import Document as TrafilaturaDocument
from trafilatura.utils import load_html

from medagent.retrieval.bibliography import year_in
from medagent.retrieval.chunking import Document, Section
from medagent.retrieval.readers.base import Item, OpenFile, UnusableFileError, left_out_of, table_lines, usable
from medagent.retrieval.readers.html_text import sections_of
from medagent.retrieval.readers.html_tree import CHARSET, prepare
from medagent.retrieval.readers.text import expand_ligatures, title_from_name

_LEVEL = re.compile(r"(?:Heading|Überschrift|Titre|Título) (\d)")
# It tells in the log of every page that has little text; what has none is reported here.
logging.getLogger("trafilatura").setLevel(logging.CRITICAL)


def read_html(file: OpenFile) -> Iterator[Item]:
    """One document of a page's main text: menus, banners and footers are left out, tables kept."""
    tree = load_html(file.text(declared=CHARSET))
    left_out = Counter[str]() if tree is None else prepare(tree)
    made = tree is not None and trafilatura.bare_extraction(
        tree, include_comments=False, include_tables=True, favor_recall=True, with_metadata=True
    )
    if not isinstance(made, TrafilaturaDocument) or made.body is None:
        raise UnusableFileError("has no main text")
    title = expand_ligatures(str(made.title or "")).strip() or title_from_name(file.name)
    sections, source = sections_of(convert_to_html(made.body), title), str(made.sitename or file.name)
    found = Document(title, sections, source, year=year_in(made.date), name=file.name)
    yield usable(found, file.name, "has no main text")
    yield from left_out_of(file.name, left_out)


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
