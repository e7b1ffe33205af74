"""PDFs: pages without text, struck-out text, tables over a page break, page labels, titles of sections, years."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from pypdf import PdfReader, PdfWriter
from pypdf.annotations import FreeText
from pypdf.constants import PageLabelStyle
from pypdf.generic import ArrayObject, FloatObject, NameObject
from reportlab.lib import colors
from reportlab.lib.pagesizes import A5
from reportlab.lib.styles import getSampleStyleSheet
from reportlab.lib.utils import ImageReader
from reportlab.pdfbase.pdfmetrics import stringWidth
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import LongTable, Paragraph, SimpleDocTemplate, Spacer

from medagent.retrieval.chunking import Document
from medagent.retrieval.readers import LeftOut, read_documents
from tests.retrieval.test_pdf import Draw, lines, together, turned, write

BODY = ["The dose of demoxetine is 5 mg in the evening, and it", "is raised after two weeks where it is well borne."]
TEXT = " ".join(BODY)


def read(path: Path) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The sections of a file's document, and what was left out of it."""
    found = list(read_documents(path))
    sections = [(part.heading, part.text) for item in found if isinstance(item, Document) for part in item.sections]
    return sections, [(item.where, item.what) for item in found if isinstance(item, LeftOut)]


def year(path: Path) -> int | None:
    return next(item for item in read_documents(path) if isinstance(item, Document)).year


def picture(width: float = 500, height: float = 700) -> Draw:
    """A picture with some noise, as scanners make."""
    from PIL import Image

    spots = random.Random(0).choices(range(256), k=50 * 70)
    image = Image.new("L", (50, 70))
    image.putdata(spots)
    return lambda canvas: canvas.drawImage(ImageReader(image), 40, 60, width, height) and None


