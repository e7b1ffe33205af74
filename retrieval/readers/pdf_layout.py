"""The pieces of a page in reading order: columns one after the other, and tables row by row."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, product
from statistics import mean, median

from medagent.retrieval.readers.base import is_number
from medagent.retrieval.readers.pdf_lines import LinePart, lines_of, pieces_of, rows_of
from medagent.retrieval.readers.pdf_words import THIN, DrawnLine, Word

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
    """Rows of cells; a cell may have several lines. `box` where drawn lines part the cells."""

    rows: list[list[list[LinePart]]]
    box: DrawnLine | None = None

    @property
    def filled(self) -> int:
        """How many rows have words in several cells."""
        return sum(sum(map(bool, row)) > 1 for row in self.rows)


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
    before, table, after = table_of(inside) if _is_table(left, right) else ([], [], [])
    if not table or any(piece.size < 0 for row in table for cell in row for piece in cell):  # a grid is no cell
        for stretch in (above, left, right, below):
            yield from in_order(stretch, depth + 1)
        return
    yield from in_order([*above, *before], depth + 1)
    yield PlainTable(table) if len(table) > 1 else lines_of([piece for row in table for cell in row for piece in cell])
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
        for top, bottom in pairwise([float("-inf"), *crossing, float("inf")]):
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
    spans = ((0.0, piece.x0, piece.x1) for row in rows[first : last + 1] if len(row) > 1 for piece in row)
    edges = [(start, end) for _, start, end in _merged(spans, 0.0)]  # a piece over several columns joins them
    while last + 1 < len(rows) and rows[last + 1][0].x0 > edges[0][1] and _is_near(rows[last], rows[last + 1]):
        last += 1  # the rest of a cell
    table: list[list[list[LinePart]]] = []
    for number in range(first, last + 1):
        cells = _cells(rows[number], edges)
        if table and _is_near(rows[number - 1], rows[number]) and _goes_on(cells, table[-1]):
            for cell, more in zip(table[-1], cells, strict=True):
                cell.extend(more)
        else:
            table.append(cells)
    before = [piece for row in rows[:first] for piece in row]
    return before, table, [piece for row in rows[last + 1 :] for piece in row]


def _cells(row: Sequence[LinePart], edges: Sequence[tuple[float, float]]) -> list[list[LinePart]]:
    cells: list[list[LinePart]] = [[] for _ in edges]
    for piece in row:
        middle = (piece.x0 + piece.x1) / 2
        nearest = min(range(len(edges)), key=lambda at: max(edges[at][0] - middle, middle - edges[at][1], 0.0))
        cells[nearest].append(piece)
    return cells


def _is_near(above: Sequence[LinePart], below: Sequence[LinePart]) -> bool:
    return below[0].y - above[0].y < 1.45 * above[0].size


def _goes_on(cells: Sequence[list[LinePart]], above: Sequence[list[LinePart]]) -> bool:
    """Whether a line holds the rest of cells that the line above began."""
    filled = [at for at, cell in enumerate(cells) if cell]
    if not cells[0]:
        return len(filled) < sum(bool(cell) for cell in above)
    return len(filled) == 1 and bool(above[0]) and cells[0][0].text[:1].islower()


def grids_of(rules: Sequence[DrawnLine], words: Sequence[Word]) -> list[PlainTable]:
    """The tables of a page: lines that touch, with words in several cells of at least one row."""
    grids: list[PlainTable] = []
    for group in _touching(_lines(rules)):
        ys = _places(rule.y0 for rule in group if rule.y0 == rule.y1)
        xs = _places(rule.x0 for rule in group if rule.x0 == rule.x1)
        if len(ys) > 1 and len(xs) > 1:
            box = DrawnLine(xs[0], ys[0], xs[-1], ys[-1])
            cells = _fill([word for word in words if holds(box, word)], xs, ys, group)
            grids.append(PlainTable([[pieces_of(cell) for cell in row] for row in cells], box))
    return [grid for grid in grids if grid.filled]


def _lines(rules: Sequence[DrawnLine]) -> list[DrawnLine]:
    """Rules across and down; the sides of boxes are rules too. None of pictures."""
    across, down = list[_Placed](), list[_Placed]()
    for x0, y0, x1, y1 in rules:
        flat, tall = y1 - y0 <= THIN, x1 - x0 <= THIN
        if max(x1 - x0, y1 - y0) >= SHORTEST:
            across += [(round(y), x0, x1) for y in ([(y0 + y1) / 2] if flat else [] if tall else [y0, y1])]
            down += [(round(x), y0, y1) for x in ([] if flat else [(x0 + x1) / 2] if tall else [x0, x1])]
    lines = [DrawnLine(x0, y, x1, y) for y, x0, x1 in _merged(across, NEAR)]
    lines += [DrawnLine(x, y0, x, y1) for x, y0, y1 in _merged(down, NEAR)]
    return lines if len(lines) <= MAX_LINES else []


def _merged(lines: Iterable[_Placed], near: float) -> list[_Placed]:
    """Lines, each at a place and from one end to the other, with those that prolong each other as one."""
    whole: list[_Placed] = []
    for place, start, end in sorted(lines):
        if whole and whole[-1][0] == place and start <= whole[-1][2] + near:
            whole[-1] = (place, whole[-1][1], max(end, whole[-1][2]))
        else:
            whole.append((place, start, end))
    return whole


def _places(values: Iterable[float]) -> list[float]:
    """Values in order, those that are near each other once."""
    return [start for _, start, _ in _merged(((0.0, value, value) for value in values), 2 * NEAR)]


def _touching(rules: Sequence[DrawnLine]) -> list[list[DrawnLine]]:
    """Rules in groups of those that touch."""
    groups: list[list[DrawnLine]] = []
    for rule in rules:
        met = [group for group in groups if any(_touch(rule, other) for other in group)]
        groups = [group for group in groups if group not in met] + [[rule, *chain(*met)]]
    return groups


def _touch(one: DrawnLine, other: DrawnLine) -> bool:
    return all(one[at] <= other[at + 2] + NEAR and other[at] <= one[at + 2] + NEAR for at in (0, 1))


def _fill(
    words: Sequence[Word], xs: Sequence[float], ys: Sequence[float], rules: Sequence[DrawnLine]
) -> list[list[list[Word]]]:
    """The words of each cell; neighbours without a line between them are one cell, which stands in each of its rows."""
    columns, rows = len(xs) - 1, len(ys) - 1
    cells: list[list[list[Word]]] = [[[] for _ in range(columns)] for _ in range(rows)]
    for word in words:
        y, x = word.y - 0.3 * word.size, (word.x0 + word.x1) / 2
        row = max((at for at in range(rows) if ys[at] <= y), default=0)
        column = max((at for at in range(columns) if xs[at] <= x), default=0)
        while column and not any(abs(rule.x0 - xs[column]) < 2 * NEAR and rule.y0 <= y <= rule.y1 for rule in rules):
            column -= 1
        cells[row][column].append(word)
    for column, (left, right) in enumerate(pairwise(xs)):
        over = [rule.y0 for rule in rules if rule.x0 <= (left + right) / 2 <= rule.x1]
        begun = 0
        for row in range(1, rows + 1):
            if row == rows or any(abs(y - ys[row]) < 2 * NEAR for y in over):
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
        inside = [word for word in words if holds(rule, word) and id(word) not in taken]
        beside = [word for word in words if rule.y0 < word.y < rule.y1 and not rule.x0 <= word.x0 <= rule.x1]
        lines = len({round(word.y) for word in inside})
        if lines < 2 or len(inside) > len(words) / 2 or len({round(word.y) for word in beside}) < 2:
            continue
        taken |= {id(word) for word in inside}
        found.append(inside)
    return found


def holds(box: DrawnLine, word: Word) -> bool:
    """Whether a word stands in a box."""
    return box.x0 <= (word.x0 + word.x1) / 2 <= box.x1 and box.y0 <= word.y - 0.3 * word.size <= box.y1
