"""PDFs: reading order, running headers, words, titles and hard cases."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib
from pypdf import PdfReader, PdfWriter
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.pdfgen.canvas import Canvas

from tests.retrieval.support import items, read

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


def test_text_that_recurs_on_pages_is_no_header(tmp_path: Path) -> None:
    for bodies in (
        [["Give 5 mg on day 1.", "then wait a day."], ["Give 6 mg on day 2.", "then wait a day."]],
        [["Dose", "5 mg of aspirin", "is the dose."], ["Dose", "7 mg of codeine", "is the dose."]],
        [["The same words on all pages.", "here is more."]] * 3,
    ):
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


def test_the_items_of_a_list_keep_their_marks(tmp_path: Path) -> None:
    for marks in (["•"] * 3, ["-"] * 3, ["1.", "2.", "3."]):
        texts = ["Rest is first.", "Fluids are next.", "Paracetamol is last."]
        found = read_drawn(tmp_path / "a.pdf", lines(marks), lines(texts, x=75))
        assert found == [f"{mark} {text}" for mark, text in zip(marks, texts, strict=True)]


def test_many_drawn_lines_cost_little_and_hide_nothing(tmp_path: Path) -> None:
    def chart(canvas: Canvas) -> None:
        for at in range(6000):
            canvas.line(100 + at % 97 * 3, 300 + at % 89 * 2, 120 + at % 97 * 3, 305 + at % 89 * 2)

    assert len(read_drawn(tmp_path / "a.pdf", BODY, chart)) == 1


def test_other_titles(tmp_path: Path) -> None:
    large = lines(["WARD 12"], size=30)
    named = write(tmp_path / "a.pdf", together(large, BODY), title="COVID-19 in  Łódź")
    assert title_from_name(named) == "COVID-19 in Łódź"
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
