"""PDF by PDFium: each page is a section, so that a citation leads to the page.

Columns are read one after the other, tables row by row, and running headers and footers are left out. Scans without
text are skipped and reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing

import pypdfium2

from medagent.retrieval.chunking import Document, Section
from medagent.retrieval.passages import without_surrogates
from medagent.retrieval.readers.base import Item, OpenFile, Skipped
from medagent.retrieval.readers.pdf_lines import hyphenated_words
from medagent.retrieval.readers.pdf_running import without_running
from medagent.retrieval.readers.pdf_text import ReadPage, is_rubbish, read_page, title_on
from medagent.retrieval.readers.pdf_words import PlacedPage, placed_page
from medagent.retrieval.readers.text import title_of, without_ligatures

_YEAR = re.compile(r"(?:D:)?(1[89]\d\d|20\d\d)\d*")


def read_pdf(file: OpenFile) -> Iterator[Item]:
    """One document with one section per page."""
    raw = file.stream.read()
    try:
        document = pypdfium2.PdfDocument(raw)
    except pypdfium2.PdfiumError as error:
        if error.err_code == pypdfium2.raw.FPDF_ERR_PASSWORD:
            yield Skipped(file.name, "is encrypted; save it without a password")
        elif error.err_code == pypdfium2.raw.FPDF_ERR_SECURITY:
            yield Skipped(file.name, "is encrypted in a way that is not supported; save it without protection")
        else:
            yield Skipped(file.name, f"is no readable PDF ({type(error).__name__}: {error})")
        return
    with closing(document):
        count = len(document)
        claimed = " ".join(without_ligatures(_metadata(document, "Title")).split())
        year = _YEAR.match(_metadata(document, "CreationDate"))
        skipped: list[Skipped] = []
        pages = [read_page(page) for page in without_running(_pages(document, file.name, skipped))]
    yield from skipped
    hyphenated = hyphenated_words(line for page in pages for block in page.blocks for line in block.lines)
    sections = [
        Section(f"page {page.number}", text)
        for page in pages
        if (text := without_surrogates(page.text(hyphenated))).strip()
    ]
    if not sections:
        yield Skipped(
            file.name, f"has no text on its {count} pages; if they are scans, run text recognition (OCR) first"
        )
        return
    title = _title(claimed, pages) or title_of(file.name)
    yield Document(title, tuple(sections), file.name, year=int(year[1]) if year else None, name=file.name)


def _pages(document: pypdfium2.PdfDocument, name: str, skipped: list[Skipped]) -> Iterator[PlacedPage]:
    """The words of each page, one page in memory at a time; what of them cannot be read is noted."""
    for number in range(1, len(document) + 1):
        try:
            with closing(document[number - 1]) as page:
                placed = placed_page(page, number)
        except pypdfium2.PdfiumError as error:  # the other pages may be sound
            skipped.append(Skipped(f"{name}, page {number}", f"cannot be read ({type(error).__name__}: {error})"))
        else:
            yield placed


def _title(claimed: str, pages: list[ReadPage]) -> str:
    """The title of the metadata, unless it is rubbish; else what stands on the first page in the largest letters."""
    if claimed and not is_rubbish(claimed):
        return claimed
    return without_surrogates(title_on(pages[:3])) if pages and pages[0].number == 1 else ""


def _metadata(document: pypdfium2.PdfDocument, key: str) -> str:
    return without_surrogates(str(document.get_metadata_value(key) or "").replace("\x00", ""))
