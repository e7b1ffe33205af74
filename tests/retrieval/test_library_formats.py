"""What libraries hold: other marks of retraction, other abstracts, exports, tables, pages, and what nobody sees."""

from __future__ import annotations

import json
from pathlib import Path

import docx
import pytest
from pypdf import PdfReader, PdfWriter

from retrieval.chunking import Document
from retrieval.readers import OpenFile, Skipped, read_file
from retrieval.readers.retractions import is_notice, is_retracted
from tests.retrieval.support import write_pdf


def items(path: Path) -> tuple[list[Document], list[Skipped]]:
    file = OpenFile(path, path.name)
    found = list(read_file(file))
    file.close()
    return [item for item in found if isinstance(item, Document)], [item for item in found if isinstance(item, Skipped)]


def read(tmp_path: Path, name: str, content: str | bytes) -> tuple[list[Document], list[Skipped]]:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return items(path)


def texts(documents: list[Document]) -> list[list[tuple[str, str]]]:
    return [[(section.heading, section.text) for section in document.sections] for document in documents]


def medline(title: str, inside: str = "", *, abstract: str = "Text.", after: str = "") -> str:
    body = f"<Abstract><AbstractText>{abstract}</AbstractText></Abstract>" if abstract else ""
    return (
        "<PubmedArticleSet><PubmedArticle><MedlineCitation><PMID>7</PMID><Article><ArticleTitle>"
        f"{title}</ArticleTitle>{body}{inside}</Article>{after}</MedlineCitation></PubmedArticle></PubmedArticleSet>"
    )


def jats(title: str, inside: str, *, meta: str = "") -> str:
    return (
        f"<article><front><article-meta><title-group><article-title>{title}</article-title></title-group>{meta}"
        f"</article-meta></front>{inside}</article>"
    )


@pytest.mark.parametrize(
    "title",
    [
        "RETRACTED: Vitamin Q prevents stroke.",
        "Retracted: Vitamin Q prevents stroke",
        "RETRACTED ARTICLE: Vitamin Q",
        "WITHDRAWN: Pills for dementia.",
        "[Retracted] Vitamin Q",
        "Vitamin Q prevents stroke (Retracted article. See vol. 3, pg. 5, 2020)",
        "Vitamin Q [retracted]",
        "RETRACTED Vitamin Q prevents stroke",
    ],
)
def test_titles_of_retracted_articles(tmp_path: Path, title: str) -> None:
    assert is_retracted(title)
    for name, content in (("a.xml", medline(title)), ("b.nxml", jats(title, "<body><p>x</p></body>"))):
        documents, (skipped,) = read(tmp_path, name, content)
        assert not documents
        assert "retracted" in skipped.reason


@pytest.mark.parametrize(
    "title",
    [
        "Retraction: Fictase is a target",
        "Retraction notice to: Fictase",
        "Notice of retraction: fictase",
        "Statement of Retraction",
        "Retraction to: Fictase is a target",
        "Retraction for 'Fictase'",
        "Withdrawal notice: Fictase",
        "Editorial Retraction: Fictase",
        "Retraction note: Fictase",
        "Retraction of: Fictase is a target",
    ],
)
def test_titles_of_notices(tmp_path: Path, title: str) -> None:
    assert is_notice(title)
    documents, (skipped,) = read(tmp_path, "a.nxml", jats(title, "<body><p>x</p></body>"))
    assert not documents
    assert "notice" in skipped.reason


@pytest.mark.parametrize(
    "title",
    [
        "Retraction of the tongue in infants",
        "Retraction pockets of the eardrum",
        "Withdrawn patients in trials",
        "Withdrawal of opioids in adults",
        "Alcohol withdrawal: a review",
        "Withdrawal from benzodiazepines",
        "Eyelid retraction: causes and treatment",
        "Why articles are retracted",
        "Chest wall retraction",
    ],
)
def test_titles_of_sound_articles(tmp_path: Path, title: str) -> None:
    assert not is_retracted(title)
    assert not is_notice(title)
    assert len(read(tmp_path, "a.xml", medline(title))[0]) == 1


