"""A page's words to its blocks, in the order in which they are read: paragraphs, rows of tables, footnotes, boxes."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, takewhile
from statistics import median

from medagent.retrieval.readers.base import has_header, table_lines
from medagent.retrieval.readers.pdf_layout import Column, PlainTable, boxed_aside, grids_of, holds, in_order, table_of
from medagent.retrieval.readers.pdf_lines import LinePart, Paragraph, joined, lines_of, paragraphs, pieces_of, rows_of
from medagent.retrieval.readers.pdf_words import PlacedPage, Word

SMALL = 0.88  # of the size of a page's letters, from which text at the foot of a column is a footnote
LARGE = 1.15  # of the size of letters, from which a line is a heading
FEW_ROWS = 3  # lines of a table that goes on, which do not tell by themselves that they are a table
HEADER_ROWS = 3  # at most, which a table repeats on its next page
Cells = Sequence[Sequence[Sequence[LinePart]]]  # rows of cells of pieces
_NUMBERED = re.compile(r"(?:\d+(?:\.\d+)*\.?|[IVX]+\.|(?:chapter|appendix|annex|part|section)\s+\w+[.:]?)\s+\S", re.I)
_CONTINUED = re.compile(r"\bcontinu(?:ed|es)\b|\bcont(?:['’]d|\.)", re.I)


@dataclass(frozen=True)
class TextBlock:
    """The lines of one paragraph, or a row of a table."""

    lines: list[str]
    heading: bool = False


@dataclass(frozen=True)
class _ReadTable:
    """A table: its rows as lines, and what its next page needs to go on with it."""

    lines: list[str]
    top: list[list[str]]  # its first rows, as they may be repeated
    columns: list[tuple[float, float]]  # from where to where each reaches
    names: list[str]
    bold: bool  # whether the names are

    @staticmethod
    def of(rows: Cells, before: "_ReadTable | None") -> "_ReadTable":
        """The table of these rows. Where it goes on with the one before, it has the names of that one's columns."""
        cells = [[joined(line.text for line in lines_of(cell)) for cell in row] for row in rows]
        bold = [all(piece.bold for cell in row for piece in cell) for row in rows]
        named = has_header(cells, bold)
        if before is not None and before.fits(rows):
            again = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before.top, cells, strict=False)))
            if again or not named or (before.bold and not bold[0]):
                named_rows = [before.names, *cells[again:]] if before.names and cells[again:] else cells[again:]
                return replace(before, lines=table_lines(named_rows, named=bool(before.names)))
        lines, names = table_lines(cells, named=named), cells[0] if named else []
        return _ReadTable(lines, cells[:HEADER_ROWS], _columns_of(rows), names, named and bold[0])

    def fits(self, rows: Cells) -> bool:
        """Whether rows have as many columns in the same places."""
        columns = _columns_of(rows)
        pairs = zip(self.columns, columns, strict=False)
        return len(self.columns) == len(columns) > 1 and all(a[0] <= b[1] and b[0] <= a[1] for a, b in pairs)


def _columns_of(rows: Cells) -> list[tuple[float, float]]:
    columns = [[piece for row in rows for piece in row[at]] for at in range(len(rows[0]))]
    return [
        (min((piece.x0 for piece in found), default=0.0), max((piece.x1 for piece in found), default=math.inf))
        for found in columns
    ]


@dataclass(frozen=True)
class ReadPage:
    """A page's blocks, and its lines outside tables, by which a title can be found."""

    placed: PlacedPage
    blocks: list[TextBlock]
    lines: list[LinePart]
    size: float  # of most words


