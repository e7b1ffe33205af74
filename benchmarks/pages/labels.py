"""The labelled pages of pdf.yaml and html.yaml, and how far an extractor's text keeps to a page's labels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import yaml

from benchmarks.pages.draw import pdf_of
from benchmarks.pages.typesetting import RAISED

HERE = Path(__file__).parent
Format = Literal["pdf", "html"]
_SENTENCES = re.compile(r"(?<=[.?!])\s+(?=[A-ZÀ-Þ\u0370-\u03ff])")


@dataclass(frozen=True)
class LabelledPage:
    """The strings that a page's text must hold and must not hold; see pdf.yaml."""

    text: tuple[str, ...]
    anywhere: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    headings: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class LabelledDocument:
    """A file with one or more labelled pages."""

    name: str
    format: Format
    kind: str
    title: str
    pages: tuple[LabelledPage, ...]
    content: bytes

    def write(self, folder: Path) -> Path:
        """The file, in a folder."""
        path = folder / f"{self.name}.{self.format}"
        path.write_bytes(self.content)
        return path


@dataclass(frozen=True)
class ReadPage:
    """How many of a page's labels its text keeps to: pairs of found and wanted."""

    sentences: tuple[int, int]
    order: tuple[int, int]
    unwanted: tuple[int, int]
    words: tuple[int, int]
    rows: tuple[int, int]


def labelled_documents(format_: Format) -> list[LabelledDocument]:
    """All documents of a format, in the order of its file."""
    rows = yaml.safe_load((HERE / f"{format_}.yaml").read_text(encoding="utf-8"))
    return [(_pdf if format_ == "pdf" else _html)(row) for row in rows]


def _pdf(row: dict[str, Any]) -> LabelledDocument:
    return LabelledDocument(
        row["name"], "pdf", row["kind"], row["title"], tuple(_page(each) for each in row["pages"]), pdf_of(row)
    )


def _html(row: dict[str, Any]) -> LabelledDocument:
    content = (HERE / "html" / f"{row['name']}.html").read_text(encoding="utf-8").encode(row.get("charset", "utf-8"))
    return LabelledDocument(row["name"], "html", row["kind"], row["title"], (_page(row),), content)


def _page(row: dict[str, Any]) -> LabelledPage:
    return LabelledPage(
        _sentences(row["text"]),
        _sentences(row.get("anywhere", [])),
        tuple(row.get("unwanted", [])),
        tuple(row.get("words", [])),
        tuple(row.get("headings", [])),
        tuple(tuple(cells) for cells in row.get("rows", [])),
    )


def _sentences(paragraphs: Sequence[str]) -> tuple[str, ...]:
    """The sentences of paragraphs, without raised marks."""

    def plain(found: re.Match[str]) -> str:
        return f"^{found[2]}" if found[2] else ""

    texts = (RAISED.sub(plain, paragraph) for paragraph in paragraphs)
    return tuple(sentence for text in texts for sentence in _SENTENCES.split(" ".join(text.split())))


def judge(page: LabelledPage, text: str) -> ReadPage:
    """How a page was read. A sentence counts where it stands whole, a row where one line has its cells in order."""
    text = text.replace("\u00ad", "")  # the index drops soft hyphens of its own
    lines = [" ".join(line.split()) for line in text.splitlines()]
    whole = " ".join(" ".join(lines).split())
    places = [whole.find(sentence) for sentence in page.text]
    pairs = list(pairwise(places))
    parts = set(re.findall(r"[\w'-]+", whole))
    return ReadPage(
        (
            sum(place >= 0 for place in places) + sum(sentence in whole for sentence in page.anywhere),
            len(page.text) + len(page.anywhere),
        ),
        (sum(0 <= first < second for first, second in pairs), len(pairs)),
        (sum(unwanted in whole for unwanted in page.unwanted), len(page.unwanted)),
        (
            sum(word in parts for word in page.words) + sum(heading in lines for heading in page.headings),
            len(page.words) + len(page.headings),
        ),
        (sum(any(_in_order(cells, line) for line in lines) for cells in page.rows), len(page.rows)),
    )


def _in_order(cells: Sequence[str], line: str) -> bool:
    return re.search(r"(?<!\w)" + r"(?!\w).*?(?<!\w)".join(map(re.escape, cells)) + r"(?!\w)", line) is not None
