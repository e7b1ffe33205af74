"""Tables in drawn grids, and text in boxes beside the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from medagent.retrieval.readers.pdf_words import THIN, Rule, Word

NEAR = 3.0  # points within which lines touch
MOST_RULES = 400  # of a page with tables; more make a picture
SHORTEST = 8.0  # points that a rule is long at least


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


def grids_of(rules: Sequence[Rule], words: Sequence[Word]) -> list[Grid]:
    """The tables of a page: lines that touch, at least three across and two down, with words in several cells."""
    across, down = _lines(rules)
    grids: list[Grid] = []
    if len(across) + len(down) > MOST_RULES:
        return grids
    for group in _touching([*across, *down]):
        ys = _places([rule.y0 for rule in group if rule in across])
        xs = _places([rule.x0 for rule in group if rule in down])
        if len(ys) < 3 or len(xs) < 2:
            continue
        inside = [word for word in words if _within(word, xs[0], ys[0], xs[-1], ys[-1])]
        cells = _fill(inside, xs, ys, [rule for rule in group if rule in across], [r for r in group if r in down])
        if sum(sum(map(bool, row)) > 1 for row in cells) > 1:
            grids.append(Grid(cells, ys[0], ys[-1], xs[0], xs[-1]))
    return grids


def _lines(rules: Sequence[Rule]) -> tuple[list[Rule], list[Rule]]:
    """Rules across and down; the sides of boxes are rules too."""
    across, down = [], []
    for rule in rules:
        width, height = rule.x1 - rule.x0, rule.y1 - rule.y0
        if height <= THIN:
            if width >= SHORTEST:
                middle = (rule.y0 + rule.y1) / 2
                across.append(Rule(rule.x0, middle, rule.x1, middle))
        elif width <= THIN:
            if height >= SHORTEST:
                middle = (rule.x0 + rule.x1) / 2
                down.append(Rule(middle, rule.y0, middle, rule.y1))
        else:
            across += [Rule(rule.x0, y, rule.x1, y) for y in (rule.y0, rule.y1)]
            down += [Rule(x, rule.y0, x, rule.y1) for x in (rule.x0, rule.x1)]
    flat = _merged([(rule.y0, rule.x0, rule.x1) for rule in across])
    tall = _merged([(rule.x0, rule.y0, rule.y1) for rule in down])
    return [Rule(x0, y, x1, y) for y, x0, x1 in flat], [Rule(x, y0, x, y1) for x, y0, y1 in tall]


def _merged(lines: Sequence[tuple[float, float, float]]) -> list[tuple[float, float, float]]:
    """Lines, each at a place and from one end to the other, with those that prolong each other as one."""
    whole: list[tuple[float, float, float]] = []
    for place, start, end in sorted((round(place), start, end) for place, start, end in lines):
        if whole and whole[-1][0] == place and start <= whole[-1][2] + NEAR:
            whole[-1] = (place, whole[-1][1], max(end, whole[-1][2]))
        else:
            whole.append((place, start, end))
    return whole


def _touching(rules: Sequence[Rule]) -> list[list[Rule]]:
    """Rules in groups of those that touch."""
    groups: list[list[Rule]] = []
    for rule in rules:
        met = [group for group in groups if any(_touch(rule, other) for other in group)]
        groups = [group for group in groups if not any(group is other for other in met)]
        groups.append([rule, *(other for group in met for other in group)])
    return groups


def _touch(one: Rule, other: Rule) -> bool:
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
    words: Sequence[Word], xs: Sequence[float], ys: Sequence[float], across: Sequence[Rule], down: Sequence[Rule]
) -> list[list[list[Word]]]:
    """The words of each cell. What has no line to its left or above it is one cell with its neighbour.

    A cell over several columns stands in the first of them, one over several rows in each of them.
    """
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


def boxed_aside(rules: Sequence[Rule], words: Sequence[Word]) -> list[list[Word]]:
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
