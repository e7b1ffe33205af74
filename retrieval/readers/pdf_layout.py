"""The pieces of a page in reading order: columns one after the other, and tables row by row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from statistics import mean, median

from medagent.retrieval.readers.base import is_number
from medagent.retrieval.readers.pdf_drawn import THIN, DrawnLine
from medagent.retrieval.readers.pdf_lines import LinePart, lines_of, pieces_of, rows_of
from medagent.retrieval.readers.pdf_words import Word

GUTTER = 0.8  # of the size of letters: how wide white space must be between columns
STRETCHED = 1.5  # of the size of letters: how wide the blanks of justified lines may be
LEAST = 3  # lines on both sides of a gutter; a table may have two
NARROW, MANY = 0.6, 6  # a narrower gutter needs more lines: blanks of justified lines lie above one another by chance
MAX_DEPTH = 40  # cuts within cuts
_Placed = tuple[float, float, float]  # where a gutter or a line is, and from where to where it reaches
NEAR = 3.0  # points within which lines touch
MAX_LINES = 400  # of a page with tables; more make a picture
SHORTEST = 8.0  # points that a rule is long at least


@dataclass(frozen=True)
class PlainTable:
    """Rows of cells; a cell may have several lines."""

    rows: list[list[list[LinePart]]]


Column = list[LinePart]  # lines that are read from the top down


def in_order(pieces: Sequence[LinePart], depth: int = 0) -> Iterator[Column | PlainTable]:
    """The parts of a page in reading order: split at the gutter with most lines, above, left, right, below."""
    found = _gutter(pieces) if depth < MAX_DEPTH else None
    if found is None:
        if pieces:
            yield lines_of(pieces)
        return
    at, top, bottom = found
    inside = [piece for piece in pieces if top < piece.y < bottom]
    above, below = [piece for piece in pieces if piece.y <= top], [piece for piece in pieces if piece.y >= bottom]
    left, right = [piece for piece in inside if piece.x1 <= at], [piece for piece in inside if piece.x1 > at]
    if not _is_table(left, right):
        for stretch in (above, left, right, below):
            yield from in_order(stretch, depth + 1)
        return
    before, table, after = table_of(inside)
    yield from in_order([*above, *before], depth + 1)
    if len(table) > 1:
        yield PlainTable(table)
    else:
        yield lines_of([piece for row in table for cell in row for piece in cell])
    yield from in_order([*after, *below], depth + 1)


def _gutter(pieces: Sequence[LinePart]) -> _Placed | None:
    """The strip of white space that parts the most lines: its left edge, and the lines where something crosses it."""
    best: tuple[tuple[int, int, float], _Placed] | None = None
    size = median(piece.size for piece in pieces) if pieces else 0.0
    right_most = max((piece.x1 for piece in pieces), default=0.0)
    edges = {round(edge / 2): edge for edge in sorted(piece.x1 for piece in pieces)}  # of near ones the last
    for edge, (wide, least) in product(edges.values(), ((GUTTER, LEAST), (NARROW, MANY))):
        if edge + wide * size > right_most:
            continue
        at, to = edge + 0.01, edge + wide * size
        crossing = sorted(piece.y for piece in pieces if piece.x0 < to and piece.x1 > at)
        ends = [float("-inf"), *crossing, float("inf")]
        for top, bottom in pairwise(ends):
            inside = [piece for piece in pieces if top < piece.y < bottom]
            left = {round(piece.y) for piece in inside if piece.x1 <= at}
            right = {round(piece.y) for piece in inside if piece.x0 >= to}
            lines = _shared(left, right)
            if lines >= least or (lines == LEAST - 1 and len(crossing) == 0 and len(pieces) <= 8):
                width = min(piece.x0 for piece in inside if piece.x0 >= to) - edge
                measure = (lines, len(inside), width)
                if best is None or measure > best[0]:
                    best = (measure, (at, top, bottom))
    return best[1] if best else None


def _shared(left: set[int], right: set[int]) -> int:
    """On how many heights there are lines both left and right, as far as the two lie beside each other."""
    if not left or not right:
        return 0
    top, bottom = max(min(left), min(right)) - 4, min(max(left), max(right)) + 4
    return min(sum(top <= y <= bottom for y in left), sum(top <= y <= bottom for y in right))


def _is_table(left: Sequence[LinePart], right: Sequence[LinePart]) -> bool:
    """Whether what is left and right of a gutter are cells of the same rows, and not two columns of text."""
    own, others = rows_of(left), rows_of(right)
    heights = [row[0].y for row in own]
    beside = [row for row in others if heights[0] - 4 <= row[0].y <= heights[-1] + 4]
    size = median(piece.size for piece in left)
    aligned = [row for row in beside if any(abs(row[0].y - y) < 0.3 * size for y in heights)]
    if len(aligned) < 0.7 * min(len(own), len(beside)):
        return False
    if all(is_number(piece.text) for row in aligned for piece in row[:1]):
        return True
    # Beside prose there may be terms that it explains.
    return not _is_prose(own) and (not _is_prose(others) or len(own) <= 0.7 * len(beside))


def _is_prose(rows: Sequence[Sequence[LinePart]]) -> bool:
    """Whether lines are running text: several words each, and most of them as wide as the column."""
    lines: list[list[LinePart]] = []
    for row in rows:
        for number, piece in enumerate(row):
            if number and piece.x0 - row[number - 1].x1 < STRETCHED * piece.size:
                lines[-1].append(piece)
            else:
                lines.append([piece])
    widths = [line[-1].x1 - line[0].x0 for line in lines]
    words = [sum(len(piece.words) for piece in line) for line in lines]
    return mean(words) >= 3.5 and median(widths) >= 0.7 * max(widths)


def table_of(inside: Sequence[LinePart]) -> tuple[list[LinePart], list[list[list[LinePart]]], list[LinePart]]:
    """The rows of a table, and the pieces before and after it that stand alone on their line."""
    rows = rows_of(inside)
    first = next((number for number, row in enumerate(rows) if len(row) > 1), 0)
    last = max((number for number, row in enumerate(rows) if len(row) > 1), default=0)
    edges = _edges_of([piece for row in rows[first : last + 1] if len(row) > 1 for piece in row])
    while last + 1 < len(rows) and rows[last + 1][0].x0 > edges[0][1] and _is_near(rows[last], rows[last + 1]):
        last += 1  # the rest of a cell
    table: list[list[list[LinePart]]] = []
    for number in range(first, last + 1):
        cells = _cells(rows[number], edges)
        if table and _goes_on(cells, table[-1], near=_is_near(rows[number - 1], rows[number])):
            for cell, more in zip(table[-1], cells, strict=True):
                cell.extend(more)
        else:
            table.append(cells)
    before = [piece for row in rows[:first] for piece in row]
    return before, table, [piece for row in rows[last + 1 :] for piece in row]


def _edges_of(pieces: Sequence[LinePart]) -> list[tuple[float, float]]:
    """The columns that pieces fill: from where to where each reaches. A piece over several columns joins them."""
    edges: list[tuple[float, float]] = []
    for piece in sorted(pieces, key=lambda piece: piece.x0):
        if edges and piece.x0 < edges[-1][1]:
            edges[-1] = (edges[-1][0], max(edges[-1][1], piece.x1))
        else:
            edges.append((piece.x0, piece.x1))
    return edges


def _cells(row: Sequence[LinePart], edges: Sequence[tuple[float, float]]) -> list[list[LinePart]]:
    cells: list[list[LinePart]] = [[] for _ in edges]
    for piece in row:
        middle = (piece.x0 + piece.x1) / 2
        nearest = min(range(len(edges)), key=lambda at: max(edges[at][0] - middle, middle - edges[at][1], 0.0))
        cells[nearest].append(piece)
    return cells


def _is_near(above: Sequence[LinePart], below: Sequence[LinePart]) -> bool:
    return below[0].y - above[0].y < 1.45 * above[0].size


def _goes_on(cells: Sequence[list[LinePart]], above: Sequence[list[LinePart]], *, near: bool) -> bool:
    """Whether a line holds the rest of cells that the line above began."""
    if not near:
        return False
    filled = [at for at, cell in enumerate(cells) if cell]
    if not cells[0]:
        return len(filled) < sum(bool(cell) for cell in above)
    return len(filled) == 1 and bool(above[0]) and cells[0][0].text[:1].islower()


@dataclass(frozen=True)
class Grid:
    """A table that lines part into cells, by its rows."""

    cells: list[list[list[Word]]]
    top: float
    bottom: float
    left: float
    right: float

    def holds(self, word: Word) -> bool:
        """Whether a word stands in it."""
        return _within(word, self.left, self.top, self.right, self.bottom)

    @property
    def filled(self) -> int:
        """How many rows have words in several cells."""
        return sum(sum(map(bool, row)) > 1 for row in self.cells)

    @property
    def pieces(self) -> list[list[list[LinePart]]]:
        """The pieces of each cell."""
        return [[pieces_of(cell) for cell in row] for row in self.cells]


def grids_of(rules: Sequence[DrawnLine], words: Sequence[Word]) -> list[Grid]:
    """The tables of a page: lines that touch, with words in several cells of at least one row."""
    across, down = _lines(rules)
    grids: list[Grid] = []
    if len(across) + len(down) > MAX_LINES:
        return grids
    for group in _touching([*across, *down]):
        ys = _places([rule.y0 for rule in group if rule in across])
        xs = _places([rule.x0 for rule in group if rule in down])
        if len(ys) < 2 or len(xs) < 2:
            continue
        inside = [word for word in words if _within(word, xs[0], ys[0], xs[-1], ys[-1])]
        cells = _fill(inside, xs, ys, [rule for rule in group if rule in across], [r for r in group if r in down])
        grids.append(Grid(cells, ys[0], ys[-1], xs[0], xs[-1]))
    return [grid for grid in grids if grid.filled]


def _lines(rules: Sequence[DrawnLine]) -> tuple[list[DrawnLine], list[DrawnLine]]:
    """Rules across and down; the sides of boxes are rules too."""
    across, down = list[_Placed](), list[_Placed]()
    for rule in rules:
        width, height = rule.x1 - rule.x0, rule.y1 - rule.y0
        if height <= THIN:
            across += [((rule.y0 + rule.y1) / 2, rule.x0, rule.x1)] if width >= SHORTEST else []
        elif width <= THIN:
            down += [((rule.x0 + rule.x1) / 2, rule.y0, rule.y1)] if height >= SHORTEST else []
        else:
            across += [(y, rule.x0, rule.x1) for y in (rule.y0, rule.y1)]
            down += [(x, rule.y0, rule.y1) for x in (rule.x0, rule.x1)]
    flat, tall = _merged(across), _merged(down)
    return [DrawnLine(x0, y, x1, y) for y, x0, x1 in flat], [DrawnLine(x, y0, x, y1) for x, y0, y1 in tall]


def _merged(lines: Sequence[_Placed]) -> list[_Placed]:
    """Lines, each at a place and from one end to the other, with those that prolong each other as one."""
    whole: list[_Placed] = []
    for place, start, end in sorted((round(place), start, end) for place, start, end in lines):
        if whole and whole[-1][0] == place and start <= whole[-1][2] + NEAR:
            whole[-1] = (place, whole[-1][1], max(end, whole[-1][2]))
        else:
            whole.append((place, start, end))
    return whole


def _touching(rules: Sequence[DrawnLine]) -> list[list[DrawnLine]]:
    """Rules in groups of those that touch."""
    groups: list[list[DrawnLine]] = []
    for rule in rules:
        met = [group for group in groups if any(_touch(rule, other) for other in group)]
        groups = [group for group in groups if not any(group is other for other in met)]
        groups.append([rule, *(other for group in met for other in group)])
    return groups


def _touch(one: DrawnLine, other: DrawnLine) -> bool:
    return (
        one.x0 <= other.x1 + NEAR
        and other.x0 <= one.x1 + NEAR
        and one.y0 <= other.y1 + NEAR
        and other.y0 <= one.y1 + NEAR
    )


def _places(values: Sequence[float]) -> list[float]:
    """Values in order, those that are near each other once."""
    places: list[float] = []
    for value in sorted(values):
        if not places or value - places[-1] > 2 * NEAR:
            places.append(value)
    return places


def _fill(
    words: Sequence[Word],
    xs: Sequence[float],
    ys: Sequence[float],
    across: Sequence[DrawnLine],
    down: Sequence[DrawnLine],
) -> list[list[list[Word]]]:
    """The words of each cell; neighbours without a line between them are one cell, which stands in each of its rows."""
    columns, rows = len(xs) - 1, len(ys) - 1
    cells: list[list[list[Word]]] = [[[] for _ in range(columns)] for _ in range(rows)]
    for word in words:
        y, x = word.y - 0.3 * word.size, (word.x0 + word.x1) / 2
        row = max((at for at in range(rows) if ys[at] <= y), default=0)
        column = max((at for at in range(columns) if xs[at] <= x), default=0)
        while column and not any(abs(rule.x0 - xs[column]) < 2 * NEAR and rule.y0 <= y <= rule.y1 for rule in down):
            column -= 1
        cells[row][column].append(word)
    for column in range(columns):
        middle = (xs[column] + xs[column + 1]) / 2
        begun = 0
        for row in range(1, rows + 1):
            lined = row == rows or any(
                abs(rule.y0 - ys[row]) < 2 * NEAR and rule.x0 <= middle <= rule.x1 for rule in across
            )
            if lined:
                whole = [word for at in range(begun, row) for word in cells[at][column]]
                for at in range(begun, row):
                    cells[at][column] = whole
                begun = row
    return cells


def boxed_aside(rules: Sequence[DrawnLine], words: Sequence[Word]) -> list[list[Word]]:
    """The words of each box that has other text beside it, but for small boxes and those with most of the words."""
    found: list[list[Word]] = []
    taken: set[int] = set()
    for rule in sorted(rules, key=lambda each: (each.x1 - each.x0) * (each.y1 - each.y0), reverse=True):
        if min(rule.x1 - rule.x0, rule.y1 - rule.y0) <= 4 * THIN:
            continue
        inside = [word for word in words if _within(word, rule.x0, rule.y0, rule.x1, rule.y1) and id(word) not in taken]
        beside = [word for word in words if rule.y0 < word.y < rule.y1 and not rule.x0 <= word.x0 <= rule.x1]
        lines = len({round(word.y) for word in inside})
        if lines < 2 or len(inside) > len(words) / 2 or len({round(word.y) for word in beside}) < 2:
            continue
        taken |= {id(word) for word in inside}
        found.append(inside)
    return found


def _within(word: Word, left: float, top: float, right: float, bottom: float) -> bool:
    middle = (word.x0 + word.x1) / 2
    return left <= middle <= right and top <= word.y - 0.3 * word.size <= bottom
