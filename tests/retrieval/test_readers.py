from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from pypdf import PdfReader, PdfWriter

from medagent.retrieval.chunking import Document
from medagent.retrieval.readers import Skipped, Withdrawn
from tests.retrieval.support import JATS, MEDLINE, items, read, texts, write_pdf


def test_medline_articles_with_labels_years_and_what_is_left_out(tmp_path: Path) -> None:
    documents, skipped = read(tmp_path, "pubmed24n0001.xml", MEDLINE)
    assert [(d.id, d.title, d.year, d.source) for d in documents] == [
        ("pmid:101", "Colchicine for acute gout.", 2019, "PubMed: J Gout"),
        ("pmid:102", "Digoxin in the elderly.", 1998, "PubMed: Heart Notes"),
    ]
    assert documents[0].sections[0].text == (
        "Background: Gout hurts at night.\nResults: Colchicine 1.8 mg relieved pain (P < 0.01)."
    )
    reasons = {item.where.split(", ")[1]: item.reason for item in skipped}
    assert reasons["pmid:103"] == "has no abstract"
    assert reasons["pmid:104"] == "is a retracted publication"
    assert "deleted" in reasons["pmid:55"]
    assert read(tmp_path, "pubmed24n0001.xml.gz", gzip.compress(MEDLINE.encode()))[0] == documents


def test_jats_sections_without_references_and_marks(tmp_path: Path) -> None:
    (document,), skipped = read(tmp_path, "a.nxml", JATS)
    assert not skipped
    assert (document.id, document.title, document.year) == ("pmc:42", "Nephrotic syndrome in children", 2021)
    assert (document.source, document.licence) == ("Open Renal", "https://creativecommons.org/licenses/by/4.0/")
    assert [(s.heading, s.text) for s in document.sections] == [
        ("Abstract", "Steroids are given first."),
        ("", "Opening words."),
        ("Methods", "We followed 40 children."),
        ("Methods > Dose", "Prednisolone 60 mg/m2 daily."),
        ("Methods > Dose > Table", "cell"),
        ("Results", "Most children improved."),
    ]


@pytest.mark.parametrize(
    ("name", "content", "kept", "reason"),
    [
        ("cut.xml", MEDLINE[: MEDLINE.index('<PMID Version="1">102')], 1, "no well-formed XML .* 1 articles before"),
        ("plain.xml", "not xml at all", 0, "no well-formed XML"),
        ("other.xml", "<recipes><cake/></recipes>", 0, "holds no article: its root is <recipes>"),
        ("empty.xml", "", 0, "no well-formed XML"),
        ("jats.nxml", JATS.replace("</body>", ""), 0, "no well-formed XML"),
        ("hollow.nxml", "<article><front><article-meta/></front></article>", 0, "neither abstract nor body"),
        ("a.pdf", "%PDF-1.4 nothing follows", 0, "no readable PDF"),
        ("b.pdf", "", 0, "no readable PDF"),
        ("a.txt", "", 0, "is empty"),
        ("a.csv", "name,age\nx,1\n", 0, "wanted a column 'text', 'content' or 'abstract'"),
        ("b.csv", 'id,text\n1,"open quote', 0, "quote that is never closed"),
        ("c.csv", "id,text\n1,fine\n2,a,b\n", 1, "more cells"),
        ("d.csv", "id,text\n1,\n", 0, "no text"),
        ("a.jsonl", '{"text": "fine"}\nnot json\n{"title": "no text"}\n[1]\n{"text": 3}\n', 1, "no JSON object"),
    ],
)
def test_what_is_broken_is_named_and_skipped(tmp_path: Path, name: str, content: str, kept: int, reason: str) -> None:
    documents, skipped = read(tmp_path, name, content)
    assert len(documents) == kept
    assert re.search(reason, skipped[0].reason)
    assert all(item.where.startswith(name) for item in skipped)
    if name == "a.jsonl":
        assert [item.where for item in skipped] == [f"a.jsonl, line {n}" for n in (2, 3, 4, 5)]


