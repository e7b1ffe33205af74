"""Pages of HTML: tables, lists, headings, captions, marks, what is hidden, and encodings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.retrieval.support import read, texts

FIRST = "This guideline tells how adults with acute gout are treated in general practice and in hospital."
LAST = "Urate is measured again after four weeks, and the dose is adapted to what was found then."


def sections(tmp_path: Path, body: str) -> list[tuple[str, str]]:
    """What is read of a page with these elements between two paragraphs."""
    page = f"<html><head><title>Gout</title></head><body><article><h1>Gout</h1><p>{FIRST}</p>{body}<p>{LAST}</p>"
    documents, skipped = read(tmp_path, "a.html", f"{page}</article></body></html>")
    assert not skipped
    (found,) = texts(documents)
    assert found[0][1].startswith(FIRST)
    assert found[-1][1].endswith(LAST)
    return found


def between(tmp_path: Path, body: str) -> list[str]:
    """The lines that are read of these elements."""
    ((_, text),) = sections(tmp_path, body)
    return text.split("\n")[1:-1]


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ("<tr><th>Drug<th>Dose<tr><td>A<td>1 mg", ["Drug: A; Dose: 1 mg"]),
        ("<caption>Doses</caption><tr><th>Drug<th>Dose<tr><td>A<td>1 mg", ["Doses", "Drug: A; Dose: 1 mg"]),
        ("<tr><td>Sodium<td>normal<tr><td>Potassium<td>low", ["Sodium; normal", "Potassium; low"]),
        (
            "<tr><td>Test<td>Value<tr><td>Sodium<td>140<tr><td>Iron<td>20",
            ["Test: Sodium; Value: 140", "Test: Iron; Value: 20"],
        ),
        ("<tr><td><b>Test</b><td><strong>Result</strong><tr><td>Iron<td>low", ["Test: Iron; Result: low"]),
        ("<tr><td><th>Men<th>Women<tr><th>Iron<td>20<td>18", ["Iron; Men: 20; Women: 18"]),
        (
            "<tr><th rowspan=2>Drug<th colspan=2>Hours<tr><th>From<th>To<tr><td rowspan=2>A<td>1<td>2<tr><td>3<td>4",
            ["Drug: A; Hours From: 1; Hours To: 2", "Drug: A; Hours From: 3; Hours To: 4"],
        ),
        (
            "<tr><th>Drug<th>Dose<tr><th colspan=2>Adults<tr><td>A<td>1 mg<tr><td colspan=2>A note.",
            ["Adults", "Drug: A; Dose: 1 mg", "A note."],
        ),
        (
            "<tfoot><tr><td colspan=2>A note.</tfoot><thead><tr><td>Drug<td>Dose</thead>"
            "<tr><td>A<br>B<td><p>1</p><p>2</p>",
            ["Drug: A B; Dose: 1 2", "A note."],
        ),
        ("<tr><th colspan=999999999>Drug<tr><td rowspan=999999999>A<td>B<tr><td>C", ["Drug", "A; B", "A; C"]),
        ("<tr><th colspan=0>Drug<th rowspan=-1>Dose<tr><td colspan=x>A<td>B", ["Drug: A; Dose: B"]),
    ],
)
def test_rows_of_tables(rows: str, wanted: list[str], tmp_path: Path) -> None:
    assert between(tmp_path, f"<table>{rows}</table>") == wanted


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("<ul><li>One<ul><li>Two</li><li>Three</li></ul></li><li>Four</li></ul>", ["One", "Two", "Three", "Four"]),
        ("<ol><li><p>One.</p><p>More.</p></li><li>Two</li></ol>", ["One.", "More.", "Two"]),
        ("<ul><li>One<table><tr><th>A<th>B<tr><td>1<td>2</table></li><li>Two</li></ul>", ["One", "A: 1; B: 2", "Two"]),
        (
            "<dl><dt>Gout<dt>Podagra<dd>Pain.<dd>At night.<dt>Tophus<dd>A lump.</dl>",
            ["Gout, Podagra: Pain. At night.", "Tophus: A lump."],
        ),
        ("<dl><div><dt>Gout<dd><p>Pain.</p></div></dl>", ["Gout: Pain."]),
        ("<p>A line<br>goes on.<br><br>A second part.</p>", ["A line goes on.", "A second part."]),
        (
            "<figure><img src=a.png><figcaption>A joint with a <b>tophus</b>.</figcaption></figure>",
            ["A joint with a tophus."],
        ),
        (
            "<figure><table><tr><th>A<th>B<tr><td>1<td>2</table><figcaption>Doses in all adults.</figcaption></figure>",
            ["A: 1; B: 2", "Doses in all adults."],
        ),
        (
            "<p>E\ufb03cient in\ufb02ammation and \ufb01brosis of the joint.</p>",
            ["Efficient inflammation and fibrosis of the joint."],
        ),
    ],
)
def test_lists_captions_and_letters(body: str, wanted: list[str], tmp_path: Path) -> None:
    assert between(tmp_path, body) == wanted


def test_marks_are_left_out_and_exponents_are_told_apart(tmp_path: Path) -> None:
    body = (
        "<p>Aspirin<sup>1</sup> helps.<sup>2,3</sup> Ca<sup>2+</sup> and kg/m<sup>2</sup>, 10<sup>-9</sup>, "
        "H<sub>2</sub>O, 1<sup>st</sup>, SpO<sup>2</sup>, "
        'ten<sup><a href="#a">[a]</a></sup> years, 5<sup><a href="#n">4</a></sup> days.</p>'
    )
    assert between(tmp_path, body) == ["Aspirin helps. Ca2+ and kg/m2, 10^-9, H2O, 1st, SpO2, ten years, 5 days."]


def test_headings_stand_under_those_above_them(tmp_path: Path) -> None:
    body = "".join(
        f"<{tag}>{tag} {at}</{tag}><p>Text number {at} of the page.</p>"
        for at, tag in enumerate(("h2", "h4", "h3", "h2"))
    )
    assert [heading for heading, _ in sections(tmp_path, body)] == ["", "h2 0", "h2 0 > h4 1", "h2 0 > h3 2", "h2 3"]


@pytest.mark.parametrize(
    "hidden",
    [
        "<p hidden>{}</p>",
        '<p style="display: none">{}</p>',
        '<div style="color:red;VISIBILITY:hidden"><p>{}</p></div>',
        '<p aria-hidden="true">{}</p>',
        "<template><p>{}</p></template>",
        "<noscript><p>{}</p></noscript>",
        "<!-- {} -->",
        "<script>{}</script>",
    ],
)
def test_what_nobody_sees_is_left_out(hidden: str, tmp_path: Path) -> None:
    assert between(tmp_path, hidden.format("Buy these tablets at once, whatever the doctor says.")) == []


def test_a_page_that_is_shown_by_a_script_is_read(tmp_path: Path) -> None:
    page = '<html><head><title>Gout</title></head><body style="visibility:hidden">'
    page += f"<p>{FIRST}</p><p>{LAST}</p></body></html>"
    assert texts(read(tmp_path, "a.html", page)[0]) == [[("", f"{FIRST}\n{LAST}")]]


@pytest.mark.parametrize(
    ("declared", "encoding"),
    [
        ("iso-8859-2", "iso-8859-2"),
        ("windows-1250", "cp1250"),
        ("iso-8859-1", "utf-8"),
        ("utf-8", "utf-8"),
        ("x-unknown", "utf-8"),
    ],
)
def test_a_page_declares_its_encoding(declared: str, encoding: str, tmp_path: Path) -> None:
    words = "Przewlekła choroba nerek jest częsta u osób starszych i wymaga kontroli ciśnienia krwi w gabinecie."
    meta = f'<META content="text/html; charset={declared}" http-equiv=Content-Type>'
    page = f"<html><head>{meta}<title>Ból</title></head><body><p>{words}</p></body></html>"
    (document,), _ = read(tmp_path, "a.html", page.encode(encoding))
    assert (document.title, document.sections[0].text) == ("Ból", words)


def test_a_wrong_declaration_does_no_harm(tmp_path: Path) -> None:
    for declared in ("iso-8859-1", "x-unknown", "rot13", "utf-8", "us-ascii"):
        page = f'<meta charset="{declared}"><title>Gout</title><p>{FIRST} A dose of 5 µg is small.</p>'
        (document,), _ = read(tmp_path, "a.html", page.encode("cp1252"))
        assert document.sections[0].text.endswith("5 µg is small.")
