"""PDF by PDFium: each page is a section. Columns, tables and running lines are told apart; scans are skipped."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import median

import pypdfium2

from medagent.retrieval.chunking import Document, Section
from medagent.retrieval.passages import replace_surrogates
from medagent.retrieval.readers.base import Item, OpenFile, Skipped, UnusableFileError, has_header, table_lines
from medagent.retrieval.readers.pdf_layout import Column, Grid, PlainTable, boxed_aside, grids_of, in_order
from medagent.retrieval.readers.pdf_lines import (
    LinePart,
    Paragraph,
    hyphenated_words,
    joined,
    lines_of,
    paragraphs_of,
    piece_of,
    pieces_of,
    without_running,
)
from medagent.retrieval.readers.pdf_words import PlacedPage, Word, placed_page
from medagent.retrieval.readers.text import expand_ligatures, title_from_name

SMALL = 0.88  # of the size of a page's letters, from which text at the foot of a column is a footnote
_GRID = "\x00grid"
_RUBBISH = re.compile(
    r"^\W*$|^untitled|^microsoft (word|powerpoint|excel)|^powerpoint|^(document|presentation|slide|layout|title)\W*\d*$"
    r"|^\(?(anonymous|unspecified|none|unknown|temp|test|draft)\)?$|^\S*(_|\d{3})\S*$|[\\/]\S+[\\/]"
    r"|\.(docx?|pdf|indd|qxd|qxp|tex|dvi|rtf|odt|pptx?|xlsx?)\b",
    re.IGNORECASE,
)
_ENCRYPTED = {
    pypdfium2.raw.FPDF_ERR_PASSWORD: "is encrypted; save it without a password",
    pypdfium2.raw.FPDF_ERR_SECURITY: "is encrypted in a way that is not supported; save it without protection",
}
_YEAR = re.compile(r"(?:D:)?(1[89]\d\d|20\d\d)\d*")
TextBlock = list[str]  # lines of one paragraph, or a row of a table


def read_pdf(file: OpenFile) -> Iterator[Item]:
    """One document with one section per page."""
    raw = file.stream.read()
    try:
        document = pypdfium2.PdfDocument(raw)
    except pypdfium2.PdfiumError as error:
        reason = f"is no readable PDF ({type(error).__name__}: {error})"
        raise UnusableFileError(_ENCRYPTED.get(error.err_code, reason)) from error
    with closing(document):
        count = len(document)
        claimed = " ".join(expand_ligatures(_metadata(document, "Title")).split())
        year = _YEAR.match(_metadata(document, "CreationDate"))
        skipped: list[Skipped] = []
        pages = [read_page(page) for page in without_running(_pages(document, file.name, skipped))]
    yield from skipped
    hyphenated = hyphenated_words(line for page in pages for block in page.blocks for line in block)
    sections = [
        Section(f"page {page.number}", text)
        for page in pages
        if (text := replace_surrogates(page.text(hyphenated))).strip()
    ]
    if not sections:
        scans = "if they are scans, run text recognition (OCR) first"
        raise UnusableFileError(f"has no text on its {count} pages; {scans}")
    found = replace_surrogates(title_on(pages[:3])) if _RUBBISH.search(claimed) else claimed
    title = found or title_from_name(file.name)
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


def _metadata(document: pypdfium2.PdfDocument, key: str) -> str:
    return replace_surrogates(str(document.get_metadata_value(key) or "").replace("\x00", ""))


@dataclass(frozen=True)
class ReadPage:
    """A page's blocks, and the first page's lines, by which a title can be found."""

    number: int
    blocks: list[TextBlock]
    lines: list[LinePart]
    size: float  # of most words

    def text(self, hyphenated: frozenset[str]) -> str:
        """The blocks, one per line."""
        return "\n".join(text for block in self.blocks if (text := joined(block, hyphenated)))


def read_page(page: PlacedPage) -> ReadPage:
    """A page's blocks: its text, then footnotes, then boxes beside the text, then text in other directions."""
    grids = grids_of(page.rules, page.words)
    words = [word for word in page.words if not any(grid.holds(word) for grid in grids)]
    boxes = boxed_aside(page.rules, words)
    aside = {id(word) for box in boxes for word in box}
    pieces = pieces_of(word for word in words if id(word) not in aside)
    for number, grid in enumerate(grids):  # a word stands for each
        pieces.append(piece_of([Word(f"{_GRID}{number}", grid.left, grid.right, grid.top, 8.0)]))
    size = median(word.size for word in page.words) if page.words else 0.0
    blocks, lines = _blocks(pieces, grids, size)
    for more in (*boxes, *page.turned):
        found, _ = _blocks(pieces_of(more), [], 0.0)
        blocks += found
    return ReadPage(page.number, blocks, lines if page.number == 1 else [], size)


