"""A page's words to its blocks, in the order in which they are read: paragraphs, rows of tables, footnotes, boxes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import median

from medagent.retrieval.readers.base import has_header, table_lines
from medagent.retrieval.readers.pdf_layout import (
    Column,
    Grid,
    PlainTable,
    boxed_aside,
    grids_of,
    in_order,
    table_of,
)
from medagent.retrieval.readers.pdf_lines import (
    LinePart,
    Paragraph,
    joined,
    lines_of,
    paragraphs_of,
    piece_of,
    pieces_of,
    rows_of,
)
from medagent.retrieval.readers.pdf_words import PlacedPage, Word

SMALL = 0.88  # of the size of a page's letters, from which text at the foot of a column is a footnote
LARGE = 1.15  # of the size of letters, from which a line is a heading
FEW_ROWS = 3  # lines of a table that goes on, which do not tell by themselves that they are a table
HEADER_ROWS = 3  # at most, which a table repeats on its next page
GRID = "\x00grid"
_NUMBERED = re.compile(r"(?:\d+(?:\.\d+)*\.?|[IVX]+\.|(?:chapter|appendix|annex|part|section)\s+\w+[.:]?)\s+\S", re.I)
_CONTINUED = re.compile(r"\bcontinu(?:ed|es)\b|\bcont(?:['’]d|\.)", re.I)


@dataclass(frozen=True)
class TextBlock:
    """The lines of one paragraph, or a row of a table."""

    lines: list[str]
    heading: bool = False


@dataclass(frozen=True)
class _Columns:
    """From where to where each column of a table reaches; None for an empty one."""

    edges: list[tuple[float, float] | None]

    def fit(self, others: _Columns) -> bool:
        """Whether another table has as many columns in the same places."""
        pairs = list(zip(self.edges, others.edges, strict=False))
        meet = all(own is None or other is None or _meet(own, other) for own, other in pairs)
        return len(self.edges) == len(others.edges) > 1 and meet

    def hold(self, row: Sequence[LinePart]) -> bool:
        """Whether each piece of a line stands in a column of its own."""
        met = [[at for at, edge in enumerate(self.edges) if edge and _meet(edge, (each.x0, each.x1))] for each in row]
        return all(len(each) == 1 for each in met) and len({each[0] for each in met}) == len(row)


def _columns_of(rows: Sequence[Sequence[Sequence[LinePart]]]) -> _Columns:
    """The columns of a table's rows of cells."""
    columns = [[piece for row in rows for piece in row[at]] for at in range(len(rows[0]))]
    return _Columns([(min(p.x0 for p in found), max(p.x1 for p in found)) if found else None for found in columns])


def _meet(own: tuple[float, float], other: tuple[float, float]) -> bool:
    return own[0] <= other[1] and other[0] <= own[1]


@dataclass(frozen=True)
class _Table:
    """A table: its rows as lines, and what its next page needs to go on with it."""

    lines: list[str]
    top: list[list[str]]  # its first rows, as they may be repeated
    columns: _Columns
    names: list[str]
    bold: bool  # whether the names are

    @staticmethod
    def of(rows: Sequence[Sequence[Sequence[LinePart]]], before: _Table | None) -> _Table:
        """The table of these rows. Where it goes on with the one before, it has the names of that one's columns."""
        cells = [[joined((line.text for line in lines_of(cell)), frozenset()) for cell in row] for row in rows]
        bold = [all(piece.bold for cell in row for piece in cell) for row in rows]
        columns, named = _columns_of(rows), has_header(cells, bold)
        if before is not None and before.columns.fit(columns):
            again = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(before.top, cells, strict=False))))
            if again or not named or (before.bold and not bold[0]):
                names = [before.names] if before.names else []
                lines = table_lines([*names, *cells[again:]], named=bool(names))
                return _Table(lines if cells[again:] else [], before.top, columns, before.names, before.bold)
        return _Table(
            table_lines(cells, named=named), cells[:HEADER_ROWS], columns, cells[0] if named else [], named and bold[0]
        )


@dataclass(frozen=True)
class ReadPage:
    """A page's blocks, and its lines outside tables, by which a title can be found."""

    placed: PlacedPage
    blocks: list[TextBlock]
    lines: list[LinePart]
    size: float  # of most words


