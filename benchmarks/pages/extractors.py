"""Extractors for the labelled pages: the project's reader, and libraries by themselves.

Each gives a title, empty where it has none, and a text per page. Libraries give the title of the file's metadata.
pdfplumber, pdfminer.six and PyMuPDF are compared where they are installed.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

from lxml import html

from medagent.retrieval.chunking import Document
from medagent.retrieval.readers import OpenFile, read_file
from medagent.retrieval.readers.text import join_wrapped_lines

Extracted = tuple[str, list[str]]
Extractor = Callable[[Path], Extracted]
_HYPHENATED = re.compile(r"(?<=[a-z])-\n(?=[a-z])")


def our_reader(path: Path) -> Extracted:
    """The reader of retrieval/readers; a text per page of a PDF, all sections of a page of HTML in one."""
    file = OpenFile(path, path.name)
    documents = [item for item in read_file(file) if isinstance(item, Document)]
    file.close()
    if not documents:
        return "", []
    (document,) = documents
    if path.suffix == ".pdf":
        numbered = dict[int, str]()
        for section in document.sections:
            number = int(section.heading.split()[1])
            numbered[number] = f"{numbered.get(number, '')}\n{section.text}"
        return document.title, [numbered.get(number, "") for number in range(1, max(numbered) + 1)]
    return document.title, ["\n".join(f"{section.heading}\n{section.text}" for section in document.sections)]


def pypdf_plain(path: Path) -> Extracted:
    """The text by pypdf (BSD), with hyphens undone and each paragraph in a line."""
    return _pypdf(path, lambda page: join_wrapped_lines(_HYPHENATED.sub("", page.extract_text())))


def pypdf_layout(path: Path) -> Extracted:
    """The text of pypdf at its places on the page."""
    return _pypdf(path, lambda page: page.extract_text(extraction_mode="layout"))


def _pypdf(path: Path, text_of: Callable[..., str]) -> Extracted:
    from pypdf import PdfReader

    reader = PdfReader(path)
    return str((reader.metadata and reader.metadata.title) or ""), [text_of(page) for page in reader.pages]


def pdfium(path: Path) -> Extracted:
    """The text of pypdfium2 (Apache-2.0 or BSD) in its own order."""
    import pypdfium2

    with pypdfium2.PdfDocument(path) as document:
        return document.get_metadata_value("Title"), [page.get_textpage().get_text_range() for page in document]


def pdfminer(path: Path) -> Extracted:
    """pdfminer.six (MIT) with its analysis of layout."""
    from pdfminer.high_level import extract_text
    from pdfminer.pdfpage import PDFPage

    with path.open("rb") as file:
        count = len(list(PDFPage.get_pages(file)))
    return "", [extract_text(path, page_numbers=[number]) for number in range(count)]


def pdfplumber(path: Path) -> Extracted:
    """The text of pdfplumber (MIT), then its tables row by row."""
    import pdfplumber as library

    def text_of(page: library.page.Page) -> str:
        rows = (row for table in page.extract_tables() for row in table)
        return "\n".join(
            [page.extract_text(), *(" ; ".join(" ".join((cell or "").split()) for cell in row) for row in rows)]
        )

    with library.open(path) as document:
        return str(document.metadata.get("Title", "")), [text_of(page) for page in document.pages]


def mupdf(path: Path) -> Extracted:
    """PyMuPDF (AGPL, so never a dependency), its blocks sorted."""
    import pymupdf

    with pymupdf.open(path) as document:
        return document.metadata["title"], [page.get_text("text", sort=True) for page in document]


def trafilatura_text(path: Path) -> Extracted:
    """The text by trafilatura (Apache-2.0) alone, with tables."""
    import trafilatura

    raw = path.read_bytes()
    made = trafilatura.bare_extraction(raw, include_comments=False, favor_recall=True, with_metadata=True)
    return (str(made.title or ""), [made.text or ""]) if made is not None else ("", [""])


def whole_page(path: Path) -> Extracted:
    """All text of an HTML page."""
    tree = html.fromstring(path.read_bytes())
    return tree.findtext(".//title") or "", [tree.text_content()]


EXTRACTORS: dict[str, dict[str, tuple[str, Extractor]]] = {  # each with the library that it needs
    "pdf": {
        "our reader": ("retrieval", our_reader),
        "pypdf": ("pypdf", pypdf_plain),
        "pypdf layout": ("pypdf", pypdf_layout),
        "pypdfium2": ("pypdfium2", pdfium),
        "pdfminer.six": ("pdfminer", pdfminer),
        "pdfplumber": ("pdfplumber", pdfplumber),
        "PyMuPDF": ("pymupdf", mupdf),
    },
    "html": {
        "our reader": ("retrieval", our_reader),
        "trafilatura": ("trafilatura", trafilatura_text),
        "whole page": ("lxml", whole_page),
    },
}


def installed(format_: str) -> dict[str, Extractor]:
    """The extractors of a format whose library is there, by name."""
    found = EXTRACTORS[format_].items()
    return {name: extract for name, (library, extract) in found if importlib.util.find_spec(library)}
