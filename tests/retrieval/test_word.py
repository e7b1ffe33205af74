"""Word files are read as their reader sees them, and what is left out is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from medagent.retrieval.readers import LeftOut, read_documents
from tests.retrieval.support import items, texts
from tests.retrieval.word_files import block, run, table, write_word

STRUCK, RAISED = "<w:strike/>", '<w:vertAlign w:val="superscript"/>'
LOWERED = '<w:vertAlign w:val="subscript"/>'
STYLES = (
    '<w:style w:type="paragraph" w:styleId="berschrift1"><w:name w:val="heading 1"/></w:style>'
    '<w:style w:type="paragraph" w:styleId="Ward"><w:name w:val="Ward"/>'
    '<w:pPr><w:outlineLvl w:val="1"/></w:pPr></w:style>'
    '<w:style w:type="paragraph" w:styleId="WardRed"><w:name w:val="Ward red"/><w:basedOn w:val="Ward"/></w:style>'
    '<w:style w:styleId="Titel"><w:name w:val="Title"/></w:style>'
    '<w:style w:type="character" w:styleId="Old"><w:name w:val="Old"/><w:rPr><w:dstrike/></w:rPr></w:style>'
    '<w:style w:type="character" w:styleId="Older"><w:name w:val="Older"/><w:basedOn w:val="Old"/></w:style>'
    '<w:style w:type="character" w:styleId="Note"><w:name w:val="Note"/><w:rPr><w:vanish/></w:rPr></w:style>'
    '<w:style w:type="character" w:styleId="Power"><w:name w:val="Power"/>'
    f"<w:rPr>{RAISED}</w:rPr></w:style>"
)


def lines(path: Path) -> list[str]:
    (document,), skipped = items(path)
    assert not skipped
    return "\n".join(section.text for section in document.sections).split("\n")


def left_out(path: Path) -> list[str]:
    return [item.what for item in read_documents(path) if isinstance(item, LeftOut)]


def styled(name: str) -> str:
    return f'<w:pStyle w:val="{name}"/>'


def deleted(text: str) -> str:
    return f"<w:del><w:r><w:delText>{text}</w:delText></w:r></w:del>"


@pytest.mark.parametrize(
    ("runs", "wanted", "counted"),
    [
        (["Give ", deleted("50 mg"), f"<w:ins>{run('5 mg')}</w:ins>", " once."], "Give 5 mg once.", "1 deletion"),
        (
            ["Never above ", run("100", STRUCK), run(" mg", STRUCK), run("40 mg", "<w:dstrike/>"), " 10 mg."],
            "Never above 10 mg.",
            "1 struck-out text",
        ),
        (["Up to ", run("9", '<w:rStyle w:val="Older"/>'), " 3 g."], "Up to 3 g.", "1 struck-out text"),
        (["At ", run("5 mg", '<w:strike w:val="0"/>'), "."], "At 5 mg.", None),
        (["Seen. ", run("Unseen.", "<w:vanish/>"), run("Nor", '<w:rStyle w:val="Note"/>')], "Seen.", "1 hidden text"),
        (
            [f"<w:moveFrom>{run('Old place.')}</w:moveFrom>", f"<w:moveTo>{run('New place.')}</w:moveTo>"],
            "New place.",
            "1 moved text",
        ),
        (["10", run("9", RAISED), "/L, 10", run("-6", '<w:rStyle w:val="Power"/><w:b/>')], "10^9/L, 10^-6", None),
        (["10", run("3", '<w:position w:val="8"/>'), " H", run("2", LOWERED), "O"], "10^3 H2O", None),
        (["Age ", '<w:r><w:sym w:font="Symbol" w:char="f0b3"/></w:r>', " 65"], "Age ≥ 65", None),
        (["5 ", run("m", '<w:rFonts w:ascii="Symbol"/>'), "g, \uf0a3 3"], "5 µg, ≤ 3", None),
        (['<w:r><w:sym w:font="Wingdings" w:char="F0A8"/></w:r>', " no"], "☐ no", None),
        (["a", '<w:r><w:sym w:font="Unheard" w:char="F001"/></w:r>'], "a", "1 symbol"),
        (["5", "<w:r><w:noBreakHyphen/></w:r>", "10"], "5-10", None),
        (["<w:r><w:t>a</w:t><w:tab/><w:t>b</w:t><w:br/><w:t>c</w:t><w:cr/><w:t>d</w:t></w:r>"], "a b c d", None),
        (["<w:r><w:t>a</w:t><w:ptab/><w:t>b</w:t><w:br w:type='page'/><w:t>c</w:t></w:r>"], "a b c", None),
        (['<w:hyperlink r:id="lost">', run("5 mg"), "</w:hyperlink>", " daily"], "5 mg daily", None),
        (
            [
                '<w:r><w:fldChar w:fldCharType="begin">',
                '<w:ffData><w:checkBox><w:default w:val="1"/></w:checkBox></w:ffData>',
                "</w:fldChar></w:r><w:r><w:instrText>FORMCHECKBOX</w:instrText></w:r>",
                '<w:r><w:fldChar w:fldCharType="end"/></w:r>',
                " yes",
            ],
            "☒ yes",
            None,
        ),
        (['<w:fldSimple w:instr="REF a">', run("5 mg"), "</w:fldSimple>"], "5 mg", None),
        (
            ["<w:sdt><w:sdtPr><w14:checkbox/></w:sdtPr><w:sdtContent>", run("☒"), "</w:sdtContent></w:sdt>", " yes"],
            "☒ yes",
            None,
        ),
    ],
)  # fmt: skip
def test_a_line_is_read_as_its_reader_sees_it(
    tmp_path: Path, runs: list[str], wanted: str, counted: str | None
) -> None:
    path = write_word(
        tmp_path / "a.docx", block("".join(each if each[:1] == "<" else run(each) for each in runs)), styles=STYLES
    )
    assert lines(path) == [wanted]
    assert left_out(path) == ([counted] if counted else [])


def test_deleted_paragraph_marks_join_and_deleted_rows_and_cells_go(tmp_path: Path) -> None:
    gone = table(["Drug", "Dose"], ["fictillin", "1 g"], ["fictomycin", "9 g"])
    at = gone.rindex("<w:tr>") + len("<w:tr>")
    mark = "<w:rPr><w:del/></w:rPr>"
    path = write_word(
        tmp_path / "a.docx",
        block("Give ", properties=mark), block("5 mg."), block("Before a table.", properties=mark),
        gone[:at] + "<w:trPr><w:del/></w:trPr>" + gone[at:],
        table(["Drug", "Dose"], ["fictarol", "<w:tcPr><w:cellDel/></w:tcPr>" + block("7 g")]),
    )  # fmt: skip
    assert lines(path) == ["Give 5 mg.", "Before a table.", "Drug: fictillin; Dose: 1 g", "fictarol"]
    assert left_out(path) == ["2 deletions"]


def test_headings_and_the_title_by_style_name_and_outline_level(tmp_path: Path) -> None:
    path = write_word(
        tmp_path / "a.docx",
        block("Sepsis", properties=styled("Titel")),
        block("Behandlung", properties=styled("berschrift1")),
        block("Dosis", properties=styled("WardRed")),
        block("Give 5 mg."),
        block("Alarm", properties='<w:outlineLvl w:val="0"/>'),
        block("Call."),
        styles=STYLES,
    )
    (document,), _ = items(path)
    assert (document.title, document.year) == ("Sepsis", None)
    assert texts([document]) == [[("Behandlung > Dosis", "Give 5 mg."), ("Alarm", "Call.")]]


def test_titles_of_templates_are_none_and_dates_of_files_are_no_years(tmp_path: Path) -> None:
    for title, wanted in (
        ("Word Document", "ward guide"),
        ("Untitled", "ward guide"),
        ("Gout in adults", "Gout in adults"),
    ):
        (document,), _ = items(write_word(tmp_path / "ward_guide.docx", block("Rest."), title=title))
        assert (document.title, document.year) == (wanted, None)


def test_content_controls_and_text_boxes_are_read_once(tmp_path: Path) -> None:
    def control(inside: str) -> str:
        return f"<w:sdt><w:sdtPr/><w:sdtContent>{inside}</w:sdtContent></w:sdt>"

    box = f"<w:txbxContent>{block('Never with alcohol.')}</w:txbxContent>"
    twice = f"<mc:AlternateContent><mc:Choice><w:drawing><wp:inline><wps:txbx>{box}</wps:txbx></wp:inline></w:drawing>"
    twice += f"</mc:Choice><mc:Fallback><w:pict><v:shape><v:textbox>{box}</v:textbox></v:shape></w:pict></mc:Fallback>"
    row = "<w:tr><w:tc>" + block("A") + "</w:tc>" + control("<w:tc>" + block("B") + "</w:tc>") + "</w:tr>"
    path = write_word(
        tmp_path / "a.docx",
        control(block("Block.")),
        block("Run ", control(run("inside")), "."),
        block("Beside.", f"<w:r>{twice}</mc:AlternateContent></w:r>"),
        f"<w:tbl>{row}{control(row)}</w:tbl>",
    )
    assert lines(path) == ["Block.", "Run inside.", "Beside.", "Never with alcohol.", "A; B", "A; B"]


def test_notes_stand_behind_their_blocks_without_marks(tmp_path: Path) -> None:
    mark = '<w:r><w:rPr><w:vertAlign w:val="superscript"/></w:rPr><w:{}noteReference w:id="2"/></w:r>'
    path = write_word(
        tmp_path / "a.docx",
        block("Give 5 mg", mark.format("foot"), " daily", mark.format("end"), "."),
        block("Then stop."),
        footnotes=f'<w:footnote w:id="2">{block("Not in children.")}</w:footnote>',
        endnotes=f'<w:endnote w:id="2">{block("Nor ", run("adults", STRUCK), "in age.")}</w:endnote>',
    )
    assert lines(path) == ["Give 5 mg daily.", "Not in children.", "Nor in age.", "Then stop."]
    assert left_out(path) == ["1 struck-out text"]


def test_tables_with_merged_cells_tables_within_and_no_header(tmp_path: Path) -> None:
    first = "<w:tcPr><w:vMerge w:val='restart'/></w:tcPr>" + block("fictillin")
    below = "<w:tcPr><w:vMerge/></w:tcPr>" + block()
    merged = table(["Drug", "Age", "Dose"], [first, "adult", "1 g"], [below, "child", "10 mg/kg"])
    merged = merged.replace("<w:tbl>", "<w:tbl><w:bookmarkStart w:id='1' w:name='t'/>")
    within = table(
        ["Drug", "Route", "Dose"], ["fictarol", "oral", table(["adult", "5 mg"], ["child", "2 mg"]) + block()]
    )
    path = write_word(
        tmp_path / "a.docx", merged, block("And:"), within, block(), table(["Route", "oral"], ["Food", "without"])
    )
    assert lines(path) == [
        "Drug: fictillin; Age: adult; Dose: 1 g",
        "Drug: fictillin; Age: child; Dose: 10 mg/kg",
        "And:",
        "Drug: fictarol; Route: oral; Dose: adult; 5 mg child; 2 mg",
        "Route; oral",
        "Food; without",
    ]


def test_equations_are_read_in_a_line_or_counted(tmp_path: Path) -> None:
    def said(text: str) -> str:
        return f"<m:r><m:t>{text}</m:t></m:r>"

    power = f"<m:sSup><m:e>{said('10')}</m:e><m:sup>{said('9')}</m:sup></m:sSup>"
    ratio = f"<m:f><m:num>{said('140−age')}</m:num><m:den>{said('72')}</m:den></m:f>"
    path = write_word(
        tmp_path / "a.docx",
        block("At ", f"<m:oMath>{power}</m:oMath>", " cells."),
        block(f"<m:oMathPara><m:oMath>{ratio}</m:oMath></m:oMathPara>"),
        block('<w:r><w:object><o:OLEObject ProgID="Equation.3"/></w:object></w:r>'),
    )
    assert lines(path) == ["At 10^9 cells.", "(140−age)/72"]
    assert left_out(path) == ["1 formula"]