@pytest.mark.parametrize("link", ["RetractionIn", "RetractionOf"])
def test_links_to_notices_and_from_them(tmp_path: Path, link: str) -> None:
    links = f'<CommentsCorrectionsList><CommentsCorrections RefType="{link}"/></CommentsCorrectionsList>'
    documents, (skipped,) = read(tmp_path, "a.xml", medline("A trial.", after=links))
    assert not documents
    assert "retract" in skipped.reason
    other = links.replace(link, "ErratumIn")
    assert len(read(tmp_path, "a.xml", medline("A trial.", after=other))[0]) == 1


def test_abstracts_in_other_languages(tmp_path: Path) -> None:
    other = '<OtherAbstract Type="Publisher" Language="spa"><AbstractText>La gota.</AbstractText></OtherAbstract>'
    plain = (
        '<OtherAbstract Type="plain-language-summary" Language="eng"><AbstractText>Easy.</AbstractText></OtherAbstract>'
    )
    documents, skipped = read(tmp_path, "a.xml", medline("Gota.", abstract="", after=other))
    assert (texts(documents), skipped) == ([[("Abstract, spa", "La gota.")]], [])
    documents, _ = read(tmp_path, "b.xml", medline("Gota.", after=other + plain))
    assert texts(documents) == [
        [("", "Text."), ("Abstract, spa", "La gota."), ("Abstract, plain language summary, eng", "Easy.")]
    ]
    meta = (
        '<abstract xml:lang="es"><p>Resumen.</p></abstract>'
        '<trans-abstract xml:lang="en"><p>On fractures.</p></trans-abstract>'
    )
    documents, _ = read(tmp_path, "c.nxml", jats("Huesos", "", meta=meta))
    assert texts(documents) == [[("Abstract", "Resumen."), ("Abstract, en", "On fractures.")]]


def test_references_in_words_stay_and_marks_go(tmp_path: Path) -> None:
    body = (
        '<body><p>According to <xref ref-type="bibr">Muster et al. (2009)</xref>, 5 mg is better'
        '<sup><xref ref-type="bibr">3</xref></sup> [<xref ref-type="bibr">4</xref>,<xref ref-type="bibr">5</xref>]; '
        '<xref ref-type="bibr">Beispiel 2011a</xref> disagree<xref ref-type="fn">a</xref>. See '
        '<xref ref-type="table">Table 1</xref> (<xref ref-type="fig">Fig. 2</xref> and '
        '<xref ref-type="fig">3</xref>).</p></body>'
    )
    documents, _ = read(tmp_path, "a.nxml", jats("T", body))
    assert texts(documents) == [
        [
            (
                "",
                "According to Muster et al. (2009), 5 mg is better; Beispiel 2011a disagree. See Table 1 (Fig. 2 and "
                "3).",
            )
        ]
    ]


def test_tables_are_rows_of_text(tmp_path: Path) -> None:
    table = (
        "<table-wrap><label>Table 1</label><caption><p>Doses</p></caption><table><thead><tr><th>Drug</th><th>Dose</th>"
        "</tr></thead><tbody><tr><td>fictolol</td><td>5 mg</td></tr><tr><td>fictase</td><td>1 g</td></tr></tbody>"
        "</table></table-wrap>"
    )
    documents, _ = read(
        tmp_path, "a.nxml", jats("T", f"<body><sec><title>Results</title><p>See it.</p>{table}</sec></body>")
    )
    assert texts(documents) == [
        [("Results", "See it."), ("Results > Table 1. Doses", "Drug: fictolol; Dose: 5 mg\nDrug: fictase; Dose: 1 g")]
    ]


