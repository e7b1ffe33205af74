from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pypdf import PdfReader, PdfWriter

from medagent.retrieval.chunking import Document
from medagent.retrieval.readers import Skipped, Withdrawn
from tests.retrieval.support import JATS, MEDLINE, items, write_gz, write_pdf


def test_medline_articles_with_labels_years_and_what_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "pubmed24n0001.xml").write_text(MEDLINE)
    documents, skipped = items(tmp_path / "pubmed24n0001.xml")
    assert [(d.id, d.title, d.year, d.source) for d in documents] == [
        ("pmid:101", "Colchicine for acute gout.", 2019, "PubMed: J Gout"),
        ("pmid:102", "Digoxin in the elderly.", 1998, "PubMed: Heart Notes"),
    ]
    assert documents[0].sections[0].text == (
        "Background: Gout hurts at night.\nResults: Colchicine 1.8 mg relieved pain (P < 0.01)."
    )
    reasons = {item.where.split(", ")[1]: item.reason for item in skipped}
    assert reasons["PMID 103"] == "has no abstract"
    assert reasons["PMID 104"] == "is a retracted publication"
    assert "deleted" in reasons["PMID 55"]
    write_gz(tmp_path / "pubmed24n0001.xml.gz", MEDLINE)
    assert items(tmp_path / "pubmed24n0001.xml.gz")[0] == documents


