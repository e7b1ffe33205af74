"""What a PDF says of itself: its title, the year of its publication, and the titles of its sections."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import pypdfium2
from pypdfium2 import raw

from medagent.retrieval.chunking import Section
from medagent.retrieval.passages import replace_surrogates
from medagent.retrieval.readers.pdf_blocks import GRID, ReadPage
from medagent.retrieval.readers.pdf_lines import joined
from medagent.retrieval.readers.text import NO_TITLE
from medagent.retrieval.readers.years import BEGINS, YEAR, printed_year

_XMP = re.compile(rb"prism:(?:publicationDate|coverDate)(?:>|\s*=\s*[\"'])\s*((?:1[89]|20)\d\d)(?!\d)")
_COPYRIGHT = rf"{BEGINS}(?:(?:copyright\s*)?(?:©|\(c\))|copyright)\s*{YEAR}(?!\s*[-–,])"


def year_of(file: bytes, first_page: str) -> int | None:
    """The year of publication by the file's PRISM metadata, or as its first page states it; None where two differ."""
    stated = _XMP.findall(file)[-1:]
    return int(stated[0]) if stated else printed_year(first_page, _COPYRIGHT)


@dataclass(frozen=True)
class _Mark:
    """A bookmark: its title, and whether its target is the top of its page."""

    title: str
    on_top: bool


def bookmarks_of(document: pypdfium2.PdfDocument) -> dict[int, list[_Mark]]:
    """The bookmarks of each page by its number; none where there are fewer than two."""
    found: dict[int, list[_Mark]] = defaultdict(list)
    for mark in document.get_toc():
        target, title = mark.get_dest(), " ".join(text_or_none(mark.get_title).split())
        index = target.get_index() if target is not None else None
        if target is not None and index is not None and index < len(document) and title:
            mode, view = target.get_view()
            y = view[1] if mode == raw.PDFDEST_VIEW_XYZ else view[0] if mode == raw.PDFDEST_VIEW_FITH else 0.0
            found[index + 1].append(_Mark(title, not y or y > 0.85 * document.get_page_size(index)[1]))
    return dict(found) if sum(map(len, found.values())) > 1 else {}


def text_or_none(read: Callable[[], str | None]) -> str:
    """A text of the file that PDFium reads; empty where it is none."""
    try:
        return replace_surrogates((read() or "").replace("\x00", ""))
    except UnicodeDecodeError:
        return ""


def sections_of(
    pages: Sequence[ReadPage], marks: Mapping[int, list[_Mark]], title: str, hyphenated: frozenset[str]
) -> Iterator[Section]:
    """A section for each page, and for each bookmark's target on it; without bookmarks, for each heading."""
    name = ""
    for page in pages:
        heading = f"page {page.placed.label}"
        texts = [(text, block.heading) for block in page.blocks if (text := joined(block.lines, hyphenated))]
        due, held, body = list(marks.get(page.placed.number, ())), list[str](), False
        if due and due[0].on_top and not any(_is_same(due[0].title, text) for text, _ in texts):
            name = due.pop(0).title
        for text, looks_so in texts:
            met = [at for at, mark in enumerate(due) if _is_same(mark.title, text)]
            begins = due[met[0]].title if met else text if looks_so and not marks else ""
            del due[: met[0] + 1 if met else 0]
            if _plain(begins or text) in _plain(title):
                begins = ""
            elif begins:
                if body:
                    yield Section(_named(heading, name), "\n".join(held))
                    held, body = [], False
                name = begins
            else:
                body = True
            held.append(text)
        if held:
            yield Section(_named(heading, name), "\n".join(held))
        name = due[-1].title if due else name


def _named(page: str, name: str) -> str:
    return f"{page} > {name}" if name else page


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
    if not pages or not pages[0].lines:
        return ""
    body = median(page.size for page in pages)
    lines = [line for line in pages[0].lines if not line.text.startswith(GRID)]
    named = [line for line in lines if sum(letter.isalpha() for letter in line.text) >= 4]
    if not named:
        return ""
    largest = max(line.size for line in named)
    if largest < 1.15 * body:
        first = lines[0]
        return first.text if first.bold and not all(line.bold for line in lines) and len(first.words) <= 20 else ""
    begun = next(number for number, line in enumerate(lines) if line in named and line.size == largest)
    title = [lines[begun]]
    for line in lines[begun + 1 :]:
        if abs(line.size - largest) > 0.05 * largest or line.y - title[-1].y > 2 * largest:
            break
        title.append(line)
    text = joined([line.text for line in title], frozenset())
    return text if len(text.split()) <= 40 else ""
