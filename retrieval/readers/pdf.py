"""PDF by PDFium: each page is a section. Columns, tables and running lines are told apart; scans want recognition."""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise, takewhile
from statistics import median
from subprocess import SubprocessError

import pypdfium2

from medagent.retrieval.bibliography import BEGINS, YEAR, printed_year
from medagent.retrieval.chunking import Document, Section
from medagent.retrieval.passages import replace_surrogates
from medagent.retrieval.readers.base import Item, LeftOut, OpenFile, Skipped, UnusableFileError, is_number
from medagent.retrieval.readers.marks import expand_ligatures
from medagent.retrieval.readers.pdf_blocks import ReadPage, read_pages
from medagent.retrieval.readers.pdf_lines import hyphenated_words, joined, without_running
from medagent.retrieval.readers.pdf_words import PlacedPage, Word, ink_of, pictured, placed_page
from medagent.retrieval.readers.tesseract import Tesseract
from medagent.retrieval.readers.text import NO_TITLE, title_from_name

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


_XMP = re.compile(rb"prism:(?:publicationDate|coverDate)(?:>|\s*=\s*[\"'])\s*((?:1[89]|20)\d\d)(?!\d)")
_COPYRIGHT = rf"{BEGINS}(?:(?:copyright\s*)?(?:©|\(c\))|copyright)\s*{YEAR}(?!\s*[-–,])"
# A line at the edge of a page that cites the page itself: "J Demo 2022;14:33-34", "Volume 3, 2013".
_CITED = (
    rf"^(?!\W*\d)[^\n;:]{{3,60}}?\s{YEAR};\s*\d+(?:\s*\([\w–-]+\))?:\s*[\w–-]+\.?$",
    rf"\bvol(?:ume|\.)?\s*\d+\W{{1,4}}(?:(?:issue|no\.?|number)\s*\d+\W{{1,4}})?{YEAR}",
)
EDGE_LINES = 3  # at the top and the foot of a page


def year_of(file: bytes, first_page: str) -> int | None:
    """The year of publication by the file's PRISM metadata, or as its first page states it; None where two differ."""
    stated = _XMP.findall(file)[-1:]
    lines = first_page.strip().split("\n")
    edges = "\n".join(lines[:EDGE_LINES] + lines[EDGE_LINES:][-EDGE_LINES:])
    return int(stated[0]) if stated else printed_year(first_page, _COPYRIGHT) or printed_year(edges, *_CITED)


def bookmarks_of(document: pypdfium2.PdfDocument) -> dict[int, list[str]]:
    """The titles of each page's bookmarks by its number; none where there are fewer than two."""
    found: dict[int, list[str]] = defaultdict(list)
    for mark in document.get_toc():
        target, title = mark.get_dest(), " ".join(text_or_none(mark.get_title).split())
        index = target.get_index() if target is not None else None
        if index is not None and title:
            found[index + 1].append(title)
    return dict(found) if sum(map(len, found.values())) > 1 else {}


def text_or_none(read: Callable[[], str | None]) -> str:
    """A text of the file that PDFium reads; empty where it is none."""
    try:
        return replace_surrogates((read() or "").replace("\x00", ""))
    except (UnicodeDecodeError, pypdfium2.PdfiumError):
        return ""


def sections_of(
    pages: Sequence[ReadPage], marks: Mapping[int, list[str]], title: str, hyphenated: frozenset[str]
) -> Iterator[Section]:
    """A section for each page, and for each bookmark on it whose title is found; without any, for each heading."""
    name = ""
    for page in pages:
        texts = [(text, block.heading) for block in page.blocks if (text := joined(block.lines, hyphenated))]
        due, held, body = list(marks.get(page.placed.number, ())), list[str](), False
        if not all(any(_is_same(mark, text) for text, _ in texts) for mark in due):
            name = ""  # where on the page it begins is not known
        for text, looks_so in texts:
            met = next((mark for mark in due if _is_same(mark, text)), "")
            begins = met or (text if looks_so and not marks else "")
            if _plain(begins or text) in _plain(title):
                begins = ""
            elif begins:
                if body:
                    yield _section(page, name, held)
                    held, body = [], False
                name = begins
            else:
                body = True
            held.append(text)
        if held:
            yield _section(page, name, held)
        name = due[-1] if due else name


def _section(page: ReadPage, name: str, texts: Sequence[str]) -> Section:
    return Section(f"page {page.placed.label}{' > ' if name else ''}{name}", "\n".join(texts))


def _plain(text: str) -> str:
    return "".join(filter(str.isalnum, text.lower()))


def _is_same(title: str, text: str) -> bool:
    """Whether a bookmark's title and a line are the same but for a number before one of them."""
    short, long = sorted((_plain(title), _plain(text)), key=len)
    return len(short) > 2 and long.endswith(short) and len(long) - len(short) <= 6


def title_on(pages: Sequence[ReadPage], claimed: str) -> str:
    """The title of the file's properties, unless it is rubbish; else the first page's largest or first bold line."""
    if NO_TITLE.search(claimed) is None:
        return claimed
    lines = pages[0].lines if pages else []
    named = [line for line in lines if sum(letter.isalpha() for letter in line.text) >= 4]
    if not named:
        return ""
    largest = max(line.size for line in named)
    if largest < 1.15 * median(page.size for page in pages):
        first = lines[0]
        return first.text if first.bold and not all(line.bold for line in lines) and len(first.words) <= 20 else ""
    begun = lines.index(next(line for line in named if line.size == largest))
    more = takewhile(lambda pair: pair[1].y - pair[0].y <= 2 * largest, pairwise(lines[begun:]))
    large = takewhile(lambda line: abs(line.size - largest) <= 0.05 * largest, (line for _, line in more))
    text = joined(line.text for line in [lines[begun], *large])
    return text if len(text.split()) <= 40 else ""