def test_wrong_encodings_and_cut_archives(tmp_path: Path) -> None:
    assert "no text" in read(tmp_path, "a.txt", b"MZ\x00\xff\xfe\x81" * 40)[1][0].reason
    documents, skipped = read(tmp_path, "b.jsonl", '{"text": "ok"}\n{"text": "Gefäß"}\n'.encode("latin-1"))
    assert (len(documents), skipped[0].where) == (1, "b.jsonl, line 2")
    whole = gzip.compress("".join(json.dumps({"text": f"row {i * 7919}"}) + "\n" for i in range(5000)).encode())
    documents, skipped = read(tmp_path, "c.jsonl.gz", whole[: len(whole) // 2])
    assert len(documents) > 100
    assert "what came before is used" in skipped[-1].reason
    documents, _ = read(tmp_path, "d.csv", b"id,text\n" + b"1,ok\n" * 20_000 + b"2,Gef\xe4\xdf\n")
    assert documents[-1].sections[0].text == "Gef\ufffd\ufffd", "what is wrong is marked"


def test_medrag_layout_in_csv_and_tsv(tmp_path: Path) -> None:
    (found,), _ = read(tmp_path, "a.csv", 'id,title,content\nS1,Gout,"It hurts, at night."\n')
    assert (found.id, found.title, found.sections[0].text) == ("S1", "Gout", "It hurts, at night.")
    (found,), _ = read(tmp_path, "a.tsv", 'ID\tTitle\tContent\tYear\nS2\tHeart\tsays "lub dub"\t2001\n')
    assert (found.id, found.sections[0].text, found.year) == ("S2", 'says "lub dub"', 2001)
    assert found.source == "a.tsv"


def test_markdown_headings_lists_and_code(tmp_path: Path) -> None:
    text = "# Gout\n\nIt\nhurts.\n\n## Treatment\n- colchicine\n- rest\n\n```\n# no heading\n```\n\n### Dose ##\n\n"
    documents, _ = read(tmp_path, "gout.md", text)
    assert documents[0].title == "Gout"
    assert texts(documents) == [[("", "It hurts."), ("Treatment", "colchicine\nrest\n# no heading")]]


def jats(
    tmp_path: Path, inside: str, *, attributes: str = "", meta: str = ""
) -> tuple[list[Document], list[Skipped | Withdrawn]]:
    front = (
        f"<front><article-meta>{meta}<title-group><article-title>T</article-title></title-group></article-meta></front>"
    )
    return read(tmp_path, "x.nxml", f"<article {attributes}>{front}{inside}</article>")


def test_dates_and_exponents_as_journals_write_them(tmp_path: Path) -> None:
    date = "<pub-date><day>15</day><month>3</month><year>2019</year></pub-date>"
    body = (
        "<body><p>Give 10<sup>−6</sup> CFU over 5 m<sup>2</sup><sup><xref>7</xref></sup> of <sup>18</sup>F."
        "<break/>Stop.</p></body>"
    )
    (document,), _ = jats(tmp_path, body, meta=date)
    assert document.year == 2019
    assert document.sections[0].text == "Give 10^−6 CFU over 5 m^2 of 18F. Stop."
    text = MEDLINE.replace("<Month>May</Month>", "<Month>11</Month>")
    text = text.replace("hurts at night", "hurts 10<sup>3</sup> times")
    text = text.replace("Colchicine for acute <i>gout</i>.", "[18F]FDG in man [corrected].")
    documents, _ = read(tmp_path, "m.xml", text)
    assert (documents[0].year, documents[0].title) == (2019, "[18F]FDG in man [corrected].")
    assert "hurts 10^3 times" in documents[0].sections[0].text


def test_what_was_retracted_is_left_out_and_appendices_are_not(tmp_path: Path) -> None:
    forward = '<related-article related-article-type="retraction-forward"/>'
    for attributes, meta, reason in (
        ('article-type="retraction"', "", "notice of a retraction"),
        ("", '<related-article related-article-type="retracted-article"/>', "notice of a retraction"),
        ("", forward, "is a retracted article"),
    ):
        documents, skipped = jats(tmp_path, "<body><p>x</p></body>", attributes=attributes, meta=meta)
        assert not documents
        assert reason in skipped[0].reason
    inside = "<body><p>x</p></body><back><app-group><app><title>App</title><p>more</p></app></app-group></back>"
    abstracts = (
        '<abstract abstract-type="graphical"><p>picture</p></abstract>'
        '<abstract abstract-type="executive-summary"><p>Short.</p></abstract>'
    )
    (document,), _ = jats(tmp_path, inside, meta=abstracts)
    assert texts([document]) == [[("Executive summary", "Short."), ("", "x"), ("App", "more")]]


def test_bookshelf_chapters_are_read(tmp_path: Path) -> None:
    book = (
        "<PubmedArticleSet><PubmedBookArticle><BookDocument><PMID>9</PMID>"
        "<Book><BookTitle>StatPearls</BookTitle><PubDate><Year>2020</Year></PubDate></Book>"
        "<ArticleTitle>Gout</ArticleTitle><Abstract><AbstractText>It hurts.</AbstractText></Abstract>"
        "</BookDocument></PubmedBookArticle>"
        "<PubmedBookArticle><BookDocument><PMID>10</PMID></BookDocument></PubmedBookArticle></PubmedArticleSet>"
    )
    (document,), skipped = read(tmp_path, "b.xml", book)
    found = (document.id, document.title, document.source, document.year)
    assert found == ("pmid:9", "Gout", "PubMed: StatPearls", 2020)
    assert "without PMID or abstract" in skipped[0].reason


def test_a_pdf_with_a_wrong_date_is_still_read(tmp_path: Path) -> None:
    write_pdf(tmp_path / "a.pdf", "Rest helps.")
    writer = PdfWriter(clone_from=PdfReader(tmp_path / "a.pdf"))
    writer.add_metadata({"/CreationDate": "(Mon Jan  5 12:00:00 2004)", "/Title": "Rest"})
    writer.write(tmp_path / "b.pdf")
    (document,), _ = items(tmp_path / "b.pdf")
    assert (document.title, document.year) == ("Rest", None)


def test_hostile_rows_are_skipped_or_cleaned(tmp_path: Path) -> None:
    odd = '{"id": "x", "text": "half \\ud800 a pair"}\n' + "[" * 100_000 + '\n{"id": 0, "text": "zero"}\n'
    documents, skipped = read(tmp_path, "a.jsonl", odd)
    assert [(d.id, d.sections[0].text) for d in documents] == [("x", "half ? a pair"), ("0", "zero")]
    assert skipped[0].where == "a.jsonl, line 2"
    assert read(tmp_path, "D.TSV", "id\ttext\n1\ttabs, too\n")[0][0].sections[0].text == "tabs, too"
