"""Text of articles in XML: marks, formulas, struck-out words, notes and tables, as their reader sees them."""

from __future__ import annotations

from pathlib import Path

import pytest

from medagent.retrieval.analysis import Analyser
from medagent.retrieval.readers import LeftOut, read_documents
from tests.retrieval.support import read, texts

BIBR = '<xref ref-type="bibr">{}</xref>'
ONE, TWO = BIBR.format(1), BIBR.format(2)


def article(body: str, *, title: str = "T") -> str:
    head = (
        f"<front><article-meta><title-group><article-title>{title}</article-title></title-group></article-meta></front>"
    )
    return f'<article xmlns:mml="http://www.w3.org/1998/Math/MathML">{head}<body>{body}</body></article>'


def lines(tmp_path: Path, paragraph: str) -> str:
    (document,), _ = read(tmp_path, "a.nxml", article(f"<p>{paragraph}</p>"))
    return document.sections[0].text


@pytest.mark.parametrize(
    "marks",
    [
        f"<sup>{ONE},{TWO}</sup>",
        f"<sup>{ONE}-{TWO}</sup>",
        f"<sup>{ONE},</sup>",
        f"<sup>({ONE}; {TWO})</sup>",
        f"<sup>{ONE}</sup>,<sup>{TWO}</sup>",
        f"<sup>{ONE}</sup><sup>,</sup><sup>{TWO}</sup>",
        f"{ONE},{TWO}",
        f"{ONE}\u2013{TWO}",
        f" {ONE}, {TWO}",
        f" [{ONE},{TWO}]",
        f" [{ONE}\u2013{TWO}]",
        f" ({ONE}; {TWO})",
        BIBR.format("[1,2]"),
        BIBR.format("<sup>1</sup>") + "," + BIBR.format("<sup>2</sup>"),
    ],
)
def test_marks_of_references_leave_nothing_behind(tmp_path: Path, marks: str) -> None:
    said = f"bleeding doubled{marks} (95% CI 1.2-3.4)"
    assert lines(tmp_path, said) == "bleeding doubled (95% CI 1.2-3.4)"
    table = f"<table-wrap><table><tr><td>{said}</td><td>5 mg{marks}</td></tr></table></table-wrap>"
    documents, _ = read(tmp_path, "b.nxml", article(f"<sec><title>Harm{marks}</title>{table}</sec>", title=said))
    assert documents[0].title == "bleeding doubled (95% CI 1.2-3.4)"
    assert texts(documents) == [[("Harm > Table", "bleeding doubled (95% CI 1.2-3.4); 5 mg")]]


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("It fell (<inline-graphic/>).", "It fell."),
        (f"It fell{ONE}, and rose", "It fell, and rose"),
        (f"It fell (see Table 2; {ONE}).", "It fell (see Table 2)."),
        (f"It fell ({ONE}; 95% CI 1-2).", "It fell (95% CI 1-2)."),
        (f"from 5{ONE} - 10 mg{TWO}", "from 5 - 10 mg"),
        ("Na<sup>+</sup> at 10<sup>9</sup>/L, T<sup>2</sup>", "Na+ at 10^9/L, T2"),
        ("5 mg/m<sup>2</sup>, 2 cm<sup>3</sup>, CD4<sup>+</sup>", "5 mg/m^2, 2 cm^3, CD4+"),
        ("at 10<sup><italic>9</italic></sup>/L", "at 10^9/L"),
        ("Take <sup>1</sup>/<sub>2</sub> or 1<sup>1</sup>/2, 37<sup>0</sup>C", "Take 1/2 or 1 1/2, 37°C"),
        ("below 5<sup>a</sup>, no death<sup>1,2</sup>, <sup>131</sup>I", "below 5, no death, 131I"),
        ("never above <strike>100 mg</strike> 10 mg", "never above 10 mg"),
        ('give <styled-content style="text-decoration: line-through">9</styled-content>5 mg', "give 5 mg"),
    ],
)
def test_what_stands_beside_marks_stays(tmp_path: Path, written: str, wanted: str) -> None:
    assert lines(tmp_path, written) == wanted


@pytest.mark.parametrize(
    ("math", "wanted"),
    [
        ("<mml:mi>x</mml:mi><mml:mo>≥</mml:mo><mml:mn>5</mml:mn><mml:mtext> mg</mml:mtext>", "x≥5 mg"),
        (
            "<mml:msup>\n<mml:mn>10</mml:mn>\n<mml:mrow><mml:mo>-</mml:mo><mml:mn>9</mml:mn></mml:mrow></mml:msup>",
            "10^-9",
        ),
        (
            "<mml:mfrac><mml:mrow><mml:mi>a</mml:mi><mml:mo>+</mml:mo><mml:mi>b</mml:mi></mml:mrow><mml:mn>2</mml:mn>"
            "</mml:mfrac>",
            "(a+b)/2",
        ),
        ("<mml:semantics><mml:mn>5</mml:mn><mml:annotation>five</mml:annotation></mml:semantics>", "5"),
    ],
)
def test_formulas_in_a_line_are_text(tmp_path: Path, math: str, wanted: str) -> None:
    tex = "<tex-math>\\documentclass{x}</tex-math>"
    inline = f"<inline-formula><alternatives>{tex}<mml:math>{math}</mml:math></alternatives></inline-formula>"
    assert lines(tmp_path, f"Stop at {inline} now.") == f"Stop at {wanted} now."