def read_pages(pages: Iterator[PlacedPage]) -> Iterator[ReadPage]:
    """The blocks of each page: its text, then footnotes, then boxes beside the text, then text in other directions."""
    table: _Table | None = None  # at the end of the page before
    for page in pages:
        grids = [
            grid
            for grid in grids_of(page.rules, page.words)
            if grid.filled > 1 or (table is not None and table.columns.fit(_columns_of(grid.pieces)))
        ]
        words = [word for word in page.words if not any(grid.holds(word) for grid in grids)]
        boxes = boxed_aside(page.rules, words)
        aside = {id(word) for box in boxes for word in box}
        pieces = pieces_of(word for word in words if id(word) not in aside)
        for number, grid in enumerate(grids):  # a word stands for each
            pieces.append(piece_of([Word(f"{GRID}{number}", grid.left, grid.right, grid.top, 8.0)]))
        size = median(word.size for word in page.words) if page.words else 0.0
        parts = _parts(pieces, table)
        blocks, table = _blocks(parts, grids, size, table)
        for more in (*boxes, *page.turned):
            blocks += _blocks(list(in_order(pieces_of(more))), [], 0.0, None)[0]
        lines = [line for part in parts if not isinstance(part, PlainTable) for line in part]
        yield ReadPage(page, blocks, lines if page.number == 1 else [], size)


def _parts(pieces: Sequence[LinePart], before: _Table | None) -> list[Column | PlainTable]:
    """The parts of a page in reading order; a few rows at its top may be the rest of the table before."""
    parts = list(in_order(pieces))
    if before is None or not parts or isinstance(parts[0], PlainTable):
        return parts
    rest = list(takewhile(before.columns.hold, rows_of(pieces)))
    if not rest or len(rest[0]) < 2 or len(rest) > FEW_ROWS:
        return parts
    taken = [piece for row in rest for piece in row]
    return [PlainTable(table_of(taken)[1]), *in_order([piece for piece in pieces if piece not in taken])]


def _blocks(
    parts: Sequence[Column | PlainTable], grids: Sequence[Grid], size: float, before: _Table | None
) -> tuple[list[TextBlock], _Table | None]:
    """The blocks of a page's parts, and the table at their end."""
    flow: list[Paragraph | PlainTable] = []
    notes: list[Paragraph] = []
    for part in parts:
        if isinstance(part, PlainTable):
            flow.append(part)
            continue
        found = list(_paragraphs(part))
        begun = len(notes)
        while len(found) > 1 and _is_note(found[-1], size):
            notes.insert(begun, found.pop())
        for number, paragraph in enumerate(found):
            if paragraph.begins.startswith(GRID):
                grid = grids[int(paragraph.begins.removeprefix(GRID))]
                flow.append(PlainTable(grid.pieces))
            elif number == 0 and flow and isinstance(held := flow[-1], Paragraph) and held.goes_on_in(paragraph):
                flow[-1] = Paragraph([*held.lines, *paragraph.lines], paragraph.full)
            else:
                flow.append(paragraph)
    blocks: list[TextBlock] = []
    table: _Table | None = None
    for each in flow:
        if isinstance(each, PlainTable):
            table, before = _Table.of(each.rows, before), None
            blocks += [TextBlock([line]) for line in table.lines]
        else:
            lines = [line.text for line in each.lines]
            blocks.append(TextBlock(lines, _is_heading(each, size)))
            if len(lines) > 1 or not _CONTINUED.search(lines[0]):
                table = before = None
    return blocks + [TextBlock([line.text for line in note.lines]) for note in notes], table


def _is_note(paragraph: Paragraph, size: float) -> bool:
    return paragraph.size <= SMALL * size and re.match(r"[\d*†‡§¶]", paragraph.begins) is not None


def _is_heading(paragraph: Paragraph, size: float) -> bool:
    """Whether a paragraph is short, no sentence, and larger than the text, or bold with a number."""
    text = " ".join(line.text for line in paragraph.lines)
    bold = all(line.bold for line in paragraph.lines) and _NUMBERED.match(text) is not None
    short = len(text.split()) <= 12 and sum(map(str.isalpha, text)) >= 4 and text[-1] not in ".,;"
    return short and bool(size) and (paragraph.size >= LARGE * size or bold)


def _paragraphs(column: Column) -> Iterator[Paragraph]:
    """The paragraphs of a column; what stands for a grid is one of its own."""
    begun = 0
    for number, line in enumerate(column):
        if line.text.startswith(GRID):
            yield from paragraphs_of(column[begun:number])
            yield Paragraph([line], full=False)
            begun = number + 1
    yield from paragraphs_of(column[begun:])
