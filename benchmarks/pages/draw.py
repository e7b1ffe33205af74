"""The PDFs of pdf.yaml: a function lays out the pages of each."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

from pypdf import PdfReader, PdfWriter
from reportlab.pdfgen.canvas import Canvas

from benchmarks.pages.typesetting import HEIGHT, MARGIN, WIDTH, Typesetter, Word, register_fonts, words_of

TOP = HEIGHT - 100.0
INNER = WIDTH - 2 * MARGIN
LIGATURES = (("ffi", "ﬃ"), ("ffl", "ﬄ"), ("ff", "ﬀ"), ("fi", "ﬁ"), ("fl", "ﬂ"))


def pdf_of(document: dict[str, Any]) -> bytes:
    """The file of a document of pdf.yaml, the same bytes each time."""
    register_fonts()
    written = io.BytesIO()
    canvas = Canvas(written, pagesize=(WIDTH, HEIGHT), invariant=1)
    canvas.setTitle(document.get("metadata", ""))
    for number, page in enumerate(document["pages"], start=1):
        LAYOUTS[document["layout"]](canvas, document["title"] if number == 1 else "", page, number)
        canvas.showPage()
    canvas.save()
    if document["layout"] != "encrypted":
        return written.getvalue()
    locked, found = PdfWriter(clone_from=PdfReader(written)), io.BytesIO()
    locked.encrypt("", "the owner's", algorithm="AES-256")
    locked.write(found)
    return found.getvalue()


def full_pages(count: int) -> bytes:
    """A PDF of pages full of text in two columns, about 850 words each, to measure speed."""
    register_fonts()
    written = io.BytesIO()
    canvas = Canvas(written, pagesize=(WIDTH, HEIGHT), invariant=1)
    sentence = "The patient was seen in the clinic on day {} and the dose was kept at {} mg daily without any harm."
    for page in range(count):
        texts = [" ".join(sentence.format(page + 1, number + row) for number in range(8)) for row in range(5)]
        running(canvas, "", {"text": []}, page + 1)
        for column in columns(canvas, texts, TOP, 2, font="Times-Roman"):
            draw(Typesetter(canvas, "Times-Roman", 9.5), column)
        canvas.showPage()
    canvas.save()
    return written.getvalue()


Page = dict[str, Any]
Layout = Callable[[Canvas, str, Page, int], None]


def headed(canvas: Canvas, title: str, *, size: float = 18.0, y: float = TOP, bold: str = "Helvetica-Bold") -> float:
    """The title in large letters; the baseline below it."""
    if not title:
        return y
    return Typesetter(canvas, bold, size).paragraph(title, MARGIN, y, INNER) - 6.0


def one_column(canvas: Canvas, title: str, page: Page, _: int) -> None:
    """Plain paragraphs below a title."""
    Typesetter(canvas, size=11).paragraphs(page["text"], MARGIN, headed(canvas, title), INNER)


def columns(
    canvas: Canvas, texts: Sequence[str], y: float, count: int, *, font: str, gutter: float = 18.0, size: float = 9.5
) -> list[list[tuple[list[Word], float, float, float]]]:
    """The words of each of `count` columns of equal length, justified: words, x, y and width of each line."""
    width = (INNER - (count - 1) * gutter) / count
    setter = Typesetter(canvas, font, size)
    lines = setter.flowed(texts, width)
    length = -(-len(lines) // count)
    placed = []
    for column in range(count):
        x = MARGIN + column * (width + gutter)
        own = lines[column * length : (column + 1) * length]
        after = [*lines[column * length + 1 :], []]
        placed.append(
            [
                (words, x, y - row * setter.leading, width if after[row] else 0.0)
                for row, words in enumerate(own)
                if words
            ]
        )
    return placed


def draw(setter: Typesetter, lines: Sequence[tuple[list[Word], float, float, float]]) -> None:
    """Lines at their places."""
    for words, x, y, width in lines:
        setter.line(words, x, y, justified_to=width)


def two_columns(canvas: Canvas, title: str, page: Page, _: int) -> None:
    """Justified, one column after the other."""
    y = headed(canvas, title, bold="Times-Bold")
    for column in columns(canvas, page["text"], y, 2, font="Times-Roman"):
        draw(Typesetter(canvas, "Times-Roman", 9.5), column)


def title_over_columns(canvas: Canvas, title: str, page: Page, _: int) -> None:
    """A title and a summary over both columns, whose lines are drawn row by row."""
    y = headed(canvas, title, bold="Times-Bold", size=20)
    y = Typesetter(canvas, "Times-Italic", 10).paragraph(page["text"][0], MARGIN, y, INNER) - 8
    left, right = columns(canvas, page["text"][1:], y, 2, font="Times-Roman", gutter=14)
    for line in sorted([*left, *right], key=lambda each: (-each[2], each[1])):
        draw(Typesetter(canvas, "Times-Roman", 9.5), [line])


def three_columns(canvas: Canvas, title: str, page: Page, _: int) -> None:
    """A leaflet."""
    y = headed(canvas, title)
    for column in columns(canvas, page["text"], y, 3, font="Helvetica", size=10):
        draw(Typesetter(canvas, "Helvetica", 10), column)


def running(canvas: Canvas, title: str, page: Page, number: int) -> None:
    """The same header and footer on every page, with the page's number."""
    small = Typesetter(canvas, size=8)
    small.line(words_of("County hospital"), MARGIN, HEIGHT - 40)
    small.line(words_of("Handbook 2024"), WIDTH - MARGIN - 60, HEIGHT - 40)
    small.line(words_of("Printed copies are not controlled"), MARGIN, 36)
    small.line(words_of(f"Page {number} of 3"), WIDTH - MARGIN - 50, 36)
    Typesetter(canvas).paragraphs(page["text"], MARGIN, headed(canvas, title), INNER)