def test_what_is_left_out_of_an_article_is_counted(tmp_path: Path) -> None:
    tex = "<inline-formula><tex-math>$x$</tex-math></inline-formula>"
    body = (
        f"<p>Give <strike>50 mg</strike> 5 mg.<strike/></p><disp-formula><mml:math/>a+b</disp-formula><p>So {tex}.</p>"
    )
    (tmp_path / "a.nxml").write_text(article(body))
    document, left_out = read_documents(tmp_path / "a.nxml")
    assert texts([document]) == [[("", "Give 5 mg.\nSo .")]]  # type: ignore[list-item]
    assert left_out == LeftOut("a.nxml", "2 formulas, 1 struck-out text")


def test_notes_of_sections_tables_and_lines_are_indexed(tmp_path: Path) -> None:
    table = (
        "<table-wrap><label>Table 1</label><table><thead><tr><th>Drug</th><th>Dose</th></tr></thead><tbody><tr>"
        '<td>fictolol</td><td>5 mg<xref ref-type="table-fn">a</xref></td></tr></tbody></table><table-wrap-foot>'
        "<fn><label>a</label><p>Not in pregnancy.</p></fn><p>Source: trial.</p></table-wrap-foot></table-wrap>"
    )
    notes = "<fn-group><title>Notes</title><fn><p>Halve it in renal failure.</p></fn></fn-group>"
    kinds = '<fn fn-type="conflict"><p>None.</p></fn><fn><label>1</label><p>Not in men.</p></fn>'
    body = f"<sec><title>Dose</title><p>Give 5 mg<fn><p>10 mg at most.</p></fn> daily.</p>{notes}{table}</sec>"
    content = article(body).replace("</body>", f"</body><back><fn-group>{kinds}</fn-group></back>")
    documents, _ = read(tmp_path, "a.nxml", content)
    assert texts(documents) == [
        [
            ("Dose", "Give 5 mg daily.\n10 mg at most.\nNotes\nHalve it in renal failure."),
            ("Dose > Table 1", "Drug: fictolol; Dose: 5 mg\nSource: trial.\na Not in pregnancy."),
            ("Notes", "1 Not in men."),
        ]
    ]


def test_lists_definitions_boxes_and_statements_stay(tmp_path: Path) -> None:
    body = (
        "<list><list-item><label>1.</label><p>First.</p></list-item></list><def-list><def-item><term>ALT</term><def><p>"
        "a liver enzyme</p></def></def-item></def-list><boxed-text><sec><title>Key points</title><p>Stop at 9.</p>"
        "</sec></boxed-text><statement><label>Rule 2</label><p>Halve it.</p></statement>"
    )
    documents, _ = read(tmp_path, "a.nxml", article(body))
    wanted = "1. First.\nALT: a liver enzyme\nKey points\nStop at 9.\nRule 2 Halve it."
    assert texts(documents) == [[("", wanted)]]


def test_spans_of_cells_are_written_out(tmp_path: Path) -> None:
    table = (
        '<table-wrap><table><thead><tr><th rowspan="2">Drug</th><th colspan="2">Dose</th></tr><tr><th>adults</th>'
        '<th>children</th></tr></thead><tfoot><tr><td colspan="3">Take with food.</td></tr></tfoot><tbody><tr>'
        '<td colspan="3">Renal failure</td></tr><tr><td rowspan="2">fictolol</td><td colspan="2">5 mg</td></tr><tr>'
        "<td>9 mg</td><td>4 mg</td></tr></tbody></table></table-wrap>"
    )
    for place in (f"<body>{table}</body>", f"<body/><floats-group>{table}</floats-group>"):
        documents, _ = read(tmp_path, "a.nxml", article("").replace("<body></body>", place))
        assert documents[0].sections[0].text.split("\n") == [
            "Renal failure",
            "Drug: fictolol; Dose adults: 5 mg; Dose children: 5 mg",
            "Drug: fictolol; Dose adults: 9 mg; Dose children: 4 mg",
            "Take with food.",
        ]


def test_areas_are_found_however_they_are_written() -> None:
    analyser = Analyser()
    assert analyser.tokens("75 mg/m^2") == analyser.tokens("75 mg/m2")
    assert "1012" not in analyser.tokens("10^12/L")