def test_character_entities_of_the_dtd_and_others(tmp_path: Path) -> None:
    head = '<!DOCTYPE article PUBLIC "-//NLM//DTD JATS//EN" "JATS-archivearticle1.dtd">'
    body = "<body><p>TNF-&alpha;&nbsp;&le; 5 &amp; &lt; 9</p></body>"
    documents, skipped = read(tmp_path, "a.nxml", head + jats("T", body))
    assert (texts(documents), skipped) == ([[("", "TNF-α ≤ 5 & < 9")]], [])
    padded = head + jats("T", "<body><p>" + "x" * 65_500 + " &alpha;&beta; " * 9_000 + "</p></body>")
    documents, _ = read(tmp_path, "b.nxml", padded)
    assert documents[0].sections[0].text.count("αβ") == 9_000
    own = '<!DOCTYPE article [<!ENTITY me "x">]>' + jats("T", "<body><p>&me;</p></body>")
    documents, (refused,) = read(tmp_path, "c.nxml", own)
    assert not documents
    assert "entity of its own (<!ENTITY me" in refused.reason
    _, (unknown,) = read(tmp_path, "d.nxml", jats("T", "<body><p>&nothing;</p></body>"))
    assert "no well-formed XML" in unknown.reason


def test_oai_pmh_wraps_articles_and_dublin_core(tmp_path: Path) -> None:
    article = jats("Wrapped", "<body><p>Words.</p></body>")
    dublin = (
        '<oai_dc:dc xmlns:oai_dc="http://www.openarchives.org/OAI/2.0/oai_dc/" '
        'xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>Core</dc:title><dc:description>On gout.'
        "</dc:description><dc:identifier>oai:x:1</dc:identifier><dc:date>2020-01-02</dc:date></oai_dc:dc>"
    )
    records = "".join(f"<record><header/><metadata>{each}</metadata></record>" for each in (article, dublin))
    gone = '<record><header status="deleted"><identifier>oai:x:2</identifier></header></record>'
    content = (
        '<OAI-PMH xmlns="http://www.openarchives.org/OAI/2.0/"><ListRecords>'
        + records
        + gone
        + "</ListRecords></OAI-PMH>"
    )
    documents, (deleted,) = read(tmp_path, "a.xml", content)
    assert [(document.title, document.id, document.year) for document in documents] == [
        ("Wrapped", "", None),
        ("Core", "oai:x:1", 2020),
    ]
    assert "oai:x:2" in deleted.where


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


@pytest.mark.parametrize("name", ["pubmed-gout.txt", "gout.nbib"])
def test_pubmed_text_has_a_document_per_record(tmp_path: Path, name: str) -> None:
    (document,), skipped = read(tmp_path, name, RECORDS)
    assert (document.id, document.title, document.year, document.source) == (
        "pmid:31",
        "Fictochicine in acute gout.",
        2018,
        "PubMed: J Ex",
    )
    assert texts([document]) == [[("", "It relieved gout within 24 hours.")]]
    assert [each.reason for each in skipped] == ["is a retracted article, by its title", "has no abstract"]


def test_reference_managers_exports(tmp_path: Path) -> None:
    ris = (
        "TY  - JOUR\nTI  - Gout in women\nAB  - It is rarer.\nPY  - 2019/03/01\nJO  - J Ex\n"
        "DO  - https://doi.org/10.1/ABC\nER  - \n\nTY  - JOUR\nTI  - Bare\nER  - \n"
    )
    (document,), (skipped,) = read(tmp_path, "a.ris", ris)
    assert (document.id, document.title, document.year, document.source) == (
        "doi:10.1/abc",
        "Gout in women",
        2019,
        "J Ex",
    )
    assert skipped.where == "a.ris, record 2"
    bib = (
        "@article{key1, title = {{Beh{\\c{c}}et} disease}, abstract = {It has {ulcers}.}, year = 2020, "
        "journal = {J Ex}}\n@article{key2, title = {Bare}}\n"
    )
    (document,), (skipped,) = read(tmp_path, "b.bib", bib)
    assert (document.id, document.title, document.year) == ("key1", "Behçet disease", 2020)
    assert texts([document]) == [[("", "It has ulcers.")]]
    assert skipped.reason == "has no abstract"