def ligatures(canvas: Canvas, title: str, page: Page, _: int) -> None:
    """Letters joined to one sign."""
    texts = page["text"]
    for apart, joined in LIGATURES:
        texts = [text.replace(apart, joined) for text in texts]
    y = headed(canvas, title, bold="Sans-Bold")
    Typesetter(canvas, "Sans").paragraphs(texts, MARGIN, y, INNER)


def hyphens(canvas: Canvas, title: str, page: Page, _: int) -> None:
    """Words parted at the ends of lines."""
    y = headed(canvas, title, bold="Sans-Bold")
    setter = Typesetter(canvas, "Sans", 11)
    for line in page["lines"].split("|"):
        setter.line(words_of(line), MARGIN, y)
        y -= setter.leading


def ruled_table(canvas: Canvas, title: str, page: Page, _: int) -> None:
    """A table in a grid between two paragraphs; cells may have two lines."""
    setter, bold = Typesetter(canvas, size=9), Typesetter(canvas, "Helvetica-Bold", 9)
    y = setter.paragraph(page["text"][0], MARGIN, headed(canvas, title), INNER)
    edges = [MARGIN, MARGIN + 130, MARGIN + 220, MARGIN + 330, WIDTH - MARGIN]
    rules = [y + 4]
    for number, row in enumerate(page["rows"]):
        face = setter if number else bold
        cells = [face.wrapped(cell, edges[at + 1] - edges[at] - 8) for at, cell in enumerate(row)]
        for at, lines in enumerate(cells):
            for below, words in enumerate(lines):
                face.line(words, edges[at] + 4, y - 8 - below * 11)
        y -= 11 * max(map(len, cells)) + 6
        rules.append(y + 4)
    for rule in rules:
        canvas.line(edges[0], rule, edges[-1], rule)
    for edge in edges:
        canvas.line(edge, rules[0], edge, rules[-1])
    setter.paragraph(page["text"][1], MARGIN, y - 20, INNER)


def plain_table(canvas: Canvas, title: str, page: Page, _: int) -> None:
    """A table whose columns only white space parts."""
    setter = Typesetter(canvas, "Sans", 9.5)
    y = setter.paragraph(page["text"][0], MARGIN, headed(canvas, title, bold="Sans-Bold"), INNER) - 4
    for row in page["rows"]:
        for at, cell in enumerate(row):
            setter.line(words_of(cell), MARGIN + at * 110, y)
        y -= setter.leading
    setter.paragraph(page["text"][1], MARGIN, y - 10, INNER)


