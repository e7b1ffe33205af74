"""The reading order of PDFs: columns, boxes, footnotes, drawing order, running headers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from reportlab.pdfgen.canvas import Canvas

from tests.retrieval.drawn_pdf import Draw, lines, read_drawn, read_pages, together, write

LEFT = [
    "The left column tells how the",
    "disease begins and how long it",
    "lasts in most of the patients",
    "who were seen. It ends here with",
    "a full stop at the end.",
]
RIGHT = [
    "The right column tells what is",
    "done about it and how well the",
    "treatment works in practice for",
    "those who take it as they were",
    "told to take it.",
]
BOTH = [" ".join(LEFT), " ".join(RIGHT)]


def test_a_sentence_goes_on_in_the_next_column_and_a_word_too(tmp_path: Path) -> None:
    first = [*LEFT[:3], "who were seen before they got anti-"]
    second = ["biotics in the ward. Then a new", "sentence begins, and it ends at", "the foot of the page."]
    (whole,) = read_drawn(tmp_path / "a.pdf", lines(first), lines(second, x=260))
    assert "seen before they got antibiotics in the ward. Then a new sentence" in whole


def test_a_frame_around_the_page_changes_nothing(tmp_path: Path) -> None:
    frame: Draw = lambda canvas: canvas.rect(20, 20, 560, 760)  # noqa: E731
    assert read_drawn(tmp_path / "a.pdf", lines(LEFT), lines(RIGHT, x=250), frame) == BOTH


def turned(degrees: float, x: float, y: float, draw: Draw) -> Draw:
    def drawn(canvas: Canvas) -> None:
        canvas.saveState()
        canvas.translate(x, y)
        canvas.rotate(degrees)
        draw(canvas)
        canvas.restoreState()

    return drawn


def test_turned_text_in_the_margin_is_left_out_and_a_turned_page_is_read(tmp_path: Path) -> None:
    margin = turned(90, 30, 200, lines(["Downloaded by a library"], x=0, y=0, size=7))
    mark = turned(45, 200, 300, lines(["DRAFT"], x=0, y=0, size=80))
    assert read_drawn(tmp_path / "a.pdf", mark, margin, lines(LEFT * 2), lines(RIGHT * 2, x=250)) == [
        *(" ".join(LEFT) for _ in range(2)),
        *(" ".join(RIGHT) for _ in range(2)),
    ]
    sideways = turned(90, 600, 0, together(lines(LEFT, y=500), lines(RIGHT, x=250, y=500)))
    assert read_drawn(tmp_path / "b.pdf", sideways) == BOTH
    assert read_drawn(tmp_path / "c.pdf", lambda canvas: canvas.setPageRotation(90), sideways) == BOTH
    half = turned(90, 580, 50, lines(["A table lies on", "its side here."], x=0, y=0))
    assert read_drawn(tmp_path / "d.pdf", lines(["A short text stands", "upright here."]), half) == [
        "A short text stands upright here.",
        "A table lies on its side here.",
    ]


# Running headers and footers.

BODIES = [
    ["Chest pain is seen first.", "An ECG is made at once."],
    ["Stroke is suspected early.", "Imaging follows soon."],
    ["Sepsis needs cultures.", "Antibiotics follow."],
    ["Burns are cooled.", "Pain is treated."],
]
WANTED = [" ".join(body) for body in BODIES]


def headed(header: str, footer: str, body: Sequence[str], *, x: float = 50) -> Draw:
    return together(lines([header], x=x, y=770, size=8), lines([footer], x=x, y=30, size=8), lines(body))


def test_running_lines_of_two_pages_and_the_number_of_one(tmp_path: Path) -> None:
    pages = [headed("County hospital", f"Page {at + 1}", body) for at, body in enumerate(BODIES[:2])]
    assert read_pages(write(tmp_path / "a.pdf", *pages)) == WANTED[:2]
    one = headed("County hospital", "- 7 -", BODIES[0])
    assert read_pages(write(tmp_path / "b.pdf", one)) == [f"County hospital\n{WANTED[0]}"]


@pytest.mark.parametrize(
    "bodies",
    [
        [["Give 5 mg on day 1.", "then wait a day."], ["Give 6 mg on day 2.", "then wait a day."]],
        [["Dose", "5 mg of aspirin", "is the dose."], ["Dose", "7 mg of codeine", "is the dose."]],
        [["The same words on all pages.", "here is more."]] * 3,
    ],
)
def test_text_that_recurs_on_pages_is_no_header(bodies: list[list[str]], tmp_path: Path) -> None:
    found = read_pages(write(tmp_path / "a.pdf", *(lines(body) for body in bodies)))
    assert [page.split() for page in found] == [" ".join(body).split() for body in bodies]


def test_a_running_line_beside_a_column_and_a_table_that_goes_on(tmp_path: Path) -> None:
    pages = [
        together(lines(LEFT), lines(RIGHT, x=250), lines(["A guide"], y=40), lines([f"{at} of 9"], x=400, y=40))
        for at in range(1, 5)
    ]
    assert read_pages(write(tmp_path / "a.pdf", *pages)) == ["\n".join(BOTH)] * 4


def test_a_chapters_number_in_large_letters_stays(tmp_path: Path) -> None:
    chapter = together(lines(["3"], size=30, y=750), lines(["The care of wounds is told here.", "it has two parts."]))
    assert read_pages(write(tmp_path / "a.pdf", chapter)) == ["3\nThe care of wounds is told here. it has two parts."]