def outlines(canvas: Canvas) -> None:
    """Letters drawn as paths."""
    for at in range(40):
        canvas.circle(60 + at % 8 * 20, 600 - at // 8 * 30, 6, stroke=0, fill=1)


def test_pages_that_show_something_without_text_are_named_and_blank_ones_are_not(tmp_path: Path) -> None:
    blank: Draw = lambda canvas: canvas.setFillGray(1) or canvas.rect(0, 0, 600, 800, stroke=0, fill=1)  # noqa: E731
    pages = [lines(BODY), picture(), lines(BODY), picture(), outlines, blank, picture(100, 100)]
    sections, left_out = read(write(tmp_path / "a.pdf", *pages))
    assert left_out == [("a.pdf, pages 2, 4 to 5, 7", "have no text")]
    assert sections == [("page 1", TEXT), ("page 3", TEXT)]
    assert read(write(tmp_path / "b.pdf", lines(BODY), picture()))[1] == [("b.pdf, page 2", "has no text")]


def test_a_picture_with_a_running_line_alone_is_named_and_one_beside_text_is_not(tmp_path: Path) -> None:
    header = lines(["County hospital, guideline on the treatment of gout in adults, version 3, page 2 of 9"], y=770)
    for draw in (together(picture(), lines(["2"], x=300, y=30)), together(header, picture())):
        _, left_out = read(write(tmp_path / "a.pdf", lines(BODY), draw))
        assert left_out == [("a.pdf, page 2", "has almost no text and a picture")]
    for draw in (together(lines(BODY), picture(300, 300)), together(header, lines(["Left blank on purpose."]))):
        assert read(write(tmp_path / "b.pdf", lines(BODY), draw))[1] == []


def stroke(text: str, of: str, *, x: float = 50, y: float = 700, up: float = 3.0, thick: float = 0.7) -> Draw:
    """A line at a height above the baseline along a part of a text."""

    def draw(canvas: Canvas) -> None:
        begins, width = (canvas.stringWidth(part, "Helvetica", 10) for part in (text[: text.index(of)], of))
        canvas.rect(x + begins, y + up - thick / 2, width, thick, stroke=0, fill=1)

    return draw


DOSE = "Never give above 100 mg 10 mg each day to anybody"
TAKE = "Take 505 mg."
LEFT, RIGHT = (50 + stringWidth(part, "Helvetica", 10) for part in ("Never give above ", "Never give above 100 mg"))


def test_text_struck_out_by_a_line_is_left_out_and_counted(tmp_path: Path) -> None:
    line: Draw = lambda canvas: canvas.line(LEFT, 703.2, RIGHT, 703.2)  # noqa: E731
    for struck in (line, stroke(DOSE, "100 mg"), together(stroke(DOSE, "100"), stroke(DOSE, "mg", up=3.5, thick=1.5))):
        sections, left_out = read(write(tmp_path / "a.pdf", together(lines([DOSE, "And so on."]), struck)))
        assert sections == [("page 1", "Never give above 10 mg each day to anybody And so on.")]
        assert left_out == [("a.pdf, page 1", "1 struck-out text")]
    late = "not at night but in the morning after a long sleep"
    over = f"Give <strike>100 mg</strike> 10 mg, and <strike>{late}</strike> now."
    story = [Paragraph(over, getSampleStyleSheet()["BodyText"])]
    SimpleDocTemplate(str(tmp_path / "d.pdf"), pagesize=(300, 400), invariant=1).build(story)
    assert read(tmp_path / "d.pdf") == ([("page 1", "Give 10 mg, and now.")], [("d.pdf, page 1", "2 struck-out texts")])
    half = together(lines([TAKE]), stroke(TAKE, "50"))
    both = write(
        tmp_path / "b.pdf",
        together(half, lines(["Not now."], y=650), stroke("Not", "Not", y=650)),
        together(lines([*BODY, "", TAKE]), stroke(TAKE, "50", y=664)),
    )
    sections, left_out = read(both)
    assert [text for _, text in sections] == ["Take 5 mg.\nnow.", f"{TEXT}\nTake 5 mg."]
    assert left_out == [("b.pdf, pages 1 to 2", "3 struck-out texts")]
    sideways = turned(90, 600, 0, together(lines([DOSE, *BODY], y=500), stroke(DOSE, "100 mg", y=500)))
    assert "above 10 mg each" in read(write(tmp_path / "c.pdf", sideways))[0][0][1]


def test_underlines_fractions_rules_and_lines_of_charts_strike_nothing_out(tmp_path: Path) -> None:
    fraction = together(lines(["dose"], y=706), lines(["weight"], y=694), stroke("dose in", "dose in", y=700, up=3))
    for drawn in (
        together(lines([DOSE]), stroke(DOSE, "100 mg", up=-1.5)),
        together(lines([DOSE]), stroke(DOSE, "100 mg", up=8)),
        fraction,
        together(lines(["40", "20"], leading=50), lambda canvas: [canvas.line(40, y, 400, y) for y in (703, 653)]),
        together(lines([DOSE]), lambda canvas: canvas.rect(130, 697, 45, 12)),
    ):
        assert read(write(tmp_path / "a.pdf", drawn))[1] == []


def annotated(path: Path, subtype: str, box: Sequence[float], *, flags: int = 4) -> Path:
    """A file whose first page has an annotation over a box: left, bottom, right, top."""
    writer = PdfWriter(clone_from=PdfReader(path))
    left, bottom, right, top = box
    note = FreeText(text="", rect=(left, bottom, right, top))
    note[NameObject("/Subtype")] = NameObject(subtype)
    corners = (left, top, right, top, left, bottom, right, bottom)
    note[NameObject("/QuadPoints")] = ArrayObject([FloatObject(at) for at in corners])
    note.flags = flags
    writer.add_annotation(0, note)
    writer.write(path)
    return path


def test_a_strikeout_annotation_strikes_out_and_a_highlight_does_not(tmp_path: Path) -> None:
    plain = write(tmp_path / "a.pdf", lines([DOSE]))
    box = (LEFT, 697.0, RIGHT, 709.0)
    assert read(annotated(plain, "/Highlight", box))[0][0][1] == DOSE
    assert read(annotated(plain, "/StrikeOut", box, flags=2))[0][0][1] == DOSE, "it is hidden"
    assert read(annotated(plain, "/StrikeOut", box)) == (
        [("page 1", "Never give above 10 mg each day to anybody")],
        [("a.pdf, page 1", "1 struck-out text")],
    )


def test_invisible_text_over_a_scan_is_its_text(tmp_path: Path) -> None:
    def recognized(canvas: Canvas) -> None:
        text = canvas.beginText(50, 700)
        text.setFont("Helvetica", 10)
        text.setTextRenderMode(3)
        for line in BODY:
            text.textLine(line)
        canvas.drawText(text)

    assert read(write(tmp_path / "a.pdf", together(picture(), recognized))) == ([("page 1", TEXT)], [])


# Tables over a page break.

HEADER = ["Drug", "Dose", "Time"]
ROWS = [[f"agent{at}", f"{at} mg", ("morning", "evening")[at % 2]] for at in range(1, 61)]


def table_over_pages(
    path: Path,
    rows: Sequence[Sequence[str]],
    *,
    repeat: int,
    ruled: bool,
    header: str = "",
    intro: str = "Doses follow.",
) -> list[str]:
    """The lines of a table that goes over several pages."""
    style = [("VALIGN", (0, 0), (-1, -1), "TOP")]
    style += [("FONTNAME", (0, 0), (-1, 0), "Helvetica-Bold"), ("TOPPADDING", (0, 0), (-1, -1), 3 if intro else 8)]
    style += [("GRID", (0, 0), (-1, -1), 0.5, colors.black)] if ruled else []

    def running(canvas: Canvas, document: SimpleDocTemplate) -> None:
        canvas.drawString(60, A5[1] - 30, header)
        canvas.drawString(200, 20, f"{document.page}")

    above = Paragraph(intro, getSampleStyleSheet()["BodyText"])
    table = LongTable([HEADER, *rows], colWidths=[110, 90, 90], repeatRows=repeat, style=style)
    SimpleDocTemplate(str(path), pagesize=A5, invariant=1).build(
        [above, Spacer(1, 12), table] if intro else [table], onFirstPage=running, onLaterPages=running
    )
    return [line for _, text in read(path)[0] for line in text.split("\n")]


@pytest.mark.parametrize("ruled", [True, False])
@pytest.mark.parametrize("repeat", [0, 1])
@pytest.mark.parametrize("header", ["", "County hospital, doses"])
@pytest.mark.parametrize("count", [22, 23, 24, 25, 60])
def test_a_tables_header_is_carried_over_page_breaks(
    tmp_path: Path, ruled: bool, repeat: int, header: str, count: int
) -> None:
    found = table_over_pages(tmp_path / "a.pdf", ROWS[:count], repeat=repeat, ruled=ruled, header=header)
    wanted = [f"Drug: {drug}; Dose: {dose}; Time: {time}" for drug, dose, time in ROWS[:count]]
    assert [line for line in found if "Drug" in line or "agent" in line] == wanted


@pytest.mark.parametrize("ruled", [True, False])
def test_rows_that_recur_at_the_edges_of_pages_are_no_running_lines(tmp_path: Path, ruled: bool) -> None:
    found = table_over_pages(tmp_path / "a.pdf", ROWS, repeat=1, ruled=ruled, intro="")
    assert found == [f"Drug: {drug}; Dose: {dose}; Time: {time}" for drug, dose, time in ROWS]


def grid(rows: Sequence[Sequence[str]], y: float, *, x: float = 50, bold: bool = True) -> Draw:
    """A table with lines around its cells."""

    def draw(canvas: Canvas) -> None:
        for number, row in enumerate(rows):
            canvas.setFont("Helvetica-Bold" if bold and number == 0 else "Helvetica", 10)
            for at, cell in enumerate(row):
                canvas.rect(x + at * 100, y - number * 20 - 5, 100, 20)
                canvas.drawString(x + 4 + at * 100, y - number * 20, cell)

    return draw


def test_ruled_tables_beside_each_other_and_beside_text_are_read(tmp_path: Path) -> None:
    tables = [[["Drug", "Dose"], row[:2]] for row in ROWS[:6]]
    for captions in (False, True):
        draws = [grid(rows, 700 - at // 2 * 90, x=50 + at % 2 * 260) for at, rows in enumerate(tables)]
        draws += [lines(["A table"], x=50 + at % 2 * 260, y=725 - at // 2 * 90) for at in range(6) if captions]
        ((_, text),), _ = read(write(tmp_path / "a.pdf", together(*draws)))
        found = [line for line in text.split("\n") if line != "A table"]
        assert sorted(found) == [f"Drug: {drug}; Dose: {dose}" for drug, dose, _ in ROWS[:6]]
    label = lines(["A label beside the table."], x=300, y=715)
    ((_, text),), _ = read(write(tmp_path / "b.pdf", together(grid(tables[0], 700), label)))
    assert text == "Drug: agent1; Dose: 1 mg\nA label beside the table."


def test_another_table_on_the_next_page_keeps_its_own_header(tmp_path: Path) -> None:
    first, second = [["Drug", "Dose"], *[row[:2] for row in ROWS[:2]]], [["Age", "Limit"], ["40", "3"], ["50", "2"]]
    for bold in (True, False):
        path = write(tmp_path / "a.pdf", grid(first, 700, bold=bold), grid(second, 700, bold=bold))
        assert [text for _, text in read(path)[0]][1] == "Age: 40; Limit: 3\nAge: 50; Limit: 2"
    named = together(lines(["Table 1 (continued)"], y=730), grid(ROWS[2:4] and [row[:2] for row in ROWS[2:4]], 700))
    other = together(lines(["These are limits."], y=730), grid([["40", "3"], ["50", "2"]], 700, bold=False))
    path = write(tmp_path / "b.pdf", grid(first, 700), named, other)
    texts = [text for _, text in read(path)[0]]
    assert texts[1] == "Table 1 (continued)\nDrug: agent3; Dose: 3 mg\nDrug: agent4; Dose: 4 mg"
    assert texts[2] == "These are limits.\n40; 3\n50; 2"


# Page labels, titles of sections and years.


def test_sections_have_the_printed_labels_of_pages(tmp_path: Path) -> None:
    writer = PdfWriter(clone_from=PdfReader(write(tmp_path / "a.pdf", *[lines(BODY)] * 3, picture(), lines(BODY))))
    writer.set_page_label(0, 1, PageLabelStyle.LOWERCASE_ROMAN, start=11)
    writer.set_page_label(2, 4, PageLabelStyle.DECIMAL, prefix="A-", start=117)
    writer.write(tmp_path / "b.pdf")
    sections, left_out = read(tmp_path / "b.pdf")
    assert [heading for heading, _ in sections] == ["page xi", "page xii", "page A-117", "page A-119"]
    assert left_out == [("b.pdf, page A-118", "has no text")]


def titled(*parts: tuple[str, str], font: str = "Helvetica-Bold", size: float = 10) -> Draw:
    """Headings, each with a text below."""
    draws: list[Draw] = []
    for number, (heading, text) in enumerate(parts):
        draws.append(lines([heading], y=700 - number * 60, font=font, size=size))
        draws.append(lines([text], y=680 - number * 60))
    return together(*draws)


def test_headings_name_the_sections_until_the_next_one(tmp_path: Path) -> None:
    first = together(
        lines(["Care of gout"], y=750, size=20),
        titled(("1 Treatment", "Rest is first, then drugs."), ("1.1 Dosage", "The dose is 5 mg at night.")),
    )
    for font, size in (("Helvetica-Bold", 10.0), ("Helvetica", 14.0)):
        second = titled(("1.2 Follow-up", "See them after two weeks."), font=font, size=size)
        path = write(tmp_path / "a.pdf", first, lines(BODY), together(lines(["It is well borne."], y=750), second))
        assert read(path)[0] == [
            ("page 1 > 1 Treatment", "Care of gout\n1 Treatment\nRest is first, then drugs."),
            ("page 1 > 1.1 Dosage", "1.1 Dosage\nThe dose is 5 mg at night."),
            ("page 2 > 1.1 Dosage", TEXT),
            ("page 3 > 1.1 Dosage", "It is well borne."),
            ("page 3 > 1.2 Follow-up", "1.2 Follow-up\nSee them after two weeks."),
        ]


def test_bookmarks_name_the_sections_before_headings_do(tmp_path: Path) -> None:
    pages = [titled(("Dosage", "The dose is 5 mg."), ("9 Note", "It is new.")), lines(BODY), lines(["More."], y=500)]
    writer = PdfWriter(clone_from=PdfReader(write(tmp_path / "a.pdf", *pages)))
    chapter = writer.add_outline_item("2.1 Dosage", 0)
    writer.add_outline_item("How it is borne", 1, parent=chapter)
    writer.add_outline_item("Empty", None)
    writer.write(tmp_path / "b.pdf")
    assert [heading for heading, _ in read(tmp_path / "b.pdf")[0]] == [
        "page 1 > 2.1 Dosage",
        "page 2",
        "page 3 > How it is borne",
    ]


@pytest.mark.parametrize(
    ("printed", "wanted"),
    [
        ("Published 12 March 2021", 2021),
        ("Published: March 2021", 2021),
        ("Received 2 May 2020; Accepted 3 June 2020; Published online: 1 Jul 2020", 2020),
        ("Date of publication: 2019-04-30", 2019),
        ("Issued May 2018. Next review: May 2023", 2018),
        ("Version 3, May 2020", 2020),
        ("Version 2.1 (June 2017)", 2017),
        ("© 2019 County hospital", 2019),
        ("Copyright © 2016 The authors", 2016),
        ("Published in 2015, the trial of demoxetine", None),
        ("It was published 12 March 2021", None),
        ("Next review: May 2030", None),
        ("Printed on 3 May 2022", None),
        ("© 2015-2019 County hospital", None),
        ("Based on the guideline of 2014", None),
        ("Version 2, May 2018. Version 3, May 2020", None),
        ("Issued 7 June 2024 by the intensive care pharmacy.", 2024),
        ("J Demo Oncol 2022;14:33–34", 2022),
        ("Annals of Examples • Volume 3 • 2013 • pages 101–103", 2013),
        ("3. Muster A. J Demo Oncol 2015;10:1–9.", None),
    ],
)
def test_a_year_is_what_the_first_page_states_as_publication(tmp_path: Path, printed: str, wanted: int | None) -> None:
    assert year(write(tmp_path / "a.pdf", lines([*BODY, "", printed]), lines(["Published 12 March 1999"]))) == wanted


def test_a_year_is_of_prism_metadata_and_never_of_the_files_creation(tmp_path: Path) -> None:
    writer = PdfWriter(clone_from=PdfReader(write(tmp_path / "a.pdf", lines([*BODY, "", "© 2019 County hospital"]))))
    writer.add_metadata({"/CreationDate": "D:20130101000000", "/ModDate": "D:20140101000000"})
    packet = (
        '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
        '<rdf:Description xmlns:prism="http://prismstandard.org/namespaces/basic/2.0/" '
        'xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmp:CreateDate="2013-01-01">'
        "<prism:coverDate>2018-05</prism:coverDate></rdf:Description></rdf:RDF></x:xmpmeta>"
    )
    writer.xmp_metadata = packet.encode()
    writer.write(tmp_path / "b.pdf")
    assert year(tmp_path / "b.pdf") == 2018
    assert year(write(tmp_path / "c.pdf", lines(BODY))) is None, "reportlab writes a CreationDate"
