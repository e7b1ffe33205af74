"""What PDFium finds on a page, in points: words (x to the right, y down, as one reads), lines, boxes, and ink."""

import ctypes
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

import numpy as np
import pypdfium2
from pypdfium2 import raw

from medagent.retrieval.readers.marks import superscript

MAX_PATHS = 3000  # drawn on a page; more make a picture
THIN = 2.5  # points that a rule is wide at most
BAND = (0.1, 0.5)  # of the size of letters: how far above the baseline a line strikes them out
COVERED = 0.5  # share of a line that letters must fill; one that reaches further is of a chart or a table
SHOWN = 8  # levels of gray by which ink differs from the paper
Box = tuple[float, ...]  # left, bottom, right, top


class DrawnLine(NamedTuple):
    """A drawn line or box; a line has no height or no width but its own."""

    x0: float
    y0: float
    x1: float
    y1: float


class Letter(NamedTuple):
    """A letter, or a blank of no size: `angle` as PDFium counts it, and `generated` where PDFium put the blank."""

    at: int
    code: int
    angle: int = 0
    x0: float = 0.0
    x1: float = 0.0
    y: float = 0.0
    size: float = 0.0
    generated: bool = False


def upright_box(box: Box, angle: int) -> DrawnLine:
    """A box of the page as one reads text of this angle, which PDFium counts clockwise."""
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    across, down = zip(*((x * cos - y * sin, -x * sin - y * cos) for x in box[::2] for y in box[1::2]), strict=True)
    return DrawnLine(min(across), min(down), max(across), max(down))


def drawn_boxes(page: pypdfium2.PdfPage) -> list[Box]:
    """The bounds of drawn paths: left, bottom, right, top."""
    drawn = page.get_objects(filter=[raw.FPDF_PAGEOBJ_PATH], max_depth=1)
    return [path.get_bounds() for path in islice(drawn, MAX_PATHS + 1)]


def _annotated(page: pypdfium2.PdfPage) -> Iterator[Box]:
    """The bounds of the StrikeOut annotations that are shown, line by line."""
    quad = raw.FS_QUADPOINTSF()
    for number in range(raw.FPDFPage_GetAnnotCount(page)):
        note = raw.FPDFPage_GetAnnot(page, number)
        hidden = raw.FPDFAnnot_GetFlags(note) & raw.FPDF_ANNOT_FLAG_HIDDEN
        if raw.FPDFAnnot_GetSubtype(note) == raw.FPDF_ANNOT_STRIKEOUT and not hidden:
            for at in range(raw.FPDFAnnot_CountAttachmentPoints(note)):
                raw.FPDFAnnot_GetAttachmentPoints(note, at, quad)
                xs, ys = (quad.x1, quad.x2, quad.x3, quad.x4), (quad.y1, quad.y2, quad.y3, quad.y4)
                yield min(xs), min(ys), max(xs), max(ys)
        raw.FPDFPage_CloseAnnot(note)


def struck_out(
    page: pypdfium2.PdfPage, letters: Sequence[Letter], boxes: Sequence[Box]
) -> tuple[set[int], set[Box], int]:
    """Letters that drawn boxes or annotations strike out, by their place; those boxes; and how many texts it makes."""
    notes, gone, struck = set(_annotated(page)), set[int](), set[Box]()
    for angle in {letter.angle for letter in letters}:
        own = [letter for letter in letters if letter.angle == angle and letter.size]
        x0, x1, y, size = np.array([letter[3:7] for letter in own]).reshape(-1, 4).T
        for box in {*boxes, *notes}:
            line = upright_box(box, angle)
            wide, high = line.x1 - line.x0, line.y1 - line.y0
            if wide <= 1 or (high > 2 * THIN and box not in notes):
                continue
            above = y - (line.y0 + line.y1) / 2
            met = (BAND[0] * size <= above) & (above <= BAND[1] * size) & ((high <= 0.2 * size) | (box in notes))
            met &= (line.x0 <= (x0 + x1) / 2) & ((x0 + x1) / 2 <= line.x1)
            if met.any() and (x1 - x0)[met].sum() >= COVERED * wide:
                struck.add(box)
                gone |= {own[at].at for at in np.flatnonzero(met)}
    inked = [letter.at in gone for letter in letters if letter.size]
    return gone, struck, sum(here and not before for before, here in zip([False, *inked], inked, strict=False))


