"""PDFs drawn line by line, for the tests of what is read of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from reportlab.pdfgen.canvas import Canvas

from tests.retrieval.support import items

Draw = Callable[[Canvas], None]
LONG = "This line of running text is as wide as its whole column is"


def write(path: Path, *pages: Draw, title: str = "", size: tuple[float, float] = (600, 800)) -> Path:
    """A PDF whose pages are drawn by functions."""
    canvas = Canvas(str(path), pagesize=size, invariant=1)
    canvas.setTitle(title)
    for page in pages:
        page(canvas)
        canvas.showPage()
    canvas.save()
    return path


def lines(
    texts: Sequence[str], x: float = 50, y: float = 700, *, size: float = 10, leading: float = 12, font: str = ""
) -> Draw:
    """Lines one below the other; an empty one is a gap."""

    def draw(canvas: Canvas) -> None:
        for number, text in enumerate(texts):
            canvas.setFont(font or "Helvetica", size)
            if text:
                canvas.drawString(x, y - number * leading, text)

    return draw


def cells(rows: Sequence[Sequence[str]], xs: Sequence[float], y: float = 700, *, leading: float = 12) -> Draw:
    """Rows of cells, each cell at its column's place."""

    def draw(canvas: Canvas) -> None:
        canvas.setFont("Helvetica", 10)
        for number, row in enumerate(rows):
            for x, cell in zip(xs, row, strict=True):
                canvas.drawString(x, y - number * leading, cell)

    return draw


def together(*draws: Draw) -> Draw:
    """Several on one page."""

    def draw(canvas: Canvas) -> None:
        for each in draws:
            each(canvas)

    return draw


def read_pages(path: Path) -> list[str]:
    """The texts of the pages of a file that is one document."""
    (document,), skipped = items(path)
    assert not skipped
    return [section.text for section in document.sections]


def read_drawn(path: Path, *draws: Draw) -> list[str]:
    """The lines that are read of one page."""
    (text,) = read_pages(write(path, together(*draws)))
    return text.split("\n")


def title_from_name(path: Path) -> str:
    """A document's title."""
    (document,), _ = items(path)
    return document.title
