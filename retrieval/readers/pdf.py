"""PDF by pypdf: each page is a section, so that a citation leads to the page.

Scans without text are skipped and reported.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator

from pypdf import PdfReader

from retrieval.chunking import Document, Section
from retrieval.passages import without_surrogates
from retrieval.readers.base import Item, OpenFile, Skipped
from retrieval.readers.text import title_of, unwrapped

_HYPHENATED = re.compile(r"(?<=[a-z])-\n(?=[a-z])")
# pypdf warns in the log of much that it then puts right; what it cannot is an exception.
logging.getLogger("pypdf").setLevel(logging.ERROR)


def read_pdf(file: OpenFile) -> Iterator[Item]:
    """One document with one section per page."""
    raw = io.BytesIO(file.stream.read())
    try:
        reader = PdfReader(raw)
        if reader.is_encrypted and not reader.decrypt(""):
            yield Skipped(file.name, "is encrypted; save it without a password")
            return
        pages = len(reader.pages)
        title, year = _title_and_year(reader)
    except Exception as error:  # pypdf lets through whatever a damaged file makes it stumble over
        yield Skipped(file.name, f"is no readable PDF ({type(error).__name__}: {error})")
        return
    sections = []
    for number in range(pages):
        try:
            text = reader.pages[number].extract_text()
        except Exception as error:  # the other pages may be sound
            yield Skipped(f"{file.name}, page {number + 1}", f"cannot be read ({type(error).__name__}: {error})")
            continue
        text = _HYPHENATED.sub("", without_surrogates(text.replace("\x00", "")))
        if text.strip():
            sections.append(Section(f"page {number + 1}", unwrapped(text)))
    if not sections:
        yield Skipped(
            file.name, f"has no text on its {pages} pages; if they are scans, run text recognition (OCR) first"
        )
        return
    yield Document(title or title_of(file.name), tuple(sections), file.name, year=year, name=file.name)


def _title_and_year(reader: PdfReader) -> tuple[str, int | None]:
    """What the metadata says; dates are often malformed, which is no reason to lose the document."""
    metadata = reader.metadata
    if metadata is None:
        return "", None
    try:
        created = metadata.creation_date
    except ValueError:
        created = None
    return str(metadata.title or "").strip(), created.year if created else None
