"""What is drawn on a PDF's page besides letters: lines, boxes, what strikes text out, and how much ink there is."""

import ctypes
import math
from collections.abc import Iterator, Sequence
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
