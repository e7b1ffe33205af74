"""PDF by PDFium: each page is a section. Columns, tables and running lines are told apart; scans want recognition."""

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import groupby
from statistics import median
from subprocess import SubprocessError

import pypdfium2

from medagent.retrieval.chunking import Document
from medagent.retrieval.passages import replace_surrogates
from medagent.retrieval.readers.base import Item, LeftOut, OpenFile, Skipped, UnusableFileError, is_number
from medagent.retrieval.readers.marks import expand_ligatures
from medagent.retrieval.readers.pdf_blocks import read_pages
from medagent.retrieval.readers.pdf_drawn import ink_of, pictured
from medagent.retrieval.readers.pdf_lines import hyphenated_words, without_running
from medagent.retrieval.readers.pdf_titles import bookmarks_of, sections_of, text_or_none, title_on, year_of
from medagent.retrieval.readers.pdf_words import PlacedPage, Word, placed_page
from medagent.retrieval.readers.tesseract import Tesseract
from medagent.retrieval.readers.text import title_from_name

LITTLE, STAMPED = 10, 20  # words between its edges that a page has at most which is a picture, or most of it is
EDGE, INK = 0.12, 0.1  # shares of a page: its edges, where running lines stand; and what a picture fills of it
DPI, LEAST_DPI, LONGEST = 300, 150, 10_000  # resolution at most and at least, and pixels of a page's longer side
UNSURE, DOUBTED = 70, 80  # of 100: mean confidence of a page that is named, and that of a number on it
BULLETS = frozenset("¢«»°©")  # as which Tesseract reads them
TALL, HANGING = frozenset("bdfhklt"), frozenset("gjpqyQ,;()[]/|")
CAPITAL, SMALL, BEARING = 0.65, 0.47, 0.06  # heights of letters and the room beside them, of their size
_ENCRYPTED = {
    pypdfium2.raw.FPDF_ERR_PASSWORD: "is encrypted; save it without a password",
    pypdfium2.raw.FPDF_ERR_SECURITY: "is encrypted in a way that is not supported; save it without protection",
}


def read_pdf(file: OpenFile) -> Iterator[Item]:
    """One document, with a section per page and heading, and what was left out of it."""
    raw = file.stream.read()
    try:
        document = pypdfium2.PdfDocument(raw)
    except pypdfium2.PdfiumError as error:
        reason = f"is no readable PDF ({type(error).__name__}: {error})"
        raise UnusableFileError(_ENCRYPTED.get(error.err_code, reason)) from error
    with closing(document):
        count = len(document)
        claimed = text_or_none(lambda: document.get_metadata_value("Title"))
        skipped: list[Skipped] = []
        pages = list(read_pages(without_running(list(_pages(document, file, skipped)))))
        first = text_or_none(lambda: document[0].get_textpage().get_text_bounded())
        marks, year = bookmarks_of(document), year_of(raw, first.replace("\r\n", "\n"))
    yield from skipped
    title = replace_surrogates(title_on(pages[:3], " ".join(expand_ligatures(claimed).split())))
    hyphenated = hyphenated_words(line for page in pages for block in page.blocks for line in block.lines)
    sections = tuple(sections_of(pages, marks, title, hyphenated))
    if not sections:
        remedy = "if they are scans, run text recognition (OCR) first, as `medagent index build --ocr LANGUAGES` does"
        raise UnusableFileError(f"has no text on its {count} pages" + ("" if file.ocr else f"; {remedy}"))
    title = title or title_from_name(file.name)
    yield from _left_out(file.name, [page.placed for page in pages])
    yield Document(title, sections, file.name, year=year, name=file.name)


def _pages(document: pypdfium2.PdfDocument, file: OpenFile, skipped: list[Skipped]) -> Iterator[PlacedPage]:
    """The words of each page, one page in memory at a time; what of them cannot be read is noted."""
    for number in range(1, len(document) + 1):
        label = text_or_none(partial(document.get_page_label, number - 1)).strip() or str(number)
        try:
            with closing(document[number - 1]) as page:
                placed = placed_page(page, number, label)
                placed.lacks = _lack_of(placed, page)
                placed = _recognized(page, placed, file.ocr) if placed.lacks and file.ocr else placed
        except (pypdfium2.PdfiumError, SubprocessError) as error:  # the other pages may be sound
            skipped.append(Skipped(f"{file.name}, page {label}", f"cannot be read ({type(error).__name__}: {error})"))
        else:
            yield placed


def _lack_of(placed: PlacedPage, page: pypdfium2.PdfPage) -> str:
    """What a page lacks that shows something else than text; empty for a blank one."""
    margin = EDGE * (placed.edges[1] - placed.edges[0])
    inner = [word for word in placed.words if placed.edges[0] + margin < word.y < placed.edges[1] - margin]
    covered = pictured(page) > 0.5
    if placed.struck or placed.turned or len(inner) > (STAMPED if covered else LITTLE):
        return ""
    lettered = sum((word.x1 - word.x0) * word.size for word in placed.words) / math.prod(page.get_size())
    least = min(2 * lettered, INK) if covered or not placed.words else INK  # a blank scan has its letters' ink alone
    what = "almost no text and a picture" if placed.words else "no text"
    return what if ink_of(page) > least else ""


def _recognized(page: pypdfium2.PdfPage, placed: PlacedPage, tesseract: Tesseract) -> PlacedPage:
    """The page with the words that Tesseract finds on it, in points from its upper left; else as it was."""
    scale = min(_dpi(page) / 72, LONGEST / max(page.get_size()))
    image = page.render(scale=scale, grayscale=True).to_numpy()
    rows = tesseract.read(image.reshape(image.shape[:2]), round(72 * scale))
    words: list[Word] = []
    found = [row for row in rows if row["level"] == "5" and row["text"].strip()]
    for _, line in groupby(found, key=lambda row: [row[name] for name in ("block_num", "par_num", "line_num")]):
        words += _line_of_words(list(line), scale)
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
    for picture in page.get_objects(filter=[pypdfium2.raw.FPDF_PAGEOBJ_IMAGE]):
        (width, height), (left, bottom, right, top) = picture.get_px_size(), picture.get_bounds()
        sharpest = max(sharpest, 72 * math.sqrt(width * height / max((right - left) * (top - bottom), 1.0)))
    return min(DPI, max(LEAST_DPI, 2 * sharpest)) if sharpest else DPI


def _line_of_words(rows: list[dict[str, str]], scale: float) -> list[Word]:
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


def _left_out(name: str, pages: Sequence[PlacedPage]) -> Iterator[LeftOut]:
    for lacking in sorted({page.lacks for page in pages if page.lacks}):
        found = [page for page in pages if page.lacks == lacking]
        yield LeftOut(f"{name}, {_named(found)}", f"{'has' if len(found) == 1 else 'have'} {lacking}")
    if struck := [page for page in pages if page.struck]:
        count = sum(page.struck for page in struck)
        yield LeftOut(f"{name}, {_named(struck)}", f"{count:,} struck-out text{'s' if count > 1 else ''}")


def _named(pages: Sequence[PlacedPage]) -> str:
    """The pages as one reads them: "pages 2, 4 to 9"."""
    runs = [[page for _, page in run] for _, run in groupby(enumerate(pages), lambda each: each[1].number - each[0])]
    shown = [run[0].label if len(run) == 1 else f"{run[0].label} to {run[-1].label}" for run in runs]
    return f"{'page' if len(pages) == 1 else 'pages'} {', '.join(shown)}"
