"""Words, tables, titles and hard cases of PDFs."""

from __future__ import annotations

import gzip
from pathlib import Path

import matplotlib
import pytest
from pypdf import PdfReader, PdfWriter
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.pdfgen.canvas import Canvas

from tests.retrieval.drawn_pdf import cells, lines, read_drawn, read_pages, title_from_name, together, write
from tests.retrieval.support import items, read

BODY = lines(["The text of the page is set in letters", "of the usual size and goes on here."], y=600)


def test_words_are_whole_however_they_are_drawn(tmp_path: Path) -> None:
    def tight(canvas: Canvas) -> None:
        canvas.setFont("Helvetica", 10)
        canvas.drawString(50, 700, "Words stand tight", wordSpace=-1.8)
        canvas.drawString(50, 650, "Spaced letters", charSpace=0.6)
        canvas.scale(12, 12)
        canvas.setFont("Helvetica", 1)
        canvas.drawString(4, 50, "Scaled by a matrix")

    assert read_drawn(tmp_path / "a.pdf", tight) == ["Words stand tight", "Spaced letters", "Scaled by a matrix"]
    alone = [lines([word], x=50 + 37 * at) for at, word in enumerate("each word drawn alone".split())]
    assert read_drawn(tmp_path / "b.pdf", *alone[::-1]) == ["each word drawn alone"]
    assert read_drawn(tmp_path / "c.pdf", lines(["Twice"]), lines(["Twice"], x=50.3)) == ["Twice"]
    initial = (lines(["T"], size=30, y=676), lines(["he patient was seen in", "the clinic on Monday."], x=72))
    assert read_drawn(tmp_path / "d.pdf", *initial) == ["The patient was seen in the clinic on Monday."]
    assert read_drawn(tmp_path / "e.pdf", BODY, lines(["draft.indd 3"], y=-20)) == [
        "The text of the page is set in letters of the usual size and goes on here."
    ]


@pytest.mark.parametrize("marks", ["•••", "---", "123"])
def test_the_items_of_a_list_keep_their_marks(marks: str, tmp_path: Path) -> None:
    texts = ["Rest is first.", "Fluids are next.", "Paracetamol is last."]
    marks_of = [f"{mark}." if mark.isdigit() else mark for mark in marks]
    drawn = cells(list(zip(marks_of, texts, strict=True)), [50, 75])
    assert read_drawn(tmp_path / "a.pdf", drawn) == [f"{m} {text}" for m, text in zip(marks_of, texts, strict=True)]


def test_many_drawn_lines_cost_little_and_hide_nothing(tmp_path: Path) -> None:
    def chart(canvas: Canvas) -> None:
        for at in range(6000):
            canvas.line(100 + at % 97 * 3, 300 + at % 89 * 2, 120 + at % 97 * 3, 305 + at % 89 * 2)

    assert len(read_drawn(tmp_path / "a.pdf", BODY, chart)) == 1


def test_other_titles(tmp_path: Path) -> None:
    large = lines(["WARD 12"], size=30)
    assert (
        title_from_name(write(tmp_path / "a.pdf", together(large, BODY), title="COVID-19 in  Łódź"))
        == "COVID-19 in Łódź"
    )
    bold = lines(["Rest after surgery"], font="Helvetica-Bold")
    assert title_from_name(write(tmp_path / "b.pdf", together(bold, BODY))) == "Rest after surgery"
    assert title_from_name(write(tmp_path / "ward_guide.pdf", BODY)) == "ward guide"
    assert title_from_name(write(tmp_path / "c_d.pdf", together(lines(["A"], size=40, y=750), BODY))) == "c d"


def test_encrypted_files(tmp_path: Path) -> None:
    plain = PdfReader(write(tmp_path / "a.pdf", BODY))
    for number, algorithm in enumerate(("RC4-40", "RC4-128", "AES-128", "AES-256-R5", "AES-256")):
        for password in ("", "secret"):
            locked = PdfWriter(clone_from=plain)
            locked.encrypt(password, "owner", algorithm=algorithm)
            path = tmp_path / f"{number}{password}.pdf"
            locked.write(path)
            documents, skipped = items(path)
            assert [len(documents), len(skipped)] == ([0, 1] if password else [1, 0])
            assert not password or skipped[0].reason == "is encrypted; save it without a password"


def test_packed_damaged_and_empty_files(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.pdf", BODY, BODY).read_bytes()
    (tmp_path / "b.pdf.gz").write_bytes(gzip.compress(whole))
    assert len(read_pages(tmp_path / "b.pdf.gz")) == 2
    assert len(read_pages(tmp_path / "a.pdf")) == 2
    for at in range(0, len(whole), 97):
        documents, skipped = read(tmp_path, "c.pdf", whole[:at])
        assert len(documents) + len(skipped) >= 1, "never an exception, and never silence"
        documents, skipped = read(tmp_path, "d.pdf", whole[:at] + b"\x00\xff\n" + whole[at + 3 :])
        assert len(documents) + len(skipped) >= 1
    blank = write(tmp_path / "e.pdf", lambda canvas: canvas.rect(50, 50, 100, 100))
    assert "run text recognition (OCR) first" in items(blank)[1][0].reason


def test_right_to_left_words_keep_their_order(tmp_path: Path) -> None:
    font = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    pdfmetrics.registerFont(TTFont("RightToLeft", str(font)))
    shown = " ".join(word[::-1] for word in reversed("שלום לכם רופאים".split()))
    assert read_drawn(tmp_path / "a.pdf", lines([shown], font="RightToLeft")) == ["שלום לכם רופאים"]
