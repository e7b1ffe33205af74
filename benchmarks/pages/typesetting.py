"""Words onto a page of a PDF: wrapped, in columns, with raised marks. Draws with reportlab (BSD)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib
from reportlab.lib.pagesizes import A4
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.pdfgen.canvas import Canvas

WIDTH, HEIGHT = A4
MARGIN = 64.0
RAISED = re.compile(r"\{([^}]*)\}|\^([-−]?\d+)")
Piece = tuple[str, bool]  # text, and whether it is raised
Word = tuple[Piece, ...]

FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"


def register_fonts() -> None:
    """DejaVu, which matplotlib brings, as "Sans" and "Sans-Bold"; it has Greek, accents and ligatures."""
    pdfmetrics.registerFont(TTFont("Sans", str(FONTS / "DejaVuSans.ttf")))
    pdfmetrics.registerFont(TTFont("Sans-Bold", str(FONTS / "DejaVuSans-Bold.ttf")))


def words_of(text: str) -> list[Word]:
    """The words of a text, each with its raised pieces: "urate.{3}" and "10^9"."""
    return [tuple(_pieces(word)) for word in re.sub(r"\{[^}]*\}", lambda m: m[0].replace(" ", ""), text).split(" ")]


def _pieces(word: str) -> Iterator[Piece]:
    at = 0
    for found in RAISED.finditer(word):
        if found.start() > at:
            yield word[at : found.start()], False
        yield found[1] or found[2], True
        at = found.end()
    if at < len(word):
        yield word[at:], False


class Typesetter:
    """Draws paragraphs on a canvas in one font; `y` is the baseline of the line that comes next."""

    def __init__(self, canvas: Canvas, font: str = "Helvetica", size: float = 10.0, leading: float = 0.0) -> None:
        self.canvas, self.font, self.size = canvas, font, size
        self.leading = leading or 1.3 * size

    def width(self, word: Word) -> float:
        """Points that a word takes."""
        return sum(pdfmetrics.stringWidth(text, self.font, self._size(raised)) for text, raised in word)

    def wrapped(self, text: str, width: float) -> list[list[Word]]:
        """The lines of a paragraph."""
        lines: list[list[Word]] = [[]]
        room, space = width, pdfmetrics.stringWidth(" ", self.font, self.size)
        for word in words_of(text):
            needed = self.width(word)
            if lines[-1] and needed > room:
                lines.append([])
                room = width
            lines[-1].append(word)
            room -= needed + space
        return lines

    def line(self, words: Sequence[Word], x: float, y: float, *, justified_to: float = 0.0) -> None:
        """One line; with `justified_to` its spaces are stretched to that width, word by word as TeX does."""
        space = pdfmetrics.stringWidth(" ", self.font, self.size)
        if justified_to and len(words) > 1:
            space = (justified_to - sum(map(self.width, words))) / (len(words) - 1)
            for word in words:
                self._word(word, x, y)
                x += self.width(word) + space
            return
        if all(len(word) == 1 and not word[0][1] for word in words):
            self.canvas.setFont(self.font, self.size)
            self.canvas.drawString(x, y, " ".join(text for ((text, _),) in words))
            return
        for word in words:
            self._word(word, x, y)
            x += self.width(word) + space

    def paragraph(self, text: str, x: float, y: float, width: float, *, justified: bool = False) -> float:
        """A paragraph from baseline `y` down; returns the baseline of the next one, half a line further down."""
        lines = self.wrapped(text, width)
        for number, words in enumerate(lines):
            last = number == len(lines) - 1
            self.line(words, x, y, justified_to=width if justified and not last else 0.0)
            y -= self.leading
        return y - self.leading / 2

    def paragraphs(self, texts: Sequence[str], x: float, y: float, width: float, *, justified: bool = False) -> float:
        """Several, one below the other."""
        for text in texts:
            y = self.paragraph(text, x, y, width, justified=justified)
        return y

    def flowed(self, texts: Sequence[str], width: float) -> list[list[Word]]:
        """The lines of several paragraphs, an empty one between two: what is poured into columns."""
        lines: list[list[Word]] = []
        for text in texts:
            lines += [*([[]] if lines else []), *self.wrapped(text, width)]
        return lines

    def _word(self, word: Word, x: float, y: float) -> None:
        for text, raised in word:
            self.canvas.setFont(self.font, self._size(raised))
            self.canvas.drawString(x, y + (0.35 * self.size if raised else 0.0), text)
            x += pdfmetrics.stringWidth(text, self.font, self._size(raised))

    def _size(self, raised: bool) -> float:
        return 0.62 * self.size if raised else self.size
