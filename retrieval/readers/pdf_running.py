"""Running headers, footers and page numbers: what stands at the same place of pages near each other.

A page is compared with the two before and the two after it, so that no more than five are held.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from medagent.retrieval.readers.pdf_lines import LinePart, pieces_of, rows_of
from medagent.retrieval.readers.pdf_words import PlacedPage, Word

AROUND = 2  # pages before and after, since left and right pages may differ
DEEP = 3  # lines from the edge
APART = 1.6  # of the size of letters: how far running lines are from the text
_NUMBER = re.compile(r"\d+")
_PAGE = re.compile(
    r"[-–—|\s]*(?:(?:page|pg\.?|p\.|seite|página|pagina|side|s\.)\s*)?(?:\d{1,4}|[ivxl]{1,6})"
    r"(?:\s*(?:of|von|de|di|sur|/)\s*\d{1,4})?[-–—|\s]*",
    re.IGNORECASE,
)
_Edge = list[list[LinePart]]  # lines from the outermost inwards, one more than may go


def without_running(pages: Iterable[PlacedPage]) -> Iterator[PlacedPage]:
    """The pages without their running lines."""
    held: deque[tuple[PlacedPage, list[_Edge]]] = deque()
    waiting = 0  # where in `held` the page stands that comes next
    ends: Iterable[PlacedPage | None] = chain(pages, [None] * AROUND)
    for page in ends:
        if page is not None:
            held.append((page, [_edge(page.words, top=True), _edge(page.words, top=False)]))
        ready = len(held) - AROUND if page is not None else len(held)
        if waiting < ready or (page is None and waiting < len(held)):
            yield _cleaned(waiting, held)
            waiting += 1
            if waiting > AROUND:
                held.popleft()
                waiting -= 1


def _edge(words: Sequence[Word], *, top: bool) -> _Edge:
    """The lines at the top or at the bottom of a page."""
    heights: list[float] = []
    near: list[Word] = []
    for word in sorted(words, key=lambda each: each.y if top else -each.y):
        if not heights or abs(word.y - heights[-1]) > 2:
            heights.append(word.y)
            if len(heights) > DEEP + 2:
                break
        near.append(word)
    rows = rows_of(pieces_of(near))
    return (rows if top else rows[::-1])[: DEEP + 1]


def _cleaned(at: int, held: Sequence[tuple[PlacedPage, list[_Edge]]]) -> PlacedPage:
    page, edges = held[at]
    gone: set[int] = set()
    for side, edge in enumerate(edges):
        others = [(other.number, around[side]) for other, around in held if other is not page]
        gone |= {id(word) for piece in _running(edge, page, others) for word in piece.words}
    return replace(page, words=[word for word in page.words if id(word) not in gone]) if gone else page


def _running(edge: _Edge, page: PlacedPage, others: Sequence[tuple[int, _Edge]]) -> list[LinePart]:
    """The pieces of an edge that run: from the outermost line inwards, and apart from the text below or above them."""
    found: list[LinePart] = []
    pending: list[LinePart] = []
    for depth, row in enumerate(edge[:DEEP]):
        runs = [piece for piece in row if _recurs(piece, page.number, others) or _is_page_number(piece, row, page)]
        if not runs:
            break
        pending += runs
        after = edge[depth + 1] if depth + 1 < len(edge) else None
        if after is not None and abs(after[0].y - row[0].y) > APART * max(row[0].size, after[0].size):
            found += pending
            pending = []
        if len(runs) < len(row):
            break
    return found


def _recurs(piece: LinePart, number: int, others: Sequence[tuple[int, _Edge]]) -> bool:
    own = _forms(piece.text, number)
    return any(
        abs(other.y - piece.y) < 4 and own & _forms(other.text, page)
        for page, edge in others
        for row in edge
        for other in row
    )


def _forms(text: str, number: int) -> set[str]:
    """A line as it is, and with each of its numbers by how far it is from the page's: "Page 3 of 12"."""
    forms = {text}
    for found in _NUMBER.finditer(text):
        if len(found[0]) <= 4:
            forms.add(f"{text[: found.start()]}\x00{int(found[0]) - number}{text[found.end() :]}")
    return forms


def _is_page_number(piece: LinePart, row: Sequence[LinePart], page: PlacedPage) -> bool:
    """Whether a piece is a page's number and nothing else; a bare number only where it is alone on its line."""
    if _PAGE.fullmatch(piece.text) is None or len(page.words) < 5:
        return False
    size = sorted(word.size for word in page.words)[len(page.words) // 2]
    return piece.size < 1.2 * size and (len(row) == 1 or not piece.text.strip(" -–—|").isalnum())
