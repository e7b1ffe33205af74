"""Words, tables, titles and hard cases of PDFs."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import pytest
from pypdf import PdfReader, PdfWriter
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.pdfgen.canvas import Canvas

from tests.retrieval.drawn_pdf import (
    Draw,
    cells,
    lines,
    read_drawn,
    read_pages,
    rules,
    title_from_name,
    together,
    write,
)
from tests.retrieval.support import items, read

BODY = lines(["The text of the page is set in letters", "of the usual size and goes on here."], y=600)


def test_hyphens_at_the_ends_of_lines(tmp_path: Path) -> None:
    drawn = lines(
        [
            "The virus was found in COVID-",
            "19 patients and the dose was 5 mg/",
            "kg in pre-",
            "and postoperative care of non-",
            "Hodgkin lymphoma with IL-",
            "6 raised and a well-",
            "known cause, well-known as a sus-",
            "tained one.",
        ]
    )
    assert read_drawn(tmp_path / "a.pdf", drawn) == [
        "The virus was found in COVID-19 patients and the dose was 5 mg/kg in pre- and postoperative care of "
        "non-Hodgkin lymphoma with IL-6 raised and a well-known cause, well-known as a sustained one."
    ]


def marked(*parts: str) -> Draw:
    """Text with raised parts, "^2", and lowered ones, "_2"."""

    def draw(canvas: Canvas) -> None:
        x = 50.0
        for part in parts:
            size, lift = {"^": (6, 3.5), "_": (6, -2.0)}.get(part[0], (10, 0.0))
            text = part[1:] if lift else part
            canvas.setFont("Helvetica", size)
            canvas.drawString(x, 700 + lift, text)
            x += canvas.stringWidth(text, "Helvetica", size)

    return draw


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        (("Aspirin helps", "^1", " most."), "Aspirin helps most."),
        (("It helps.", "^2,3", " Then stop."), "It helps. Then stop."),
        (("Seen in 2019", "^4,5", " there."), "Seen in 2019 there."),
        (("More than 10", "^9", "/L is high."), "More than 10^9/L is high."),
        (("At 10", "^–9", " mol."), "At 10^–9 mol."),
        (("Given per kg/m", "^2", " daily."), "Given per kg/m2 daily."),
        (("Ca", "^2+", " and H", "_2", "O."), "Ca2+ and H2O."),
        (("The 1", "^st", " drug", "^®", " of all."), "The 1st drug® of all."),
        (("SpO", "_2", " with ", "^99m", "Tc."), "SpO2 with 99mTc."),
        (("By Smith", "^a,*", " and others."), "By Smitha,* and others."),
    ],
)
def test_raised_and_lowered_letters(parts: tuple[str, ...], wanted: str, tmp_path: Path) -> None:
    assert read_drawn(tmp_path / "a.pdf", marked(*parts)) == [wanted]


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


# Tables.


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        (
            [
                ("Drug", "Adults", "Children"),
                ("Aspirin", "300 mg", ""),
                ("Ibuprofen", "", "10 mg"),
                ("Codeine", "30", ""),
            ],
            ["Drug: Aspirin; Adults: 300 mg", "Drug: Ibuprofen; Children: 10 mg", "Drug: Codeine; Adults: 30"],
        ),
        (
            [("Sodium", "normal", "yes"), ("Potassium", "low", "no"), ("Calcium", "high", "yes")],
            ["Sodium; normal; yes", "Potassium; low; no", "Calcium; high; yes"],
        ),
        (
            [
                ("Drug", "Dose", "Remark"),
                ("Aspirin", "300 mg", "with food and"),
                ("", "", "water"),
                ("Iron", "9 mg", "none"),
            ],
            ["Drug: Aspirin; Dose: 300 mg; Remark: with food and water", "Drug: Iron; Dose: 9 mg; Remark: none"],
        ),
        (
            [("Outcome", "Drug", "None"), ("Death within a year of it", "1 (3%)", "2 (4%)"), ("Stroke", "<1", "≥3")],
            ["Outcome: Death within a year of it; Drug: 1 (3%); None: 2 (4%)", "Outcome: Stroke; Drug: <1; None: ≥3"],
        ),
    ],
    ids=["empty cells", "no header", "wrapped cell", "long labels"],
)
def test_tables_without_rules(rows: Sequence[Sequence[str]], wanted: list[str], tmp_path: Path) -> None:
    around = (lines(["A line of words above the table that is wider than it."], y=730), BODY)
    found = read_drawn(
        tmp_path / "a.pdf", cells([[c.replace("≥", ">") for c in row] for row in rows], [50, 200, 300]), *around
    )
    assert found[1:-1] == [row.replace("≥", ">") for row in wanted]


def test_tables_in_grids(tmp_path: Path) -> None:
    one = (
        cells([["Drug", "Dose"], ["Aspirin", "300 mg"]], [55, 155], y=690, leading=20),
        rules([50, 150, 250], [705, 684, 664]),
    )
    two = (cells([["A", "1"], ["B", "2"]], [55, 155], y=530, leading=20), rules([50, 150, 250], [545, 524, 504]))
    assert read_drawn(tmp_path / "a.pdf", *one, BODY, *two) == [
        "Drug; Dose",
        "Aspirin; 300 mg",
        "The text of the page is set in letters of the usual size and goes on here.",
        "A; 1",
        "B; 2",
    ]
    over = lambda canvas: [canvas.line(150, y, 250, y) for y in (684,)] and canvas.line(50, 664, 250, 664)  # noqa: E731
    frame = rules([50, 150, 250], [705, 644])
    words = cells([["Adults", "300 mg"], ["", "500 mg"], ["Children", "10 mg"]], [55, 155], y=690, leading=20)
    assert read_drawn(tmp_path / "b.pdf", frame, over, words) == ["Adults; 300 mg", "Adults; 500 mg", "Children; 10 mg"]


def test_many_drawn_lines_cost_little_and_hide_nothing(tmp_path: Path) -> None:
    def chart(canvas: Canvas) -> None:
        for at in range(6000):
            canvas.line(100 + at % 97 * 3, 300 + at % 89 * 2, 120 + at % 97 * 3, 305 + at % 89 * 2)

    assert len(read_drawn(tmp_path / "a.pdf", BODY, chart)) == 1


# Titles.


@pytest.mark.parametrize(
    "claimed",
    [
        "",
        "untitled",
        "Microsoft Word - draft3.docx",
        "guide_v3_final",
        "12345",
        "Document1",
        "C:\\docs\\x\\y",
        "a.indd",
        "--",
    ],
)
def test_a_title_stands_in_the_largest_letters_where_the_metadata_have_none(claimed: str, tmp_path: Path) -> None:
    title = lines(["Care of adults with", "asthma at home"], size=20, leading=24, y=700)
    assert (
        title_from_name(write(tmp_path / "a.pdf", together(title, BODY), title=claimed))
        == "Care of adults with asthma at home"
    )


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


# Files.


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
