"""What is drawn on a PDF's page besides letters: lines, boxes, what strikes text out, and how much ink there is."""

from __future__ import annotations

import ctypes
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pypdfium2
from pypdfium2 import raw

MAX_PATHS = 3000  # drawn on a page; more make a picture
THIN = 2.5  # points that a rule is wide at most
BAND = (0.1, 0.5)  # of the size of letters: how far above the baseline a line strikes them out
COVERED = 0.5  # share of a line that letters must fill; one that reaches further is of a chart or a table
SHOWN = 8  # levels of gray by which ink differs from the paper


Box = tuple[float, ...]  # left, bottom, right, top


@dataclass(frozen=True)
class DrawnLine:
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


def upright(x: float, y: float, angle: int) -> tuple[float, float]:
    """A point of the page as one reads text of this angle, which PDFium counts clockwise."""
    turn = math.radians(angle)
    return x * math.cos(turn) - y * math.sin(turn), -x * math.sin(turn) - y * math.cos(turn)


def upright_box(box: Box, angle: int) -> DrawnLine:
    """A box of the page, given by its left, bottom, right and top, as one reads text of this angle."""
    left, bottom, right, top = box
    corners = [upright(x, y, angle) for x in (left, right) for y in (bottom, top)]
    across, down = [corner[0] for corner in corners], [corner[1] for corner in corners]
    return DrawnLine(min(across), min(down), max(across), max(down))


def drawn_boxes(page: pypdfium2.PdfPage) -> list[Box]:
    """The bounds of drawn paths: left, bottom, right, top."""
    boxes, edges = list[Box](), [ctypes.c_float() for _ in range(4)]
    for number in range(raw.FPDFPage_CountObjects(page)):
        drawn = raw.FPDFPage_GetObject(page, number)
        if raw.FPDFPageObj_GetType(drawn) == raw.FPDF_PAGEOBJ_PATH and len(boxes) <= MAX_PATHS:
            raw.FPDFPageObj_GetBounds(drawn, *edges)
            boxes.append(tuple(edge.value for edge in edges))
    return boxes


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
    notes = list(_annotated(page))
    strikes: dict[tuple[int, int], list[tuple[DrawnLine, Box]]] = defaultdict(list)  # by angle and height
    for angle in {letter.angle for letter in letters}:
        for box in (*boxes, *notes):
            line = upright_box(box, angle)
            if (line.y1 - line.y0 <= 2 * THIN or box in notes) and line.x1 - line.x0 > 1:
                strikes[angle, round(line.y0 + line.y1) // 2].append((line, box))
    met: dict[Box, list[Letter]] = defaultdict(list)
    for letter in letters if strikes else ():
        top, bottom = (letter.y - share * letter.size for share in reversed(BAND))
        for height in range(math.floor(top), math.ceil(bottom) + 1) if letter.size else ():
            for line, box in strikes.get((letter.angle, height), ()):
                thin = line.y1 - line.y0 <= 0.2 * letter.size or box in notes
                within = line.x0 <= (letter.x0 + letter.x1) / 2 <= line.x1
                if thin and within and top <= (line.y0 + line.y1) / 2 <= bottom:
                    met[box].append(letter)
    wide = {box: sum(letter.x1 - letter.x0 for letter in found) for box, found in met.items()}
    struck = {box for box, width in wide.items() if width >= COVERED * max(box[2] - box[0], box[3] - box[1])}
    gone = {letter.at for box in struck for letter in met[box]}
    inked = [letter.at in gone for letter in letters if letter.size]
    return gone, struck, sum(here and not before for before, here in zip([False, *inked], inked, strict=False))


def ink_of(page: pypdfium2.PdfPage) -> float:
    """The share of a page, in squares of five points, that does not look like its paper."""
    shown = page.render(scale=min(0.2, 1000 / max(page.get_size())), grayscale=True).to_numpy().astype(np.int16)
    return float(np.mean(np.abs(shown - np.median(shown)) > SHOWN))