def _blocks(pieces: Sequence[LinePart], grids: Sequence[Grid], size: float) -> tuple[list[TextBlock], list[LinePart]]:
    """The blocks of pieces in reading order, and the lines outside tables."""
    blocks: list[TextBlock] = []
    lines: list[LinePart] = []
    notes: list[Paragraph] = []
    held: Paragraph | None = None  # the last paragraph, which may go on in the next column
    for part in in_order(pieces):
        if isinstance(part, PlainTable):
            blocks += _held(held) + _table_rows(part.rows)
            held = None
            continue
        lines += part
        found = list(_paragraphs(part))
        begun = len(notes)
        while len(found) > 1 and _is_note(found[-1], size):
            notes.insert(begun, found.pop())
        for number, paragraph in enumerate(found):
            if paragraph.begins.startswith(_GRID):
                grid = grids[int(paragraph.begins.removeprefix(_GRID))]
                blocks += _held(held) + _table_rows([[pieces_of(cell) for cell in row] for row in grid.cells])
                held = None
            elif number == 0 and held is not None and held.goes_on_in(paragraph):
                held = Paragraph([*held.lines, *paragraph.lines], paragraph.full)
            else:
                blocks += _held(held)
                held = paragraph
    blocks += _held(held)
    blocks += [[line.text for line in note.lines] for note in notes]
    return blocks, lines


def _held(paragraph: Paragraph | None) -> list[TextBlock]:
    return [[line.text for line in paragraph.lines]] if paragraph is not None else []


def _is_note(paragraph: Paragraph, size: float) -> bool:
    return paragraph.size <= SMALL * size and re.match(r"[\d*†‡§¶]", paragraph.begins) is not None


def _paragraphs(column: Column) -> Iterator[Paragraph]:
    """The paragraphs of a column; what stands for a grid is one of its own."""
    begun = 0
    for number, line in enumerate(column):
        if line.text.startswith(_GRID):
            yield from paragraphs_of(column[begun:number])
            yield Paragraph([line], full=False)
            begun = number + 1
    yield from paragraphs_of(column[begun:])


def _table_rows(rows: Sequence[Sequence[Sequence[LinePart]]]) -> list[TextBlock]:
    cells = [[joined((line.text for line in lines_of(cell)), frozenset()) for cell in row] for row in rows]
    bold = [all(piece.bold for cell in row for piece in cell) for row in rows]
    return [[line] for line in table_lines(cells, named=has_header(cells, bold))]


def title_on(pages: Sequence[ReadPage]) -> str:
    """The title that stands on the first page in the largest letters, or bold at its beginning; empty without one."""
    if not pages or not pages[0].lines:
        return ""
    body = median(page.size for page in pages)
    lines = [line for line in pages[0].lines if not line.text.startswith(_GRID)]
    named = [line for line in lines if sum(letter.isalpha() for letter in line.text) >= 4]
    if not named:
        return ""
    largest = max(line.size for line in named)
    if largest < 1.15 * body:
        first = lines[0]
        return first.text if first.bold and not all(line.bold for line in lines) and len(first.words) <= 20 else ""
    begun = next(number for number, line in enumerate(lines) if line in named and line.size == largest)
    title = [lines[begun]]
    for line in lines[begun + 1 :]:
        if abs(line.size - largest) > 0.05 * largest or line.y - title[-1].y > 2 * largest:
            break
        title.append(line)
    text = joined([line.text for line in title], frozenset())
    return text if len(text.split()) <= 40 else ""
