"""Articles in XML: marks of retraction, other abstracts, references, tables, entities, wrappers."""

from __future__ import annotations

from pathlib import Path

import pytest

from medagent.retrieval.readers.base import is_notice, is_retracted
from tests.retrieval.support import read, texts


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


def test_titles_of_retracted_articles(tmp_path: Path) -> None:
    marks = ("RETRACTED: {}.", "Retracted: {}", "RETRACTED ARTICLE: {}", "WITHDRAWN: {}.", "[Retracted] {}")
    marks += (
        "{} (Retracted article. See vol. 3, pg. 5, 2020)",
        "{} [retracted]",
        "RETRACTED {}",
        "Article retracted: {}",
    )
    marks += ("This article has been retracted: {}", "{}: RETRACTED ARTICLE", "TEMPORARY REMOVAL: {}")
    for title in (mark.format("Vitamin Q prevents stroke") for mark in marks):
        assert is_retracted(title), title
        for name, content in (("a.xml", medline(title)), ("b.nxml", jats(title, "<body><p>x</p></body>"))):
            documents, (skipped,) = read(tmp_path, name, content)
            assert not documents
            assert "retracted" in skipped.reason


def test_titles_of_notices(tmp_path: Path) -> None:
    notices = "Retraction: {}; Retraction notice to: {}; Notice of retraction: {}; Statement of Retraction; Retraction."
    notices += "; Retraction to: {} is a target; Retraction for '{}'; Withdrawal notice: {}; Editorial Retraction: {}"
    notices += (
        "; Retraction note: {}; Retraction of: {}; Retraction for Muster et al., {}; Retraction and republication: {}"
    )
    for title in notices.format(*["Fictase"] * 13).split("; "):
        assert is_notice(title), title
        documents, (skipped,) = read(tmp_path, "a.nxml", jats(title, "<body><p>x</p></body>"))
        assert not documents
        assert "notice" in skipped.reason


def test_titles_of_sound_articles(tmp_path: Path) -> None:
    sound = """Retraction of the tongue in infants; Retraction pockets of the eardrum; Withdrawn patients in trials;
    Withdrawal of opioids in adults; Alcohol withdrawal: a review; Withdrawal from benzodiazepines;
    Eyelid retraction: causes and treatment; Why articles are retracted; WITHDRAWN PATIENTS IN CLINICAL TRIALS.;
    Safety of inhibitors (withdrawn and marketed).; Outcomes by arm (retracted lung vs control); Removal: how and when;
    Withdrawal: a neglected problem in opioid therapy; Retraction - a surgical primer; Chest wall retraction"""
    for title in (each.strip() for each in sound.split(";")):
        assert not is_retracted(title), title
        assert not is_notice(title), title
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
