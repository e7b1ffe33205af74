"""Excel workbooks and slides: the text that is shown, and counts of what is not."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import openpyxl
import pptx
import pytest
from lxml import etree
from openpyxl.cell.rich_text import CellRichText, TextBlock
from openpyxl.cell.text import InlineFont
from openpyxl.comments import Comment
from openpyxl.styles import Font
from pptx.chart.data import CategoryChartData
from pptx.enum.chart import XL_CHART_TYPE
from pptx.util import Inches

from medagent.retrieval.chunking import Document
from medagent.retrieval.readers import LeftOut, read_documents
from tests.retrieval.support import read, texts

CHOICES = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
HEADER = ["Drug", "Adults", "Children"]


def sheet_of(*rows: list[Any]) -> Any:
    sheet = openpyxl.Workbook().active
    sheet.title = "Ward"
    for row in rows:
        sheet.append(row)
    return sheet


def parts(sheet: Any, tmp_path: Path) -> tuple[list[str], list[str]]:
    """The lines of the first sheet, and what was left out."""
    sheet.parent.save(tmp_path / "a.xlsx")
    found = list(read_documents(tmp_path / "a.xlsx"))
    lines = [section.text.split("\n") for item in found if isinstance(item, Document) for section in item.sections]
    return lines[0], [item.what for item in found if isinstance(item, LeftOut)]


@pytest.mark.parametrize(
    ("value", "code", "shown"),
    [
        (0.1 + 0.2, "General", "0.3"),
        (1e-3, "General", "0.001"),
        (90000000000001, "General", "90000000000001"),
        (5, "0.0", "5.0"),
        (0.125, "0.00", "0.13"),
        (2.5, "0.0##", "2.5"),
        (1e-3, "0.00E+00", "0.001"),
        (0.05, "0.0%", "5.0%"),
        (1234.5, "#,##0.00", "1,234.50"),
        (5200, '0,"k"', "5200"),
        (2.5, '0.0" mg daily"', "2.5 mg daily"),
        (5, r'"<"0\ "mg"', "<5 mg"),
        (-3.5, "0.0;[Red](0.0)", "(3.5)"),
        (0, '0;-0;"none"', "none"),
        (0.5, "# ?/?", "0.5"),
        (5, "[$€-407] #,##0.00", "€ 5.00"),
        (datetime(2024, 3, 5), "dd/mm/yyyy", "2024-03-05"),
        (datetime(2024, 3, 5, 8, 30), "dd/mm/yyyy hh:mm", "2024-03-05 08:30:00"),
    ],
)
def test_a_number_is_indexed_as_the_sheet_shows_it(tmp_path: Path, value: Any, code: str, shown: str) -> None:
    sheet = sheet_of([value])
    sheet["A1"].number_format = code
    assert parts(sheet, tmp_path) == ([shown], [])


def test_what_is_hidden_or_struck_out_is_left_out_and_counted(tmp_path: Path) -> None:
    run = [
        TextBlock(InlineFont(strike=True), "50 mg "),
        "5 mg, 10",
        TextBlock(InlineFont(vertAlign="superscript"), "9"),
    ]
    sheet = sheet_of(HEADER, ["A", CellRichText(*run), "2 mg"], ["B", "never", "40 mg"], ["C", "=1+1", 4], ["D", 7, 8])
    sheet["C3"].font = Font(strike=True)
    sheet["A2"].comment = Comment("ask again", "me")
    sheet.row_dimensions[5].hidden = True
    sheet["D2"], sheet["E2"] = "secret", "seen"
    sheet["E3"], sheet["E4"], sheet["E4"].number_format = "  ", 3, ";;;"
    sheet.column_dimensions["D"].hidden = True
    sheet.parent.create_sheet("old").sheet_state = "veryHidden"
    found, left_out = parts(sheet, tmp_path)
    assert found == [
        "Drug: A; Adults: 5 mg, 10^9; Children: 2 mg; seen",
        "Drug: B; Adults: never",
        "Drug: C; Children: 4",
    ]
    assert set(left_out[0].split(", ")) == {
        *("1 comment", "1 struck-out text", "1 struck-out cell", "1 hidden value", "1 hidden row", "1 hidden column"),
        *("1 hidden sheet", "1 formula"),
    }


def test_titles_stand_above_a_header_and_merged_cells_are_filled(tmp_path: Path) -> None:
    sheet = sheet_of(["Doses of the ward"], [], ["Drug", "Dose", None], [None, *HEADER[1:]], ["A", "5 mg", "never"])
    sheet.append(["Evening"])
    sheet.append(["B", "7 mg"])
    for area in ("A1:C1", "B3:C3", "A3:A4", "A6:C6", "B7:C7"):
        sheet.merge_cells(area)
    assert parts(sheet, tmp_path)[0] == [
        "Doses of the ward",
        "Drug: A; Dose Adults: 5 mg; Dose Children: never",
        "Evening",
        "Drug: B; Dose Adults: 7 mg; Dose Children: 7 mg",
    ]


def test_a_second_table_is_never_read_under_the_names_of_the_first(tmp_path: Path) -> None:
    tables = [
        HEADER,
        ["A", "5 mg", "2 mg"],
        [],
        ["B", "7 mg", "3 mg"],
        [],
        ["Test", "When", "Where"],
        ["INR", "daily", "ward"],
    ]
    assert parts(sheet_of(*tables), tmp_path)[0] == [
        "Drug: A; Adults: 5 mg; Children: 2 mg",
        "Drug: B; Adults: 7 mg; Children: 3 mg",
        "Test; When; Where",
        "INR; daily; ward",
    ]
    keys = [["Drug", "demoxetine"], ["Dose", "5 mg"], ["Route", "oral"]]
    assert parts(sheet_of(*keys), tmp_path)[0] == ["Drug; demoxetine", "Dose; 5 mg", "Route; oral"]


def test_a_sheet_with_a_column_of_texts_has_a_document_per_row(tmp_path: Path) -> None:
    sheet = sheet_of(["Export"], ["PMID", "Title", "Abstract", "Year"], [31, "Gout", "It hurts.", 2020], [32, "Bare"])
    sheet.parent.save(tmp_path / "a.xlsm")
    documents, (skipped,) = read(tmp_path, "a.xlsm", (tmp_path / "a.xlsm").read_bytes())
    assert [(each.id, each.title, each.year) for each in documents] == [("pmid:31", "Gout", 2020)]
    assert texts(documents) == [[("", "It hurts.")]]
    assert skipped.where == "a.xlsm, Ward, row 4"


@pytest.mark.parametrize("name", ["a.xlsx", "a.pptx"])
def test_damaged_and_encrypted_files_are_skipped_with_a_reason(tmp_path: Path, name: str) -> None:
    sheet_of(["x"]).parent.save(tmp_path / "whole.xlsx")
    whole = (tmp_path / "whole.xlsx").read_bytes()
    wrong = {b"no archive": "BadZipFile", whole[:2000]: "BadZipFile", b"\xd0\xcf\x11\xe0rest": "encrypted"}
    for content, reason in wrong.items():
        documents, (skipped,) = read(tmp_path, name, content)
        assert not documents
        assert reason in skipped.reason


def slides(tmp_path: Path) -> list[Any]:
    """Two slides: a title, and one with each kind of shape. Their file has a title and dates of a template."""
    deck = pptx.Presentation()
    first, second, hidden, charted = (deck.slides.add_slide(deck.slide_layouts[5]) for _ in range(4))
    first.shapes.title.text, second.shapes.title.text, charted.shapes.title.text = "Demoxetine", "Doses", "Weeks"
    second.shapes.add_textbox(Inches(5), Inches(2), Inches(2), Inches(1)).text_frame.text = "right"
    paragraph = second.shapes.add_textbox(Inches(1), Inches(2.05), Inches(2), Inches(1)).text_frame.paragraphs[0]
    for text, form in (("50 mg ", {"strike": "sngStrike"}), ("5 mg, 10", {}), ("9", {"baseline": "30000"})):
        run = paragraph.add_run()
        run.text = text
        for name, value in form.items():
            run._r.get_or_add_rPr().set(name, value)
    table = second.shapes.add_table(3, 3, Inches(1), Inches(4), Inches(5), Inches(1)).table
    for row, cells in enumerate([HEADER, ["A", "5 mg", "2 mg"], ["B", "never", ""]]):
        for column, text in enumerate(cells):
            table.cell(row, column).text = text
    table.cell(2, 1).merge(table.cell(2, 2))
    second.notes_slide.notes_text_frame.text = "Say it slowly."
    group = second.shapes.add_group_shape()
    group.shapes.add_textbox(Inches(1), Inches(6), Inches(1), Inches(1)).text_frame.text = "grouped"
    hidden._element.set("show", "0")
    newer = charted.shapes.add_textbox(Inches(1), Inches(6), Inches(2), Inches(1))
    newer.text_frame.text = "by a newer program"
    older = charted.shapes.add_textbox(Inches(1), Inches(6), Inches(2), Inches(1))
    both, choice, fallback = (etree.Element(f"{CHOICES}{name}") for name in ("AlternateContent", "Choice", "Fallback"))
    newer._element.getparent().append(both)
    both.extend([choice, fallback])
    choice.append(newer._element)
    fallback.append(older._element)
    chart = CategoryChartData()
    chart.categories = ["Week 1", "Week 2"]
    chart.add_series("Placebo", (1.5, None))
    charted.shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, Inches(1), Inches(2), Inches(5), Inches(3), chart)
    deck.save(tmp_path / "a.pptx")
    return list(read_documents(tmp_path / "a.pptx"))


def test_slides_are_sections_with_shapes_in_order_and_notes(tmp_path: Path) -> None:
    document, left_out = slides(tmp_path)
    assert (document.title, document.year) == ("Demoxetine", None)
    doses = "5 mg, 10^9\nright\nDrug: A; Adults: 5 mg; Children: 2 mg\nDrug: B; Adults: never; Children: never\ngrouped"
    assert texts([document]) == [
        [
            ("slide 1", "Demoxetine"),
            ("slide 2: Doses", doses),
            ("slide 2: Doses > Notes", "Say it slowly."),
            ("slide 4: Weeks", "by a newer program"),
        ]
    ]
    assert left_out == LeftOut("a.pptx", "1 struck-out text, 1 hidden slide, 1 chart")
