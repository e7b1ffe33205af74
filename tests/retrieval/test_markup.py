"""Markup as its reader sees it: HTML, Markdown, Word and EPUB files, and tags in the fields of rows."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from medagent.retrieval.readers import LeftOut, read_documents
from medagent.retrieval.readers.html_text import plain_text
from tests.retrieval.support import items, read, texts


def left_out(path: Path) -> list[str]:
    return [item.what for item in read_documents(path) if isinstance(item, LeftOut)]


@pytest.mark.parametrize(
    ("fragment", "wanted"),
    [
        (
            "<h4>Background</h4>Demovaxin &lt;halves&gt; at 10<sup>9</sup>/L.",
            "Background\nDemovaxin <halves> at 10^9/L.",
        ),
        ("p < 0.05 and q > 3, a<b and c>d, <5 mg & R&D &notanentity;", None),
        ("One.\n\n  Two <5 mg", None),
        ("One.\nTwo at 10<sup>-9</sup>, <5 mg.", "One.\nTwo at 10^-9, <5 mg."),
        ("10&lt;sup&gt;9&lt;/sup&gt;/L, &amp;lt; 5 &#181;g, &ge; 3", "10^9/L, < 5 µg, ≥ 3"),
        ("<jats:title>Aims</jats:title><jats:p>At 10<jats:sup>6</jats:sup>.</jats:p>", "Aims\nAt 10^6."),
        ("<del>50 mg</del> <ins>5 mg</ins>, <b style='text-decoration: line-through'>9</b> 3.", "5 mg, 3."),
        ("<p>a</p><ul><li>b<li>c</ul>d<br/>e", "a\nb\nc\nd e"),
    ],
)
def test_tags_and_entities_in_fields_are_resolved_and_signs_are_kept(fragment: str, wanted: str | None) -> None:
    assert plain_text(fragment) == (fragment if wanted is None else wanted)


def test_rows_of_json_and_csv_are_read_without_tags(tmp_path: Path) -> None:
    row = {"title": "H<sub>2</sub>O &amp; salt", "section": "<b>Dose</b>", "abstract": "<p>Up to 5 &micro;g.</p>"}
    files = {"a.jsonl": json.dumps(row), "a.csv": "\n".join(",".join(each) for each in (row, row.values()))}
    for name, content in files.items():
        (document,), _ = read(tmp_path, name, content)
        assert document.title == "H2O & salt"
        assert texts([document]) == [[("Dose", "Up to 5 µg.")]]


def test_struck_out_and_hidden_text_of_pages_is_left_out_and_counted(tmp_path: Path) -> None:
    page = (
        "<html><head><title>Demohtm</title></head><body><nav><p hidden>Menu</p></nav><main><h1>Demohtm</h1>"
        "<p>The old dose of demohtm was <del>50 mg</del> <ins>5 mg</ins> each day in all adults of the ward.</p>"
        "<p>Never above <s>100 mg</s> <span style='text-decoration:underline line-through'>40 mg</span> 10 mg.</p>"
        "<p style='display:none'>Use 90 mg.</p><script>var dose = 4;</script></main></body></html>"
    )
    (document,), _ = read(tmp_path, "a.html", page)
    said = "The old dose of demohtm was 5 mg each day in all adults of the ward.\nNever above 10 mg."
    assert texts([document]) == [[("", said)]]
    assert left_out(tmp_path / "a.html") == ["3 struck-out texts, 1 hidden text"]


def test_what_style_sheets_strike_out_or_hide_is_left_out_and_warnings_stay(tmp_path: Path) -> None:
    page = (
        "<html><head><title>T</title><style>span.old, #x { color: red; text-decoration: line-through }"
        "@media print { p { display: none } } .draft{display:none}"
        "h1{display:none} h1{display:block} td.off, tr.old > td, .x p::before{text-decoration:line-through}"
        "</style></head><body><main><h1>T</h1>"
        "<p>Adults are given <span class='a old'>50 mg</span> 5 mg once a day, and never <b id='x'>9 mg</b> 7 mg.</p>"
        "<aside class='warning'><p>Never give it with alcohol, because breathing stops.</p></aside>"
        "<table><tr><th>Age</th><th>Old</th><th>New</th></tr>"
        "<tr><td>all</td><td class='off'>9</td><td>7</td></tr>"
        "<tr class='old'><td>over 80</td><td>5</td><td>4</td></tr></table>"
        "<p class='draft'>Perhaps 6 mg.</p><p>At <math><msup><mn>10</mn><mn>9</mn></msup></math>/L it is stopped.</p>"
    )
    (document,), _ = read(tmp_path, "a.html", page)
    wanted = "Adults are given 5 mg once a day, and never 7 mg.\nNever give it with alcohol, because breathing stops.\n"
    wanted += "Age: all; New: 7\n"
    assert texts([document]) == [[("", f"{wanted}At 10^9/L it is stopped.")]]
    assert left_out(tmp_path / "a.html") == ["6 struck-out texts, 1 hidden text"]


@pytest.mark.parametrize(
    ("head", "said", "year"),
    [
        ('<meta name="citation_publication_date" content="2019/03/01">', "", 2019),
        ('<meta property="article:published_time" content="2020-01-02T10:00">', "", 2020),
        ('<meta name="DC.Date.Issued" content="2018">', "", 2018),
        ('<script type="application/ld+json">{"dateModified": "2024", "datePublished": "2017-05"}</script>', "", 2017),
        ("", "Published: 14 March 2016", 2016),
        ('<meta name="last-modified" content="2026-01-09"><meta name="date" content="2025-01-01">', "", None),
        ('<meta property="article:modified_time" content="2025-02-02">', "Published trials since 2011 agree.", None),
    ],
)  # fmt: skip
def test_only_a_stated_publication_dates_a_page(tmp_path: Path, head: str, said: str, year: int | None) -> None:
    body = f"<p>{said}</p><p>Adults are given 5 mg once a day in the evening, and children are not treated.</p>"
    page = f"<html><head><title>T</title>{head}</head><body><main><h1>T</h1>{body}</main><footer>&copy; 2026</footer>"
    assert read(tmp_path, "a.html", page)[0][0].year == year


def test_markdown_as_its_reader_sees_it(tmp_path: Path) -> None:
    text = """---
