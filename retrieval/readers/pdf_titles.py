"""What a PDF says of itself: its title, the year of its publication, and the titles of its sections."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise, takewhile
from statistics import median

import pypdfium2

from medagent.retrieval.chunking import Section
from medagent.retrieval.passages import replace_surrogates
from medagent.retrieval.readers.pdf_blocks import ReadPage
from medagent.retrieval.readers.pdf_lines import joined
from medagent.retrieval.readers.text import NO_TITLE
from medagent.retrieval.readers.years import BEGINS, YEAR, printed_year

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
