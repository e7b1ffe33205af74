"""Scanned pages with a stamp or a number on them, and footnotes below tables that go on."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image, ImageDraw
from reportlab.lib.utils import ImageReader
from reportlab.pdfgen.canvas import Canvas

from tests.retrieval.test_pdf import Draw, lines, together, write
from tests.retrieval.test_pdf_marks import BODY, HEADER, ROWS, TEXT, grid, picture, read


def scan(text: str) -> Draw:
    """A scanned page of little text."""
    image = Image.new("L", (400, 300), 255)
    ImageDraw.Draw(image).text((20, 20), text, fill=0)
    return lambda canvas: canvas.drawImage(ImageReader(image), 0, 0, 600, 800) and None


STAMP = lines(["COPY for ward 7 only: not to be used after discharge of the patient, and never to be copied"], y=400)
NUMBER = lines(["2"], x=300, y=30)
LACKS = [("a.pdf, page 2", "has almost no text and a picture")]


@pytest.mark.parametrize("below", [picture(), scan("Give 9 mg of demoxetine.\n" * 8)])
def test_a_scan_with_a_stamp_is_named(tmp_path: Path, below: Draw) -> None:
    assert read(write(tmp_path / "a.pdf", lines(BODY), together(below, STAMP)))[1] == LACKS


def test_a_page_number_alone_is_no_text_of_a_scan(tmp_path: Path) -> None:
    pages = lines(BODY), together(scan("9 mg"), NUMBER)
    assert read(write(tmp_path / "a.pdf", *pages)) == ([("page 1", TEXT)], LACKS)


@pytest.mark.parametrize("draw", [together(scan(""), NUMBER), together(scan(""), lines(BODY))])
def test_a_blank_scan_and_text_on_one_lack_nothing(tmp_path: Path, draw: Draw) -> None:
    assert read(write(tmp_path / "a.pdf", lines(BODY), draw))[1] == []


@pytest.mark.parametrize("note", ["a Halve the dose.", "eGFR is a rate of filtration.", "1 Halve it."])
def test_a_footnote_below_a_table_does_not_end_it(tmp_path: Path, note: str) -> None:
    def small(canvas: Canvas) -> None:
        canvas.setFont("Helvetica", 7)
        canvas.drawString(50, 60, note)

    rest = [["agent5", "5 mg", ""], ["agent6", "", "evening"]]
    pages = together(lines(BODY), grid([HEADER, *ROWS[:4]], 200), small), grid(rest, 700)
    assert read(write(tmp_path / "a.pdf", *pages))[0][1][1] == "Drug: agent5; Dose: 5 mg\nDrug: agent6; Time: evening"
