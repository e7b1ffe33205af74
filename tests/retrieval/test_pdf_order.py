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


@pytest.mark.parametrize(
    "draws",
    [
        (lines(LEFT), lines(RIGHT, x=250)),
        (lines(RIGHT, x=250), lines(LEFT)),
        (lines(LEFT), lines(RIGHT, x=250, y=695)),
        (lines(LEFT), lines(RIGHT, x=250, y=688)),
        (lines(LEFT[::-1], leading=-12, y=652), lines(RIGHT, x=215)),
        tuple(lines([text], x=x, y=700 - 12 * at) for at in range(5) for x, text in ((50, LEFT[at]), (250, RIGHT[at]))),
    ],
    ids=["as read", "right first", "not on one line", "lower", "from below, near", "row by row"],
)
def test_columns_are_read_one_after_the_other(draws: Sequence[Draw], tmp_path: Path) -> None:
    assert read_drawn(tmp_path / "a.pdf", *draws) == BOTH


def test_a_right_column_may_be_short(tmp_path: Path) -> None:
    drawn = (
        lines(LEFT * 2),
        lines(["Three lines are enough to see", "that the right side of the page", "is a column."], 250),
    )
    whole = " ".join(LEFT)
    assert read_drawn(tmp_path / "a.pdf", *drawn) == [
        whole,
        whole,
        "Three lines are enough to see that the right side of the page is a column.",
    ]


def test_what_spans_columns_parts_what_is_above_it_from_what_is_below(tmp_path: Path) -> None:
    heading = "Treatment of the disease in the long run, over both columns"
    found = read_drawn(
        tmp_path / "a.pdf",
        lines(["Words above both columns that reach from one side of the page to the other."], y=740),
        *(lines(LEFT), lines(RIGHT, x=250)),
        lines([heading], y=610, size=14),
        *(lines(RIGHT, y=580), lines(LEFT, x=250, y=580)),
    )
    assert found == [
        "Words above both columns that reach from one side of the page to the other.",
        *BOTH,
        heading,
        *BOTH[::-1],
    ]


def test_a_sentence_goes_on_in_the_next_column_and_a_word_too(tmp_path: Path) -> None:
    first = [*LEFT[:3], "who were seen before they got anti-"]
    second = ["biotics in the ward. Then a new", "sentence begins, and it ends at", "the foot of the page."]
    (whole,) = read_drawn(tmp_path / "a.pdf", lines(first), lines(second, x=260))
    assert "seen before they got antibiotics in the ward. Then a new sentence" in whole


def test_footnotes_come_after_all_columns(tmp_path: Path) -> None:
    notes = (lines(["1 A note at the foot."], y=560, size=7), lines(["2 Another one."], x=250, y=560, size=7))
    found = read_drawn(tmp_path / "a.pdf", lines(LEFT), lines(RIGHT, x=250), *notes)
    assert found == [*BOTH, "1 A note at the foot.", "2 Another one."]


@pytest.mark.parametrize(("box", "text"), [((45, 640, 110, 80), 170), ((390, 640, 110, 80), 50)])
def test_a_box_beside_the_text_comes_after_it(box: tuple[int, ...], text: int, tmp_path: Path) -> None:
    def grey(canvas: Canvas) -> None:
        canvas.setFillGray(0.9)
        canvas.rect(*box, fill=1, stroke=0)
        canvas.setFillGray(0)

    inside = lines(["Ask about falls", "at every visit."], x=box[0] + 5, size=9)
    assert (
        read_drawn(tmp_path / "a.pdf", grey, inside, lines(LEFT * 2, x=text))[-1] == "Ask about falls at every visit."
    )


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


@pytest.mark.parametrize(
    ("headers", "footers"),
    [
        (["County hospital"] * 4, ["Page 1 of 4", "Page 2 of 4", "Page 3 of 4", "Page 4 of 4"]),
        (["Handbook", "On emergencies"] * 2, ["12", "13", "14", "15"]),
        (["Handbook 9"] * 4, ["i", "ii", "iii", "iv"]),
        ([f"{number} | Version 3 of 2024" for number in range(7, 11)], ["Not controlled when printed"] * 4),
        (["- 1 -", "- 2 -", "- 3 -", "- 4 -"], ["Seite 1/4", "Seite 2/4", "Seite 3/4", "Seite 4/4"]),
    ],
)
def test_running_lines_are_left_out(headers: list[str], footers: list[str], tmp_path: Path) -> None:
    pages = [headed(*each, x=50 + 200 * (at % 2)) for at, each in enumerate(zip(headers, footers, BODIES, strict=True))]
    assert read_pages(write(tmp_path / "a.pdf", *pages)) == WANTED


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