def read_pages(pages: Iterator[PlacedPage]) -> Iterator[ReadPage]:
    """The blocks of each page: its text, then footnotes, then boxes beside the text, then text in other directions."""
    table: _ReadTable | None = None  # at the end of the page before
    for page in pages:
        found = grids_of(page.rules, page.words)
        grids = [grid for grid in found if grid.filled > 1 or (table is not None and table.fits(grid.rows))]
        words = [word for word in page.words if not any(grid.box and holds(grid.box, word) for grid in grids)]
        boxes = boxed_aside(page.rules, words)
        aside = {id(word) for box in boxes for word in box}
        parts = list(_parts(pieces_of(word for word in words if id(word) not in aside), grids, table))
        size = median(word.size for word in page.words) if page.words else 0.0
        blocks, table = _blocks(parts, size, table)
        for more in (*boxes, *page.turned):
            blocks += _blocks(list(in_order(pieces_of(more))), 0.0, None)[0]
        lines = [line for part in parts if not isinstance(part, PlainTable) for line in part]
        yield ReadPage(page, blocks, lines if page.number == 1 else [], size)


def _parts(
    pieces: list[LinePart], grids: Sequence[PlainTable], before: _ReadTable | None
) -> Iterator[Column | PlainTable]:
    """The parts of a page in reading order; a few rows at its top may be the rest of the table before."""
    for number, grid in enumerate(grids):  # a word of a size below zero stands for each
        left, top, right, _ = grid.box or (0.0, 0.0, 0.0, 0.0)
        pieces.append(LinePart([Word(f"\x00{number}", left, right, top, -1.0)], left, right, top, -1.0))
    parts, rows = list(in_order(pieces)), rows_of(pieces)
    if before is not None and parts and not isinstance(parts[0], PlainTable) and len(rows[0]) > 1:
        for count in range(FEW_ROWS, 0, -1):
            taken = [piece for row in rows[:count] for piece in row]
            _, table, after = table_of(taken)
            if not after and before.fits(table):
                parts = [PlainTable(table), *in_order([piece for piece in pieces if piece not in taken])]
                break
    for part in parts:
        if isinstance(part, PlainTable):
            yield part
            continue
        for is_grid, group in groupby(part, key=lambda line: line.size < 0):
            lines = list(group)
            yield from (grids[int(line.text[1:])] for line in lines) if is_grid else [lines]


def _blocks(
    parts: Sequence[Column | PlainTable], size: float, before: _ReadTable | None
) -> tuple[list[TextBlock], _ReadTable | None]:
    """The blocks of a page's parts, and the table at their end."""
    flow: list[Paragraph | PlainTable] = []
    notes: list[Paragraph] = []
    for part in parts:
        if isinstance(part, PlainTable):
            flow.append(part)
            continue
        found = paragraphs(part)
        begun = len(notes)
        while found and (flow or len(found) > 1) and _is_note(found[-1], size):
            notes.insert(begun, found.pop())
        if found and flow and isinstance(held := flow[-1], Paragraph) and held.goes_on_in(found[0]):
            flow[-1] = replace(found[0], lines=[*held.lines, *found.pop(0).lines])
        flow += found
    blocks: list[TextBlock] = []
    table: _ReadTable | None = None
    for each in flow:
        if isinstance(each, PlainTable):
            table, before = _ReadTable.of(each.rows, before), None
            blocks += [TextBlock([line]) for line in table.lines]
        else:
            lines = [line.text for line in each.lines]
            blocks.append(TextBlock(lines, _is_heading(each, size)))
            if len(lines) > 1 or not _CONTINUED.search(lines[0]):
                table, before = table if each.size <= SMALL * size else None, None  # a note ends no table
    return blocks + [TextBlock([line.text for line in note.lines]) for note in notes], table


def _is_note(paragraph: Paragraph, size: float) -> bool:
    return paragraph.size <= SMALL * size and re.match(r"[\d*†‡§¶]|[a-z]\s", paragraph.lines[0].text) is not None


def _is_heading(paragraph: Paragraph, size: float) -> bool:
    """Whether a paragraph is short, no sentence, and larger than the text, or bold with a number."""
    text = " ".join(line.text for line in paragraph.lines)
    bold = all(line.bold for line in paragraph.lines) and _NUMBERED.match(text) is not None
    short = len(text.split()) <= 12 and sum(map(str.isalpha, text)) >= 4 and text[-1] not in ".,;"
    return short and bool(size) and (paragraph.size >= LARGE * size or bold)
