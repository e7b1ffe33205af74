"""Markup as its reader sees it: HTML, Markdown, Word and EPUB files, and tags in the fields of rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from medagent.retrieval.readers import LeftOut, read_documents
from medagent.retrieval.readers.html_text import plain_text
from tests.retrieval.support import read, texts


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
