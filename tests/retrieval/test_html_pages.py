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


def test_marks_are_left_out_and_exponents_are_told_apart(tmp_path: Path) -> None:
    body = (
        "<p>Aspirin<sup>1</sup> helps.<sup>2,3</sup> Ca<sup>2+</sup> and kg/m<sup>2</sup>, 10<sup>-9</sup>, "
        "H<sub>2</sub>O, 1<sup>st</sup>, SpO<sup>2</sup>, "
        'ten<sup><a href="#a">[a]</a></sup> years, 5<sup><a href="#n">4</a></sup> days.</p>'
    )
    assert between(tmp_path, body) == ["Aspirin helps. Ca2+ and kg/m2, 10^-9, H2O, 1st, SpO2, ten years, 5 days."]


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