def ink_of(page: pypdfium2.PdfPage) -> float:
    """The share of a page, in squares of five points, that does not look like its paper."""
    shown = page.render(scale=min(0.2, 1000 / max(page.get_size())), grayscale=True).to_numpy().astype(np.int16)
    return float(np.mean(np.abs(shown - np.median(shown)) > SHOWN))


def pictured(page: pypdfium2.PdfPage) -> float:
    """The share of a page that pictures cover, each counted for itself."""
    left, bottom, right, top = page.get_bbox()
    boxes = [picture.get_bounds() for picture in page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE])]
    shown = np.clip(np.array(boxes).reshape(-1, 4), (left, bottom, left, bottom), (right, top, right, top))
    return float(np.prod(shown[:, 2:] - shown[:, :2], axis=1).sum() / ((right - left) * (top - bottom)))


PART = 0.2  # share of a page's characters from which text in another direction is text, and no mark in the margin
GAP = 0.3  # of the size of letters, from which white space parts words
RIGHT_TO_LEFT = "\u0590"  # the first letter that may be written so
_BOLD = re.compile(rb"bold|black|heavy|semib|demi", re.IGNORECASE)
_LINE_END = "\u00ad"
_HYPHENS = {0x02: _LINE_END, 0xFFFE: _LINE_END, 0xAD: _LINE_END}  # PDFium's marks of a hyphen at the end of a line
_BLANK = {0, 9, 10, 13, 32, 0xA0, 0x2002, 0x2003, 0x2009, 0x202F, 0x3000}


@dataclass
class Word:
    """A word: where it begins and ends, its baseline, the size of its letters, and whether a blank came before it."""

    text: str
    x0: float
    x1: float
    y: float
    size: float
    bold: bool = False
    spaced: bool = True


@dataclass
class PlacedPage:
    """The words of a page in the order in which they were drawn, and what is drawn between them."""

    number: int
    label: str  # as it is printed, or the number
    words: list[Word]
    rules: list[DrawnLine] = field(default_factory=list)
    turned: list[list[Word]] = field(default_factory=list)  # stretches of text in other directions
    edges: tuple[float, float] = (0.0, 0.0)  # where the page begins and ends, from the top down
    struck: int = 0  # texts that are struck out and left out
    lacks: str = ""  # what it lacks: "no text"


def placed_page(page: pypdfium2.PdfPage, number: int, label: str) -> PlacedPage:
    """A page's words, upright; a little text in another direction is left out."""
    with closing(page.get_textpage()) as text:
        letters = list(_letters(text, page.get_bbox()))
        boxes = drawn_boxes(page)
        gone, strikes, struck = struck_out(page, letters, boxes)
        by_angle: dict[int, list[Word]] = defaultdict(list)
        for angle, word in _words(text, letters, gone):
            by_angle[angle].append(word)
    lengths = {angle: sum(len(word.text) for word in words) for angle, words in by_angle.items()}
    much = [angle for angle in lengths if angle % 90 == 0 and lengths[angle] >= PART * sum(lengths.values())]
    if not much:
        return PlacedPage(number, label, [], struck=struck)
    much.sort(key=lambda angle: -lengths[angle])
    words, *turned = [with_marks(by_angle[angle]) for angle in much]
    rules = [upright_box(box, much[0]) for box in boxes if box not in strikes]
    edges = upright_box(page.get_bbox(), much[0])
    return PlacedPage(number, label, words, rules, turned, (edges.y0, edges.y1), struck)


def _letters(text: pypdfium2.PdfTextPage, bounds: tuple[float, float, float, float]) -> Iterator[Letter]:
    """The letters that are shown, and blanks."""
    rect, x, y = raw.FS_RECTF(), ctypes.c_double(), ctypes.c_double()
    left, bottom, right, top = bounds
    for at in range(text.count_chars()):
        code = raw.FPDFText_GetUnicode(text, at)
        if code in _BLANK:
            yield Letter(at, code, generated=bool(raw.FPDFText_IsGenerated(text, at)))
            continue
        raw.FPDFText_GetLooseCharBox(text, at, rect)
        raw.FPDFText_GetCharOrigin(text, at, x, y)
        if not (left - 1 < x.value < right + 1 and bottom - 1 < y.value < top + 1):
            continue  # outside what is shown, as printers' marks are
        angle = round(math.degrees(raw.FPDFText_GetCharAngle(text, at))) % 360
        if angle:
            box = upright_box((rect.left, rect.bottom, rect.right, rect.top), angle)
            origin = upright_box((x.value, y.value, x.value, y.value), angle)
            yield Letter(at, code, angle, box.x0, box.x1, origin.y0, box.y1 - box.y0)
        else:
            yield Letter(at, code, 0, rect.left, rect.right, -y.value, rect.top - rect.bottom)