def footnotes(canvas: Canvas, title: str, page: Page, _: int) -> None:
    """Small print below a rule at the foot of the page."""
    one_column(canvas, title, page, 1)
    canvas.line(MARGIN, 96, MARGIN + 120, 96)
    small = Typesetter(canvas, size=8)
    for number, text in enumerate(page["anywhere"], start=1):
        small.line(words_of(f"{{{number}}} {text}"), MARGIN, 84 - 11 * (number - 1))


def sidebar(canvas: Canvas, title: str, page: Page, _: int) -> None:
    """A grey box beside the second paragraph and part of the others."""
    setter = Typesetter(canvas, "Times-Roman", 11)
    y = setter.paragraph(page["text"][0], MARGIN, headed(canvas, title, bold="Times-Bold"), INNER)
    box, left = 150.0, WIDTH - MARGIN - 150
    canvas.setFillGray(0.9)
    canvas.rect(left, y - 84, box, 98, stroke=0, fill=1)
    canvas.setFillGray(0)
    Typesetter(canvas, "Helvetica", 9).paragraphs(page["anywhere"], left + 8, y - 2, box - 16)
    below = setter.paragraph(page["text"][1], MARGIN, y, INNER - box - 16)
    setter.paragraph(page["text"][2], MARGIN, min(below, y - 104), INNER)


def metadata_title(canvas: Canvas, title: str, page: Page, _: int) -> None:
    """The name of a series stands larger than the title."""
    Typesetter(canvas, "Helvetica-Bold", 24).line(words_of("Ward 12"), MARGIN, TOP + 30)
    Typesetter(canvas).paragraphs(page["text"], MARGIN, headed(canvas, title, size=13), INNER)


def drawn_out_of_order(canvas: Canvas, title: str, page: Page, _: int) -> None:
    """The right column first, from its end to its beginning, and the title last."""
    left, right = columns(canvas, page["text"], TOP - 30, 2, font="Helvetica")
    draw(Typesetter(canvas, "Helvetica", 9.5), [*reversed(right), *left])
    headed(canvas, title)


def rotated_margin(canvas: Canvas, title: str, page: Page, _: int) -> None:
    """A mark across the page and a line up its margin."""
    mark, margin = page["unwanted"][1], page["unwanted"][0]
    canvas.saveState()
    canvas.translate(WIDTH / 2, HEIGHT / 2)
    canvas.rotate(45)
    canvas.setFillGray(0.85)
    Typesetter(canvas, "Helvetica-Bold", 90).line(words_of(mark), -150, 0)
    canvas.restoreState()
    canvas.saveState()
    canvas.translate(28, 200)
    canvas.rotate(90)
    Typesetter(canvas, size=8).line(words_of(margin), 0, 0)
    canvas.restoreState()
    Typesetter(canvas, size=12, leading=34).paragraphs(page["text"], MARGIN, headed(canvas, title), INNER)


def greek_and_accents(canvas: Canvas, title: str, page: Page, _: int) -> None:
    """Letters beyond ASCII."""
    Typesetter(canvas, "Sans").paragraphs(page["text"], MARGIN, headed(canvas, title, bold="Sans-Bold"), INNER)


LAYOUTS: dict[str, Layout] = {
    "one_column": one_column,
    "two_columns": two_columns,
    "title_over_columns": title_over_columns,
    "three_columns": three_columns,
    "running": running,
    "ligatures": ligatures,
    "hyphens": hyphens,
    "ruled_table": ruled_table,
    "plain_table": plain_table,
    "footnotes": footnotes,
    "sidebar": sidebar,
    "metadata_title": metadata_title,
    "drawn_out_of_order": drawn_out_of_order,
    "rotated_margin": rotated_margin,
    "superscripts": greek_and_accents,
    "greek_and_accents": greek_and_accents,
    "encrypted": one_column,
}
