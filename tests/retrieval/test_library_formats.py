"""What libraries hold beside articles in XML: exports, tables, pages of HTML, Word files, and what nobody sees."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import docx
import pytest
from pypdf import PdfReader, PdfWriter

from tests.retrieval.support import items, read, texts, write_pdf

RECORDS = """
PMID- 31
OWN - NLM
DP  - 2018 Mar
TI  - Fictochicine in
      acute gout.
AB  - It relieved gout
      within 24 hours.
PT  - Journal Article
TA  - J Ex

PMID- 32
TI  - RETRACTED: Fictotamivir.
AB  - It worked.

PMID- 33
TI  - No abstract.
"""


def test_pubmed_text_has_a_document_per_record(tmp_path: Path) -> None:
    for name in ("pubmed-gout.txt", "gout.nbib"):
        (document,), skipped = read(tmp_path, name, RECORDS)
        assert (document.id, document.title) == ("pmid:31", "Fictochicine in acute gout.")
        assert (document.year, document.source) == (2018, "PubMed: J Ex")
        assert texts([document]) == [[("", "It relieved gout within 24 hours.")]]
        assert [each.reason for each in skipped] == ["is a retracted article, by its title", "has no abstract"]


def test_reference_managers_exports(tmp_path: Path) -> None:
    ris = (
        "TY  - JOUR\nTI  - Gout in women\nAB  - It is rarer.\nPY  - 2019/03/01\nJO  - J Ex\n"
        "DO  - https://doi.org/10.1/ABC\nER  - \n\nTY  - JOUR\nTI  - Bare\nER  - \n"
    )
    (document,), (skipped,) = read(tmp_path, "a.ris", ris)
    assert (document.id, document.title) == ("doi:10.1/abc", "Gout in women")
    assert (document.year, document.source) == (2019, "J Ex")
    assert skipped.where == "a.ris, record 2"
    bib = (
        "@article{key1, title = {{Beh{\\c{c}}et} disease}, abstract = {It has {ulcers}.}, year = 2020, "
        "journal = {J Ex}}\n@article{key2, title = {Bare}}\n"
    )
    (document,), (skipped,) = read(tmp_path, "b.bib", bib)
    assert (document.id, document.title, document.year) == ("b.bib:key1", "Behçet disease", 2020)
    assert texts([document]) == [[("", "It has ulcers.")]]
    assert skipped.reason == "has no abstract"


def test_exports_as_programs_write_them(tmp_path: Path) -> None:
    bib = "@article{a, title = {Use of 5% dextrose}, abstract = {Reduced by 50% in Q&A patients; p<0.05.}}\n"
    (document,), _ = read(tmp_path, "a.bib", bib)
    assert document.title == "Use of 5% dextrose"
    assert texts([document]) == [[("", "Reduced by 50% in Q&A patients; p<0.05.")]]
    ris = "TY - JOUR\nTI - One\nAB - First.\nAB - Second, 5 mg.\nID - 17\nTY - JOUR\nTI - Two\nAB - Third.\n"
    documents, skipped = read(tmp_path, "b.ris", ris)
    assert texts(documents) == [[("", "First. Second, 5 mg.")], [("", "Third.")]]
    assert ([document.id for document in documents], skipped) == (["", ""], []), "a program's number is no PMID"
    nbib = "PMID- 1\nTI  - T\nOAB - Uno\n      dos.\nOABL- spa\nOAB - Eins\n      zwei.\nOABL- ger\n"
    (document,), _ = read(tmp_path, "c.nbib", nbib)
    assert texts([document]) == [[("Abstract, spa", "Uno dos."), ("Abstract, ger", "Eins zwei.")]]
    excel = 'sep=;\nTitle;Abstract;;\nA;"Text, one";;\nB;[No abstract available];;\n'
    (document,), (bare,) = read(tmp_path, "d.csv", excel)
    assert (document.title, bare.reason) == ("A", "has no abstract")
    (document,), _ = read(tmp_path, "e.json", b"\xef\xbb\xbf" + b'[{"text": "x"}]')
    assert texts([document]) == [[("", "x")]]


def test_short_western_texts_keep_their_signs(tmp_path: Path) -> None:
    for said in ("Folate, 400 µg daily.", "5 ± 2 mg", "Müller, Zürich", "Señor y niño"):
        late, damaged = f"{'x' * 70_000}\n{said}", (said * 20).encode() + b"\xe4"
        for content in (said.encode("cp1252"), late.encode("cp1252"), damaged):
            (document,), _ = read(tmp_path, "a.txt", content)
            assert document.sections[0].text.removesuffix("\ufffd").endswith(said)
            assert ("\ufffd" in document.sections[0].text) == (content is damaged)


def test_tables_by_common_names_delimiters_and_encodings(tmp_path: Path) -> None:
    table = "PMID;Title;Abstract;Publication Year;Journal/Book\n5;Gout;Hurts, at night.;2019;J Ex\n"
    (document,), _ = read(tmp_path, "a.csv", table)
    assert (document.id, document.title, document.year, document.source) == ("pmid:5", "Gout", 2019, "J Ex")
    (document,), _ = read(tmp_path, "b.csv", "id,text\n1,Gefäß und Blut\n".encode("utf-16"))
    assert document.sections[0].text == "Gefäß und Blut"
    german = "".join(f"{i},Die Gefäße über dem Fuß müssen größer geöffnet werden\n" for i in range(40))
    documents, _ = read(tmp_path, "c.csv", ("id,text\n" + german).encode("cp1252"))
    assert documents[0].sections[0].text == "Die Gefäße über dem Fuß müssen größer geöffnet werden"
    assert [d.id for d in read(tmp_path, "d.csv", "id,text\r1,one\r2,two\r")[0]] == ["1", "2"]


def test_a_quote_that_is_never_closed_costs_its_own_line(tmp_path: Path) -> None:
    table = 'id,text\n1,one\n2,"two is open\n3,three\n4,"four, closed\nover lines"\n5,five\n'
    documents, (skipped,) = read(tmp_path, "a.csv", table)
    assert [d.id for d in documents] == ["1", "3", "4", "5"]
    assert texts(documents)[2] == [("", "four, closed\nover lines")]
    assert skipped.where == "a.csv, line 3"
    documents, (skipped,) = read(tmp_path, "b.csv", 'id,text\n1,"open\n' + "".join(f"{i},x\n" for i in range(2, 5000)))
    assert (len(documents), skipped.where) == (4998, "b.csv, line 2")
    (document,), _ = read(tmp_path, "c.csv", 'id,text\n1,a 5" needle\n')
    assert document.sections[0].text == 'a 5" needle'


def test_arrays_of_json(tmp_path: Path) -> None:
    rows = [{"id": "1", "text": "one", "more": [{"text": "inner"}]}, {"id": "2", "text": "two", "year": 2.019e3}]
    for content in (rows, {"about": {"x": 1}, "articles": rows}):
        documents, skipped = read(tmp_path, "a.json", json.dumps(content))
        assert ([d.id for d in documents], documents[1].year, skipped) == (["1", "2"], 2019, [])
    documents, (cut,) = read(tmp_path, "b.json", json.dumps(rows)[:-20])
    assert [d.id for d in documents] == ["1"]
    assert "cannot be read after row 1" in cut.reason
    assert "no array" in read(tmp_path, "c.json", '{"version": 3}')[1][0].reason
    # Not 20 GB of memory, and no more than the file's own rows.
    documents, (deep,) = read(tmp_path, "d.json", "[" * 100_000 + "]" * 100_000)
    assert not documents
    assert "nests more than 500 deep" in deep.reason
    nested = '[{"text": "first"}, {"text": "second", "more": ' + "[" * 600 + "]" * 600 + "}]"
    documents, (deep,) = read(tmp_path, "f.json", nested)
    assert [each.sections[0].text for each in documents] == ["first"]
    within = {"results": {"rows": [[{"text": "x", "item": {"text": "no row", "list": [{"text": "nor this"}]}}]]}}
    documents, _ = read(tmp_path, "g.json", json.dumps(within))
    assert [each.sections[0].text for each in documents] == ["x"]


def test_a_row_with_an_odd_year_is_kept(tmp_path: Path) -> None:
    years = [
        ("c2019", 2019),
        ("n.d.", None),
        (float("nan"), None),
        ("12/05/2018", 2018),
        (2018.0, 2018),
        ([2017], 2017),
    ]
    for year, wanted in years:
        (document,), skipped = read(tmp_path, "a.jsonl", json.dumps({"text": "x", "year": year, "title": float("nan")}))
        assert (document.year, document.title, skipped) == (wanted, "", [])


def test_pictures_are_left_out_of_markdown(tmp_path: Path) -> None:
    data = "data:image/png;base64," + "iVBORw0KGgo" * 1_000
    said = (
        f'# Gout\n\nSee ![the chart]({data}) and <img alt="a foot" src="{data}"> here.\n\n![][one]\n\n[one]: {data}\n'
    )
    (document,), _ = read(tmp_path, "a.md", said)
    text = " ".join(section.text for section in document.sections)
    assert text.startswith("See the chart and a foot here.")
    assert len(text) < 100


def test_word_files(tmp_path: Path) -> None:
    word = docx.Document()
    word.add_heading("Ward guide", 0)
    word.add_paragraph("Read it.")
    word.add_heading("Sepsis", 1)
    word.add_heading("Drugs", 2)
    word.add_paragraph("Within the hour.")
    table = word.add_table(2, 2)
    for at, cell in enumerate(("Drug", "Dose", "fictillin", "1 g")):
        table.cell(at // 2, at % 2).text = cell
    word.save(str(tmp_path / "guide.docx"))
    (document,), _ = items(tmp_path / "guide.docx")
    assert document.title == "Ward guide"
    assert texts([document]) == [[("", "Read it."), ("Sepsis > Drugs", "Within the hour.\nDrug: fictillin; Dose: 1 g")]]
    assert "no readable Word file" in read(tmp_path, "b.docx", b"PK no")[1][0].reason


def test_a_pdf_with_aes_and_only_an_owners_password(tmp_path: Path) -> None:
    write_pdf(tmp_path / "a.pdf", "Rest helps.")
    locked = PdfWriter(clone_from=PdfReader(tmp_path / "a.pdf"))
    locked.encrypt("", "owner", algorithm="AES-256")
    locked.write(tmp_path / "b.pdf")
    (document,), _ = items(tmp_path / "b.pdf")
    assert "Rest helps." in document.sections[0].text


def test_a_small_archive_of_a_huge_text_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("medagent.retrieval.readers.base.MAX_FILE_BYTES", 3 << 20)
    for name in ("a.txt.gz", "b.md.gz", "c.html.gz"):
        documents, (skipped,) = read(tmp_path, name, gzip.compress(b"gout " * (1 << 20)))
        assert not documents
        assert "is longer than 3 MiB as one document; cut it into several files" in skipped.reason
    documents, skipped = read(tmp_path, "d.txt.gz", gzip.compress(b"gout " * 1000))
    assert (len(documents), skipped) == (1, [])


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
    assert between(tmp_path, body) == ["Aspirin helps. Ca2+ and kg/m^2, 10^-9, H2O, 1st, SpO2, ten years, 5 days."]


def test_what_nobody_sees_is_left_out(tmp_path: Path) -> None:
    hidden = ['<p hidden>{}</p>|<p style="display: none">{}</p>|<p aria-hidden="true">{}</p>|<!-- {} -->']
    hidden += ['<div style="color:red;VISIBILITY:hidden"><p>{}</p></div>|<template><p>{}</p></template>']
    hidden += ["<noscript><p>{}</p></noscript>|<script>{}</script>"]
    for element in "|".join(hidden).split("|"):
        assert between(tmp_path, element.format("Buy these tablets at once, whatever the doctor says.")) == []


def test_a_page_that_is_shown_by_a_script_is_read(tmp_path: Path) -> None:
    page = '<html><head><title>Gout</title></head><body style="visibility:hidden">'
    page += f"<p>{FIRST}</p><p>{LAST}</p></body></html>"
    assert texts(read(tmp_path, "a.html", page)[0]) == [[("", f"{FIRST}\n{LAST}")]]


def test_a_page_declares_its_encoding_and_a_wrong_declaration_does_no_harm(tmp_path: Path) -> None:
    words = "Przewlekła choroba nerek jest częsta u osób starszych i wymaga kontroli ciśnienia krwi w gabinecie."
    encodings = {"iso-8859-2": "iso-8859-2", "windows-1250": "cp1250", "iso-8859-1": "utf-8", "x-unknown": "utf-8"}
    for declared, encoding in encodings.items():
        meta = f'<META content="text/html; charset={declared}" http-equiv=Content-Type>'
        page = f"<html><head>{meta}<title>Ból</title></head><body><p>{words}</p></body></html>"
        (document,), _ = read(tmp_path, "a.html", page.encode(encoding))
        assert (document.title, document.sections[0].text) == ("Ból", words)
    for declared in ("iso-8859-1", "x-unknown", "rot13", "utf-8", "us-ascii"):
        page = f'<meta charset="{declared}"><title>Gout</title><p>{FIRST} A dose of 5 µg is small.</p>'
        (document,), _ = read(tmp_path, "a.html", page.encode("cp1252"))
        assert document.sections[0].text.endswith("5 µg is small.")