title: Lithium levels
date: 2021-11-30
---
Aim for ~~9~~ 0.6&nbsp;mmol/L,[^a] <del>daily</del> <!-- 7? --> weekly at 10^9^/L or 10<sup>-6</sup>.

Dose
----

| Drug | Dose |
|------|------|
| ~~fictopril~~ fictarol | 5 mg \\| 6 mg |

> Stop\nat 2.

[^a]: Not in children.
[b]: https://example.org "9 mg"
"""
    (document,), _ = read(tmp_path, "a.md", text)
    assert (document.title, document.year, document.about.date) == ("Lithium levels", 2021, "2021-11-30")
    said = "Drug: fictarol; Dose: 5 mg | 6 mg\nStop at 2.\nNot in children."
    assert texts([document]) == [[("", "Aim for 0.6 mmol/L, weekly at 10^9/L or 10^-6."), ("Dose", said)]]
    assert left_out(tmp_path / "a.md") == ["3 struck-out texts"]


def book(path: Path, *, locked: str = "") -> Path:
    chapter = (
        "<?xml version='1.0' encoding='utf-8'?><!DOCTYPE html><html xmlns='http://www.w3.org/1999/xhtml'><head><title/>"
    )
    chapter += (
        "</head><body><h1>{}</h1><p>Give <span class='old'>50</span> 5&nbsp;mg at 10<sup>9</sup>/L.</p></body></html>"
    )
    items = {"nav": "n.xhtml", "b": "b%20b.xhtml", "a": "a.xhtml", "gone": "gone.xhtml"}
    manifest = "".join(f"<item id='{id}' href='{at}' properties='{id}'/>" for id, at in items.items())
    spine = "".join(f"<itemref idref='{id}'/>" for id in ("nav", "a", "b"))
    dates = "".join(
        f"<d:date o:event='{event}'>{year}</d:date>" for event, year in (("creation", 2009), ("publication", 2018))
    )
    package = (
        "<package xmlns='http://www.idpf.org/2007/opf' xmlns:o='http://www.idpf.org/2007/opf' "
        "xmlns:d='http://purl.org/dc/elements/1.1/'><metadata><d:title>Manual</d:title><d:creator>A. Muster</d:creator>"
        f"{dates}<d:language>en</d:language></metadata><manifest>{manifest}</manifest><spine>{spine}</spine></package>"
    )
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("META-INF/container.xml", "<c><rootfile full-path='O/c.opf'/></c>")
        file.writestr("O/c.opf", package)
        file.writestr("O/s.css", ".old { text-decoration: line-through }")
        for name in ("n", "a", "b b", "gone"):
            file.writestr(f"O/{name}.xhtml", chapter.format(name))
        if locked:
            file.writestr("META-INF/encryption.xml", f"<e><CipherReference URI='{locked}'/></e>")
    return path


def test_books_are_read_in_their_order_by_headings(tmp_path: Path) -> None:
    (document,), skipped = items(book(tmp_path / "a.epub", locked="O/font.otf"))
    assert (document.title, document.year, skipped) == ("Manual", 2018, [])
    assert (document.about.authors, document.about.language) == (("A. Muster",), "en")
    assert texts([document]) == [[("a", "Give 5 mg at 10^9/L."), ("b b", "Give 5 mg at 10^9/L.")]]
    assert left_out(tmp_path / "a.epub") == ["2 struck-out texts"]


def test_encrypted_books_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    assert "is encrypted (DRM)" in items(book(tmp_path / "a.epub", locked="O/b%20b.xhtml"))[1][0].reason
    assert "is no readable EPUB" in read(tmp_path, "b.epub", b"PK no")[1][0].reason


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("Take <sup>1</sup>/<sub>2</sub> tablet", "Take 1/2 tablet"),
        ("1<sup>1</sup>/<sub>2</sub> or 2<sup>3/4</sup> tablets", "1 1/2 or 2 3/4 tablets"),
        ("10<sup>9</sup>/L, 4 x 10<sup>9</sup>L, 5/mm<sup>3</sup>/h", "10^9/L, 4 x 10^9L, 5/mm^3/h"),
        ("5 mg<sup>1</sup>, 5 mL<sup>a</sup>, 10 U<sup>2,3</sup>", "5 mg, 5 mL, 10 U"),
        ("37<sup>0</sup>C, HCO<sub>3</sub><sup>-</sup>, m/s<sup>2</sup>", "37°C, HCO3-, m/s2"),
        ("<s><p>Never above 91 mg.</p></s><p>Never above 9 mg.</p>", "Never above 9 mg."),
    ],
)
def test_raised_text_keeps_every_number_of_a_dose(written: str, wanted: str) -> None:
    assert plain_text(written) == wanted


@pytest.mark.parametrize(
    ("group", "seen"),
    [
        ("@media screen", False),
        ("@supports (display: grid)", False),
        ("@layer base", False),
        ("@supports (display: grid) { @media all", False),
        ("@media print", True),
        ("@media (max-width: 600px)", True),
        ("@media screen and (max-width: 600px)", True),
    ],
)
def test_rules_for_a_screen_strike_out_and_those_for_paper_do_not(tmp_path: Path, group: str, seen: bool) -> None:
    css = f"{group} {{ .old {{ text-decoration: line-through }} }}" + " }" * (group.count("{"))
    page = (
        f"<html><head><title>T</title><style>{css}</style></head><body><main><h1>T</h1><p>Adults of the ward are given "
        "<span class='old'>50 mg</span> 5 mg of it once a day, at night.</p></main></body></html>"
    )
    (document,), _ = read(tmp_path, "a.html", page)
    assert ("50 mg" in document.sections[0].text) == seen