def test_jats_sections_without_references_and_marks(tmp_path: Path) -> None:
    (tmp_path / "a.nxml").write_text(JATS)
    (document,), skipped = items(tmp_path / "a.nxml")
    assert not skipped
    assert (document.id, document.title, document.year) == ("pmc:42", "Nephrotic syndrome in children", 2021)
    assert (document.source, document.licence) == ("Open Renal", "https://creativecommons.org/licenses/by/4.0/")
    assert [(s.heading, s.text) for s in document.sections] == [
        ("Abstract", "Steroids are given first."),
        ("", "Opening words."),
        ("Methods", "We followed 40 children ."),
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
        (
            "bomb.xml",
            '<!DOCTYPE x [<!ENTITY a "aaaa">]><PubmedArticleSet>&a;</PubmedArticleSet>',
            0,
            "entity of its own",
        ),
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
        (
            "a.jsonl",
            '{"text": "fine"}\nnot json\n{"title": "no text"}\n[1]\n{"text": 3}\n{"text":"t","year":"soon"}\n',
            2,
            "no JSON object",
        ),
    ],
)
def test_what_is_broken_is_named_and_skipped(tmp_path: Path, name: str, content: str, kept: int, reason: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    documents, skipped = items(path)
    assert len(documents) == kept
    if reason:
        assert re.search(reason, skipped[0].reason)
        assert all(item.where.startswith(name) for item in skipped)
    if name == "a.jsonl":
        assert [item.where for item in skipped] == [f"a.jsonl, line {n}" for n in (2, 3, 4, 5)]


def test_wrong_encodings_and_cut_archives(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"MZ\x00\xff\xfe\x81" * 40)
    assert "no text" in items(tmp_path / "a.txt")[1][0].reason
    (tmp_path / "b.jsonl").write_bytes('{"text": "ok"}\n{"text": "Gefäß"}\n'.encode("latin-1"))
    documents, skipped = items(tmp_path / "b.jsonl")
    assert (len(documents), skipped[0].where) == (1, "b.jsonl, line 2")
    write_gz(tmp_path / "c.jsonl.gz", "".join(json.dumps({"text": f"row {i * 7919}"}) + "\n" for i in range(5000)))
    whole = (tmp_path / "c.jsonl.gz").read_bytes()
    (tmp_path / "c.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    documents, skipped = items(tmp_path / "c.jsonl.gz")
    assert len(documents) > 100
    assert "what came before is used" in skipped[-1].reason
    (tmp_path / "d.csv").write_bytes(b"id,text\n" + b"1,ok\n" * 20_000 + b"2,Gef\xe4\xdf\n")
    assert items(tmp_path / "d.csv")[0][-1].sections[0].text == "Gef\ufffd\ufffd", "what is wrong is marked"


def test_medrag_layout_in_csv_and_tsv(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,title,content\nS1,Gout,"It hurts, at night."\n')
    (tmp_path / "a.tsv").write_text('ID\tTitle\tContent\tYear\nS2\tHeart\tsays "lub dub"\t2001\n')
    (csv_document,), _ = items(tmp_path / "a.csv")
    assert (csv_document.id, csv_document.title, csv_document.sections[0].text) == ("S1", "Gout", "It hurts, at night.")
    (tsv_document,), _ = items(tmp_path / "a.tsv")
    assert (tsv_document.id, tsv_document.sections[0].text, tsv_document.year) == ("S2", 'says "lub dub"', 2001)
    assert tsv_document.source == "a.tsv"


def test_markdown_headings_lists_and_code(tmp_path: Path) -> None:
    (tmp_path / "gout.md").write_text(
        "# Gout\n\nIt\nhurts.\n\n## Treatment\n- colchicine\n- rest\n\n```\n# no heading\n```\n\n### Dose ##\n\n"
    )
    (document,), _ = items(tmp_path / "gout.md")
    assert document.title == "Gout"
    assert [(s.heading, s.text) for s in document.sections] == [
        ("", "It hurts."),
        ("Treatment", "- colchicine\n- rest\n``` # no heading ```"),
    ]


def jats(
    tmp_path: Path, inside: str, *, attributes: str = "", meta: str = ""
) -> tuple[list[Document], list[Skipped | Withdrawn]]:
    (tmp_path / "x.nxml").write_text(
        f"<article {attributes}><front><article-meta>{meta}<title-group><article-title>T</article-title></title-group>"
        f"</article-meta></front>{inside}</article>"
    )
    return items(tmp_path / "x.nxml")


def test_dates_and_exponents_as_journals_write_them(tmp_path: Path) -> None:
    date = "<pub-date><day>15</day><month>3</month><year>2019</year></pub-date>"
    body = (
        "<body><p>Give 10<sup>−6</sup> CFU over 5 m<sup>2</sup><sup><xref>7</xref></sup> of <sup>18</sup>F."
        "<break/>Stop.</p></body>"
    )
    (document,), _ = jats(tmp_path, body, meta=date)
    assert document.year == 2019
    assert document.sections[0].text == "Give 10^−6 CFU over 5 m2 of 18F. Stop."
    text = MEDLINE.replace("<Month>May</Month>", "<Month>11</Month>").replace(
        "hurts at night", "hurts 10<sup>3</sup> times"
    )
    (tmp_path / "m.xml").write_text(text.replace("Colchicine for acute <i>gout</i>.", "[18F]FDG in man [corrected]."))
    documents, _ = items(tmp_path / "m.xml")
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
    assert [(s.heading, s.text) for s in document.sections] == [
        ("Executive summary", "Short."),
        ("", "x"),
        ("App", "more"),
    ]


def test_bookshelf_chapters_are_read(tmp_path: Path) -> None:
    book = (
        "<PubmedArticleSet><PubmedBookArticle><BookDocument><PMID>9</PMID>"
        "<Book><BookTitle>StatPearls</BookTitle><PubDate><Year>2020</Year></PubDate></Book>"
        "<ArticleTitle>Gout</ArticleTitle><Abstract><AbstractText>It hurts.</AbstractText></Abstract>"
        "</BookDocument></PubmedBookArticle>"
        "<PubmedBookArticle><BookDocument><PMID>10</PMID></BookDocument></PubmedBookArticle></PubmedArticleSet>"
    )
    (tmp_path / "b.xml").write_text(book)
    (document,), skipped = items(tmp_path / "b.xml")
    found = (document.id, document.title, document.source, document.year)
    assert found == ("pmid:9", "Gout", "PubMed: StatPearls", 2020)
    assert "without PMID or abstract" in skipped[0].reason


def test_a_pdf_with_a_wrong_date_is_still_read(tmp_path: Path) -> None:
    write_pdf(tmp_path / "a.pdf", ["Rest helps."])
    writer = PdfWriter(clone_from=PdfReader(tmp_path / "a.pdf"))
    writer.add_metadata({"/CreationDate": "(Mon Jan  5 12:00:00 2004)", "/Title": "Rest"})
    writer.write(tmp_path / "b.pdf")
    (document,), _ = items(tmp_path / "b.pdf")
    assert (document.title, document.year) == ("Rest", None)


def test_hostile_rows_are_skipped_or_cleaned(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"id": "x", "text": "half \\ud800 a pair"}\n' + "[" * 100_000 + "\n" + '{"id": 0, "text": "zero"}\n'
    )
    documents, skipped = items(tmp_path / "a.jsonl")
    assert [(d.id, d.sections[0].text) for d in documents] == [("x", "half ? a pair"), ("0", "zero")]
    assert skipped[0].where == "a.jsonl, line 2"
    (tmp_path / "D.TSV").write_text("id\ttext\n1\ttabs, too\n")
    assert items(tmp_path / "D.TSV")[0][0].sections[0].text == "tabs, too"
