"""Pages without text by Tesseract, as words at their places, so that columns and tables are told apart as ever."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import groupby
from statistics import median

import pypdfium2
from pypdfium2 import raw

from medagent.retrieval.readers.base import is_number
from medagent.retrieval.readers.pdf_words import PlacedPage, Word
from medagent.retrieval.readers.tesseract import Tesseract

DPI, LEAST_DPI, LONGEST = 300, 150, 10_000  # resolution at most and at least, and pixels of a page's longer side
UNSURE, DOUBTED = 70, 80  # of 100: mean confidence of a page that is named, and that of a number on it
BULLETS = frozenset("¢«»°©")  # as which Tesseract reads them
TALL, HANGING = frozenset("bdfhklt"), frozenset("gjpqyQ,;()[]/|")
CAPITAL, SMALL, BEARING = 0.65, 0.47, 0.06  # heights of letters and the room beside them, of their size


def recognized(page: pypdfium2.PdfPage, placed: PlacedPage, tesseract: Tesseract) -> PlacedPage:
    """The page with the words that Tesseract finds on it, in points from its upper left; else as it was."""
    scale = min(_dpi(page) / 72, LONGEST / max(page.get_size()))
    image = page.render(scale=scale, grayscale=True).to_numpy()
    rows = tesseract.read(image.reshape(image.shape[:2]), round(72 * scale))
    words: list[Word] = []
    found = [row for row in rows if row["level"] == "5" and row["text"].strip()]
    for _, line in groupby(found, key=lambda row: [row[name] for name in ("block_num", "par_num", "line_num")]):
        words += _line(list(line), scale)
    if len(words) <= len(placed.words):
        return placed
    usual = median(word.size for word in words)
    words = [replace(word, size=usual) if abs(word.size - usual) < 0.25 * usual else word for word in words]
    numbers = [
        row for row in found if is_number(row["text"]) or (len(row["text"]) == 1 and row["text"].isalpha())
    ]  # S mg
    doubtful = any(float(row["conf"]) < DOUBTED for row in numbers)
    doubtful = doubtful or sum(float(row["conf"]) for row in found) < UNSURE * len(found)
    lacks = "recognized text of low confidence" if doubtful else ""
    return PlacedPage(placed.number, placed.label, words, edges=(0.0, image.shape[0] / scale), lacks=lacks)


def _dpi(page: pypdfium2.PdfPage) -> float:
    """Twice the resolution of the sharpest picture: beyond that, magnified pixels make letters worse."""
    sharpest = 0.0
    for picture in page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE]):
        (width, height), (left, bottom, right, top) = picture.get_px_size(), picture.get_bounds()
        sharpest = max(sharpest, 72 * math.sqrt(width * height / max((right - left) * (top - bottom), 1.0)))
    return min(DPI, max(LEAST_DPI, 2 * sharpest)) if sharpest else DPI


def _line(rows: list[dict[str, str]], scale: float) -> list[Word]:
    """The words of a line on one baseline: the median of their lower edges, but for letters that hang below it."""
    boxes: list[Word] = []
    for row in rows:
        x, y, width, height = (int(row[name]) / scale for name in ("left", "top", "width", "height"))
        boxes.append(Word(row["text"], x, x + width, y + height, height))
    boxes[0].text = "•" if boxes[0].text in BULLETS else boxes[0].text
    lower = [box.y for box in boxes if not HANGING & set(box.text)]
    baseline = median(lower or [box.y - 0.2 * box.size for box in boxes])
    capital = [box for box in boxes if any(c in TALL or c.isupper() or c.isdigit() for c in box.text)]
    size = median(baseline - box.y + box.size for box in capital or boxes) / (CAPITAL if capital else SMALL)
    side = BEARING * size  # which Tesseract's boxes lack
    return [replace(box, x0=box.x0 - side, x1=box.x1 + side, y=baseline, size=max(size, 1.0)) for box in boxes]