def test_tables_by_common_names_delimiters_and_encodings(tmp_path: Path) -> None:
    (document,), _ = read(
        tmp_path, "a.csv", "PMID;Title;Abstract;Publication Year;Journal/Book\n5;Gout;Hurts, at night.;2019;J Ex\n"
    )
    assert (document.id, document.title, document.year, document.source) == ("pmid:5", "Gout", 2019, "J Ex")
    (document,), _ = read(tmp_path, "b.csv", "id,text\n1,Gefäß und Blut\n".encode("utf-16"))
    assert document.sections[0].text == "Gefäß und Blut"
    german = "".join(f"{i},Die Gefäße über dem Fuß müssen größer geöffnet werden\n" for i in range(40))
    documents, _ = read(tmp_path, "c.csv", ("id,text\n" + german).encode("cp1252"))
    assert documents[0].sections[0].text == "Die Gefäße über dem Fuß müssen größer geöffnet werden"
    assert [d.id for d in read(tmp_path, "d.csv", "id,text\r1,one\r2,two\r")[0]] == ["1", "2"]


def test_a_quote_that_is_never_closed_costs_its_own_line(tmp_path: Path) -> None:
    documents, (skipped,) = read(
        tmp_path, "a.csv", 'id,text\n1,one\n2,"two is open\n3,three\n4,"four, closed\nover lines"\n5,five\n'
    )
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


@pytest.mark.parametrize(
    ("year", "wanted"),
    [("c2019", 2019), ("n.d.", None), (float("nan"), None), ("12/05/2018", 2018), (2018.0, 2018), ([2017], 2017)],
)
def test_a_row_with_an_odd_year_is_kept(tmp_path: Path, year: object, wanted: int | None) -> None:
    (document,), skipped = read(tmp_path, "a.jsonl", json.dumps({"text": "x", "year": year, "title": float("nan")}))
    assert (document.year, document.title, skipped) == (wanted, "", [])


def test_pictures_are_left_out_of_markdown(tmp_path: Path) -> None:
    data = "data:image/png;base64," + "iVBORw0KGgo" * 1_000
    (document,), _ = read(
        tmp_path,
        "a.md",
        f'# Gout\n\nSee ![the chart]({data}) and <img alt="a foot" src="{data}"> here.\n\n![][one]\n\n[one]: {data}\n',
    )
    text = " ".join(section.text for section in document.sections)
    assert text.startswith("See the chart and a foot here.")
    assert len(text) < 100


PAGE = """<html><head><title>Gout guideline</title></head><body><nav><ul><li><a href="/">Home</a></li>
<li><a href="/c">Cookies</a></li></ul></nav><main><article><h1>Gout guideline</h1>
<p>This guideline tells how adults with acute gout are treated in general practice and in hospital.</p>
<h2>Treatment</h2><p>Colchicine is given within the first day of an attack, where kidneys are sound enough for it.</p>
<table><tr><th>Drug</th><th>Dose</th></tr><tr><td>colchicine</td><td>0.5 mg</td></tr></table>
<h2>Follow-up</h2><p>Urate is measured again after four weeks, and the dose is adapted to what was found then.</p>
</article></main><footer>Copyright. All rights reserved. Imprint.</footer></body></html>"""


def test_the_main_text_of_a_page(tmp_path: Path) -> None:
    (document,), _ = read(tmp_path, "gout.html", PAGE)
    assert document.title == "Gout guideline"
    assert [section.heading for section in document.sections] == ["", "Treatment", "Follow-up"]
    text = "\n".join(section.text for section in document.sections)
    assert "Drug: colchicine; Dose: 0.5 mg" in text
    assert "Cookies" not in text
    assert "Imprint" not in text
    assert "no main text" in read(tmp_path, "b.html", "<html><body></body></html>")[1][0].reason


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
    write_pdf(tmp_path / "a.pdf", ["Rest helps."])
    locked = PdfWriter(clone_from=PdfReader(tmp_path / "a.pdf"))
    locked.encrypt("", "owner", algorithm="AES-256")
    locked.write(tmp_path / "b.pdf")
    (document,), _ = items(tmp_path / "b.pdf")
    assert "Rest helps." in document.sections[0].text
