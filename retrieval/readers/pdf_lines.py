"""Words of a page to pieces of lines, and lines to paragraphs."""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise, zip_longest
from statistics import median

from medagent.retrieval.readers.marks import expand_ligatures
from medagent.retrieval.readers.pdf_words import PlacedPage, Word

BETWEEN = 0.5  # of the size of letters: white space that may part columns
_BULLET = re.compile(r"[•‣▪●○◦■□–—*·✓➢]|-|\(?(?:\d{1,3}|[a-z]|[ivx]{1,5})[.)]")
_ENDS = re.compile(r"[.!?:;][\"')\]”’»]*$")
_HYPHENATED = re.compile(r"(?<=[^\W\d_])[-\u00ad\u2010]$")
_ENTRY = re.compile(r"(?:\.\s?){4,}\d+$")  # of a table of contents
_SUSPENDED = frozenset("and or to und oder et ou y e o".split())
_JOINED = re.compile(r"(?:(?<=\w)[-\u2010–—]|/)$")
AROUND = 2  # pages before and after, since left and right pages may differ
DEEP = 3  # lines from the edge
APART = 1.6  # of the size of letters: how far running lines are from the text
_NUMBER = re.compile(r"\d+")
_PAGE = re.compile(
    r"[-–—|\s]*(?:(?:page|pg\.?|p\.|seite|página|pagina|side|s\.)\s*)?(?:\d{1,4}|[ivxl]{1,6})"
    r"(?:\s*(?:of|von|de|di|sur|/)\s*\d{1,4})?[-–—|\s]*",
    re.IGNORECASE,
)


@dataclass
class LinePart:
    """Words of one line with no wide gap between them."""

    words: list[Word]
    x0: float
    x1: float
    y: float
    size: float

    @property
    def text(self) -> str:
        """The words in reading order, right to left where the letters run so."""
        text = " ".join(word.text for word in self.words if word.text)
        if text.isascii():
            return text
        if sum(unicodedata.bidirectional(letter) in ("R", "AL") for letter in text) > len(text) / 2:
            text = " ".join(word.text for word in reversed(self.words))
        return expand_ligatures(unicodedata.normalize("NFC", text))

    @property
    def bold(self) -> bool:
        """Whether all words are."""
        return all(word.bold for word in self.words)


def piece_of(words: Sequence[Word]) -> LinePart:
    """Words of a line as one piece."""
    ordered = sorted(words, key=lambda word: word.x0)
    size = max(ordered, key=lambda word: len(word.text)).size
    return LinePart(ordered, ordered[0].x0, max(word.x1 for word in ordered), ordered[0].y, size)


def rows_of(pieces: Iterable[LinePart]) -> list[list[LinePart]]:
    """Pieces by their baseline, from the top down, each row from left to right."""
    rows: list[list[LinePart]] = []
    for piece in sorted(pieces, key=lambda each: (each.y, each.x0)):
        if rows and piece.y - rows[-1][0].y < 0.25 * min(piece.size, rows[-1][0].size):
            rows[-1].append(piece)
        else:
            rows.append([piece])
    return [sorted(row, key=lambda each: each.x0) for row in rows]


def pieces_of(words: Iterable[Word]) -> list[LinePart]:
    """A page's words as pieces; the mark of a list's item is part of what follows it."""
    pieces: list[LinePart] = []
    for row in rows_of(LinePart([word], word.x0, word.x1, word.y, word.size) for word in words):
        held: list[Word] = []
        for word in (each.words[0] for each in row):
            if held:
                gap, size = word.x0 - max(each.x1 for each in held), max(word.size, held[-1].size)
                marker = len(held) == 1 and _BULLET.fullmatch(held[0].text) is not None and gap < 4 * size
                if gap > BETWEEN * size and not marker:
                    pieces.append(piece_of(held))
                    held = []
            held.append(word)
        pieces.append(piece_of(held))
    return pieces