def _words(text: pypdfium2.PdfTextPage, letters: Iterable[Letter], gone: set[int]) -> Iterator[tuple[int, Word]]:
    """Each word with its angle. A word ends at a blank, a gap, a new line and where letters change their size.

    Letters that are gone make words of no text, which keep their room in the line.
    """
    name, flags = ctypes.create_string_buffer(128), ctypes.c_int()
    word: Word | None = None
    held, spaced, guessed = 0, True, False
    for at, code, angle, x0, x1, baseline, size, generated in letters:
        if code in _BLANK:
            guessed = generated
            spaced |= not guessed
            continue
        letter = "" if at in gone else _HYPHENS.get(code) or chr(code)
        if guessed:  # PDFium puts a blank where a new piece of text begins
            near = word is not None and angle == held and abs(x0 - word.x1) < 0.12 * min(size, word.size)
            spaced, guessed = spaced or not near, False
        if (
            word is not None
            and not spaced
            and angle == held
            and bool(letter) == bool(word.text)
            and abs(size - word.size) < 0.15 * word.size
            and abs(baseline - word.y) < 0.1 * word.size
            and (
                word.x0 - 0.1 * size <= x0 < word.x1 + GAP * size
                or (letter >= RIGHT_TO_LEFT and abs(word.x0 - x1) < GAP * size)
            )
        ):
            word.text += letter
            word.x0, word.x1 = min(word.x0, x0), max(word.x1, x1)
            continue
        if word is not None:
            yield held, word
        count = raw.FPDFText_GetFontInfo(text, at, name, len(name), flags)
        bold = bool(_BOLD.search(name.raw[:count]))
        word, held, spaced = Word(letter, x0, x1, baseline, size, bold, spaced), angle, False
    if word is not None:
        yield held, word


def with_marks(words: list[Word]) -> list[Word]:
    """The words with raised and lowered ones in their place: see `superscript`."""
    kept: list[Word] = []
    for at, word in enumerate(words):
        host = kept[-1] if kept else None
        if host is not None and _is_small(word, host) and -0.15 * host.size < word.x0 - host.x1 < 0.6 * host.size:
            following = words[at + 1].text if at + 1 < len(words) and not words[at + 1].spaced else ""
            added = word.text if word.y > host.y else superscript(word.text, host.text, following)
            if not word.spaced:
                kept[-1] = replace(host, text=host.text + added, x1=max(host.x1, word.x1))
            else:
                kept.append(replace(word, y=host.y, size=host.size))  # "99m" of "99mTc"
            continue
        after = words[at + 1] if at + 1 < len(words) else None
        if after is not None and _is_small(word, after) and 0 <= after.x0 - word.x1 < after.size:
            word = replace(word, y=after.y, size=after.size)  # the mark before a footnote
        elif after is not None and _is_initial(word, after):
            words[at + 1] = replace(after, text=word.text + after.text, x0=word.x0)
            continue
        elif host is not None and _is_rest(word, host):
            kept[-1] = replace(host, text=host.text + word.text, x1=word.x1)
            continue
        kept.append(word)
    return kept


def _is_small(word: Word, host: Word) -> bool:
    return word.size < 0.85 * host.size and 0.08 * host.size < abs(host.y - word.y) < 0.7 * host.size


def _is_initial(word: Word, after: Word) -> bool:
    """Whether a word is a letter as tall as lines, at the beginning of a text."""
    tall = len(word.text) == 1 and word.text.isupper() and word.size > 1.7 * after.size
    return tall and after.y < word.y + 1 and after.text[:1].islower() and 0 <= after.x0 - word.x1 < after.size


def _is_rest(word: Word, host: Word) -> bool:
    """Whether a word was drawn in pieces, or goes on after an exponent."""
    on_line = abs(word.y - host.y) < 0.05 * host.size
    return not word.spaced and on_line and -0.1 * host.size < word.x0 - host.x1 < 0.15 * host.size