def lines_of(pieces: Sequence[LinePart]) -> list[LinePart]:
    """The pieces of a column as its lines."""
    return [piece_of([word for piece in row for word in piece.words]) for row in rows_of(pieces)]


@dataclass
class Paragraph:
    """Lines that belong together; `full` where the last one reaches the end of its column."""

    lines: list[LinePart]
    full: bool

    @property
    def size(self) -> float:
        """The size of most letters."""
        return float(median(line.size for line in self.lines))

    def goes_on_in(self, after: "Paragraph") -> bool:
        """Whether a paragraph at the top of the next column is the rest of this one."""
        ended = _ENDS.search(self.lines[-1].text) is not None
        if ended or abs(self.size - after.size) > 0.1 * self.size or is_item(after.lines[0].text):
            return False
        return after.lines[0].text[:1].islower() or (self.full and len(self.lines) > 1)


def is_item(line: str) -> bool:
    """Whether a line begins with the mark of a list's item."""
    first, _, rest = line.partition(" ")
    return bool(rest) and _BULLET.fullmatch(first) is not None


def paragraphs(lines: Sequence[LinePart]) -> list[Paragraph]:
    """The paragraphs of a column: parted by space, by another size, by an indent and by the marks of lists."""
    if not lines:
        return []
    right = max(line.x1 for line in lines)
    width = right - min(line.x0 for line in lines)
    gaps = sorted(below.y - above.y for above, below in pairwise(lines))
    usual = gaps[len(gaps) // 4] if gaps else 0.0
    if len(gaps) < 3 and gaps:
        usual = min(usual, 1.5 * min(line.size for line in lines))
    groups = [[lines[0]]]
    for above, below in pairwise(lines):
        gap, size = below.y - above.y, above.size
        first = groups[-1][0]
        ended = _ENDS.search(above.text) is not None or above.x1 < right - 0.25 * width
        indented = below.x0 > above.x0 + 0.8 * size and below.x0 > first.x0 + 0.8 * size
        if (
            gap > 1.3 * max(usual, 0.9 * size)
            or abs(size - below.size) > 0.12 * size
            or is_item(below.text)
            or _ENTRY.search(above.text) is not None
            or _is_broken_on_purpose(above, below, right)
            or (ended and indented)
            or (above.bold and not below.bold and above.x1 < right - 0.1 * width)
            or (below.bold and not above.bold and ended)
        ):
            groups.append([])
        groups[-1].append(below)
    return [Paragraph(group, group[-1].x1 > right - 0.12 * width) for group in groups]


def _is_broken_on_purpose(above: LinePart, below: LinePart, right: float) -> bool:
    """Whether the next line's first word would have had room in this one."""
    if below.text[:1].islower() or _HYPHENATED.search(above.text):
        return False
    first = below.words[0]
    return above.x1 + first.x1 - first.x0 + 2 * above.size < right


def joined(lines: Iterable[str], hyphenated: frozenset[str] = frozenset()) -> str:
    """Lines as one, without the hyphens of parted words but for `hyphenated` ones."""
    text = ""
    for line in lines:
        line = " ".join(line.split())
        if not text or not line:
            text += line
        elif _HYPHENATED.search(text) and line[:1].islower():
            before = re.search(r"[\w-]+$", text[:-1])
            after = re.match(r"\w+", line)
            if after and after[0] in _SUSPENDED:  # "pre-" and "and postoperative"
                text = f"{text[:-1]}- {line}"
                continue
            whole = _key(f"{before[0]}-{after[0]}") if before and after else ""
            text = text[:-1] + ("-" if whole in hyphenated else "") + line
        elif text.endswith("\u00ad"):
            text = text[:-1] + "-" + line
        elif _JOINED.search(text) and line[:1].isalnum():
            text += line
        else:
            text += " " + line
    return text.replace("\u00ad", "")


def hyphenated_words(lines: Iterable[str]) -> frozenset[str]:
    """Words with a hyphen within a line."""
    return frozenset(_key(word) for line in lines for word in re.findall(r"\w+(?:-\w+)+", line))


def _key(word: str) -> str:
    return word.lower().removesuffix("s")


_Edge = list[list[LinePart]]  # lines from the outermost inwards, one more than may go


def without_running(pages: Sequence[PlacedPage]) -> Iterator[PlacedPage]:
    """The pages without their running lines."""
    edged = [(page, [_edge(page.words, top=top) for top in (True, False)]) for page in pages]
    for at, (page, edges) in enumerate(edged):
        around = edged[max(at - AROUND, 0) : at] + edged[at + 1 : at + 1 + AROUND]
        gone = set[int]()
        for side, edge in enumerate(edges):
            others = [(other.number, piece) for other, theirs in around for row in theirs[side] for piece in row]
            gone |= {id(word) for piece in _running(edge, page, others) for word in piece.words}
        if page.lacks and _PAGE.fullmatch(" ".join(word.text for word in page.words)):
            gone |= {id(word) for word in page.words}
        yield replace(page, words=[word for word in page.words if id(word) not in gone])


def _edge(words: Sequence[Word], *, top: bool) -> _Edge:
    """The lines at the top or at the bottom of a page."""
    words = sorted(words, key=lambda each: each.y, reverse=not top)
    breaks = (at for at, (one, other) in enumerate(pairwise(words), 1) if abs(one.y - other.y) > 2)
    rows = rows_of(pieces_of(words[: next(islice(breaks, DEEP + 1, None), None)]))
    return (rows if top else rows[::-1])[: DEEP + 1]


def _running(edge: _Edge, page: PlacedPage, others: Sequence[tuple[int, LinePart]]) -> list[LinePart]:
    """The pieces of an edge that run: from the outermost line inwards, and apart from the text below or above them."""
    found, pending = list[LinePart](), list[LinePart]()
    for row, after in zip_longest(edge[:DEEP], edge[1:]):
        if after and _is_of_table(row, after):
            break
        runs = [piece for piece in row if _recurs(piece, page.number, others) or _is_page_number(piece, row, page)]
        pending += runs
        if runs and after and abs(after[0].y - row[0].y) > APART * max(row[0].size, after[0].size):
            found, pending = found + pending, []
        if len(runs) < len(row):
            break
    return found


def _is_of_table(row: Sequence[LinePart], after: Sequence[LinePart]) -> bool:
    """Whether several pieces of the next line stand in columns with those of this one."""

    def meet(one: LinePart, other: LinePart) -> bool:  # the right end tells nothing beside a page number
        left, right = abs(one.x0 - other.x0), abs(one.x1 - other.x1)
        return left < 2 or abs(one.x0 - other.x0 + one.x1 - other.x1) < 4 or (len(after) > 2 and right < 2)

    return min(len(row), len(after)) > 1 and all(any(meet(piece, other) for other in row) for piece in after)


def _recurs(piece: LinePart, number: int, others: Sequence[tuple[int, LinePart]]) -> bool:
    own = _forms(piece.text, number)
    return any(abs(other.y - piece.y) < 4 and own & _forms(other.text, page) for page, other in others)


def _forms(text: str, number: int) -> set[str]:
    """A line as it is, and with each of its numbers by how far it is from the page's: "Page 3 of 12"."""
    numbers = (found for found in _NUMBER.finditer(text) if len(found[0]) <= 4)
    return {text, *(f"{text[: at.start()]}\x00{int(at[0]) - number}{text[at.end() :]}" for at in numbers)}


def _is_page_number(piece: LinePart, row: Sequence[LinePart], page: PlacedPage) -> bool:
    """Whether a piece is a page's number and nothing else; a bare number only where it is alone on its line."""
    if _PAGE.fullmatch(piece.text) is None or len(page.words) < 5:
        return False
    size = sorted(word.size for word in page.words)[len(page.words) // 2]
    return piece.size < 1.2 * size and (len(row) == 1 or not piece.text.strip(" -–—|").isalnum())
