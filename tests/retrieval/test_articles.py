"""Articles and chapters in XML: retractions, abstracts, references, tables, entities, wrappers, bibliographies."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from medagent.cli.main import main
from medagent.retrieval.bibliography import Bibliography
from medagent.retrieval.corpora import file_corpus
from medagent.retrieval.embedders import HashedNgramEmbedder
from medagent.retrieval.index import build_index
from medagent.retrieval.passages import Passage
from medagent.retrieval.readers.base import is_retracted, retraction_in_title
from medagent.retrieval.search import HybridRetriever
from medagent.retrieval.store import PassageStore
from tests.retrieval.support import SMALL, read, texts


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
    marks += ("{} (Retracted article. See vol. 3, pg. 5, 2020)", "{} [retracted]", "RETRACTED {}")
    marks += ("Article retracted: {}", "This article has been retracted: {}", "TEMPORARY REMOVAL: {}")
    marks += ("{}: RETRACTED ARTICLE",)
    for title in (mark.format("Vitamin Q prevents stroke") for mark in marks):
        assert is_retracted(title), title
        for name, content in (("a.xml", medline(title)), ("b.nxml", jats(title, "<body><p>x</p></body>"))):
            documents, (skipped,) = read(tmp_path, name, content)
            assert not documents
            assert "retracted" in skipped.reason


def test_titles_of_notices(tmp_path: Path) -> None:
    notices = "Retraction: {}; Retraction notice to: {}; Notice of retraction: {}; Statement of Retraction; Retraction."
    notices += "; Retraction to: {} is a target; Retraction for '{}'; Withdrawal notice: {}; Editorial Retraction: {}"
    notices += "; Retraction note: {}; Retraction of: {}; Retraction for Muster et al., {}"
    notices += "; Retraction and republication: {}"
    for title in notices.format(*["Fictase"] * 13).split("; "):
        assert retraction_in_title(title) == "is the notice of a retraction", title
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
        assert not retraction_in_title(title), title
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
    plain = other.replace("Publisher", "plain-language-summary").replace("spa", "eng").replace("La gota.", "Easy.")
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
    said = "According to Muster et al. (2009), 5 mg is better; Beispiel 2011a disagree. See Table 1 (Fig. 2 and 3)."
    assert texts(documents) == [[("", said)]]


def test_tables_are_rows_of_text(tmp_path: Path) -> None:
    table = (
        "<table-wrap><label>Table 1</label><caption><p>Doses</p></caption><table><thead><tr><th>Drug</th><th>Dose</th>"
        "</tr></thead><tbody><tr><td>fictolol</td><td>5 mg</td></tr><tr><td>fictase</td><td>1 g</td></tr></tbody>"
        "</table></table-wrap>"
    )
    body = f"<body><sec><title>Results</title><p>See it.</p>{table}</sec></body>"
    documents, _ = read(tmp_path, "a.nxml", jats("T", body))
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
    opened = '<OAI-PMH xmlns="http://www.openarchives.org/OAI/2.0/"><ListRecords>'
    documents, (deleted,) = read(tmp_path, "a.xml", f"{opened}{records}{gone}</ListRecords></OAI-PMH>")
    found = [(document.title, document.id, document.year) for document in documents]
    assert found == [("Wrapped", "", None), ("Core", "oai:x:1", 2020)]
    assert "oai:x:2" in deleted.where


CHAPTER = """<book-part id="article-22345" xml:lang="en" book-part-type="chapter"><book-part-meta>
<book-part-id book-part-id-type="pmid">31536300</book-part-id>
<title-group><title>Gouty Arthritis</title></title-group>
<contrib-group>
<contrib contrib-type="author"><name><surname>Roe</surname><given-names>Ann</given-names></name></contrib>
</contrib-group><pub-history><date date-type="created"><year>2019</year></date>
<date date-type="updated"><day>20</day><month>02</month><year>2023</year></date></pub-history>
<permissions><license xlink:href="http://creativecommons.org/licenses/by-nc-nd/4.0/"/></permissions></book-part-meta>
<body><sec><title>Etiology</title><p>Urate crystals cause it.</p></sec>
<sec><title>Treatment</title>
<p>Colchicine is given early [<xref ref-type="bibr" rid="r1">1</xref>].</p>
<table-wrap><caption><p>Doses</p></caption>
<table><tr><th>Drug</th><th>Dose</th></tr><tr><td>Colchicine</td><td>1.2 mg</td></tr></table></table-wrap>
</sec>
</body>
<back><ref-list><ref id="r1"><mixed-citation>A reference to quokkas</mixed-citation></ref></ref-list></back>
</book-part>"""
META = """<book-meta><book-id book-id-type="pmcid">statpearls</book-id><book-title-group>
<book-title>StatPearls</book-title></book-title-group></book-meta>"""
WRAPPER = f"""<?xml version="1.0"?><book-part-wrapper xmlns:xlink="http://www.w3.org/1999/xlink" id="NBK546606">{META}
{CHAPTER}</book-part-wrapper>"""


def part(number: int, inside: str = "", kind: str = "chapter") -> str:
    body = f"<p>Passage {number} tells of topic{number}.</p>" if kind == "chapter" else ""
    return (
        f'<book-part id="c{number}" book-part-type="{kind}"><book-part-meta><title-group><title>Title {number}</title>'
        f"</title-group></book-part-meta><body>{body}{inside}</body></book-part>"
    )


def built(folder: Path, text: str) -> HybridRetriever:
    folder.mkdir()
    (folder / "book.nxml").write_text(text)
    build_index(file_corpus(folder / "book.nxml"), folder / "index", HashedNgramEmbedder(64))
    return HybridRetriever(str(folder / "index"))


def test_a_chapter_of_statpearls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    retriever = built(tmp_path / "a", WRAPPER)
    found = {hit.passage.section: hit.passage for hit in retriever.search(["colchicine urate quokkas"], top_k=9)[0]}
    wanted = {"Etiology": "Urate crystals cause it.", "Treatment": "Colchicine is given early."}
    wanted |= {"Treatment > Doses": "Drug: Colchicine; Dose: 1.2 mg"}
    assert {section: passage.text for section, passage in found.items()} == wanted
    passage = found["Treatment"]
    assert (passage.document, passage.title) == ("pmid:31536300", "Gouty Arthritis")
    assert (passage.source, passage.year) == ("StatPearls", 2023)
    assert passage.licence == "http://creativecommons.org/licenses/by-nc-nd/4.0/"
    about = passage.about
    assert (about.url, about.authors) == ("https://www.ncbi.nlm.nih.gov/books/NBK546606/", ("Roe Ann",))
    assert (about.date, about.language, about.types) == ("2023-02-20", "en", ("book chapter",))
    main(["search", "colchicine", "--index", str(tmp_path / "a" / "index"), "--where", "type=book-chapter year=2023"])
    assert "books/NBK546606" in capsys.readouterr().out


def test_a_book_has_a_document_per_chapter_also_below_parts(tmp_path: Path) -> None:
    inside = part(9, part(2) + part(3), kind="part")
    body = f"<book-body>{part(1)}{inside}{part(4)}</book-body>"
    retriever = built(tmp_path / "b", f"<book>{META}{body}</book>")
    found = {(passage.id, passage.source) for passage in retriever.passages}
    assert found == {(f"statpearls:c{number}", "StatPearls") for number in (1, 2, 3, 4)}
    assert "topic3" in retriever.search(["topic3"], top_k=1)[0][0].passage.text


def test_a_chapter_without_text_is_said(tmp_path: Path) -> None:
    empty = part(5, kind="part")
    built(tmp_path / "c", f"<book>{META}<book-body>{part(1)}{empty}</book-body></book>").close()
    with closing(PassageStore(tmp_path / "c" / "index", 64)) as store:
        assert "is a chapter without text" in str(list(store.skipped(limit=5)))


FULL = Bibliography(
    url="https://example.org/a",
    doi="10.1/ab",
    pmid="7",
    authors=("Muster A", "Beispiel B"),
    journal="J Ex",
    date="2021-03",
    types=("Guideline",),
    keywords=("Gout",),
    language="eng",
    notices=("erratum: J Ex 2022",),
)


def test_it_survives_json_and_the_disk(tmp_path: Path) -> None:
    passage = Passage.make("gout", "It hurts.", id="p", about=FULL)
    assert Passage.from_json(json.loads(json.dumps(passage.to_json()))) == passage
    assert Passage.from_json({"id": "p", "text": "It hurts."}).about == Bibliography()
    build_index([passage, Passage.make("", "Nothing is known.", id="q")], tmp_path / "index", SMALL)
    retriever = HybridRetriever(str(tmp_path / "index"))
    assert [retriever.passage(id_).about for id_ in ("p", "q")] == [FULL, Bibliography()]  # type: ignore[union-attr]
    retriever.close()


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ({"url": "https://x.org/1"}, Bibliography(url="https://x.org/1")),
        ({"link": "http://x.org/1"}, Bibliography(url="http://x.org/1")),
        ({"url": "javascript:alert(1)"}, Bibliography()),
        ({"url": float("nan"), "doi": None}, Bibliography()),
        ({"doi": "https://doi.org/10.1/AB"}, Bibliography(doi="10.1/ab")),
        ({"doi": "doi: 10.1/ab", "pmid": 12}, Bibliography(doi="10.1/ab", pmid="12")),
        ({"pmid": "none"}, Bibliography()),
        ({"authors": "Muster A; Beispiel B"}, Bibliography(authors=("Muster A", "Beispiel B"))),
        ({"author": ["Muster A"], "type": "Review"}, Bibliography(authors=("Muster A",), types=("Review",))),
    ],
)
def test_a_users_row_may_say_it(tmp_path: Path, row: dict[str, object], wanted: Bibliography) -> None:
    (document,), _ = read(tmp_path, "a.jsonl", json.dumps({"text": "x", **row}))
    assert document.about == wanted


def test_an_address_is_found_where_there_is_one() -> None:
    assert FULL.link == "https://example.org/a"
    assert Bibliography(doi="10.1/ab", pmid="7").link == "https://doi.org/10.1/ab"
    assert Bibliography(pmid="7").link == "https://pubmed.ncbi.nlm.nih.gov/7/"
    assert Bibliography().link == ""


def test_pubmeds_records_tell_it(tmp_path: Path) -> None:
    content = (
        "<PubmedArticleSet><PubmedArticle><MedlineCitation><PMID>7</PMID><Article><Journal><JournalIssue><PubDate>"
        "<Year>2021</Year><Month>Mar</Month></PubDate></JournalIssue><Title>Journal of Examples</Title></Journal>"
        "<ArticleTitle>On gout.</ArticleTitle><Abstract><AbstractText>It hurts.</AbstractText></Abstract><AuthorList>"
        "<Author><LastName>Muster</LastName><Initials>A</Initials></Author><Author><CollectiveName>Gout Group"
        "</CollectiveName></Author></AuthorList><Language>eng</Language><PublicationTypeList><PublicationType>Practice "
        "Guideline</PublicationType></PublicationTypeList></Article><MeshHeadingList><MeshHeading><DescriptorName>Gout"
        "</DescriptorName></MeshHeading></MeshHeadingList><CommentsCorrectionsList><CommentsCorrections RefType="
        "'ExpressionOfConcernIn'><RefSource>J Ex 2022</RefSource></CommentsCorrections></CommentsCorrectionsList>"
        "</MedlineCitation><PubmedData><ArticleIdList><ArticleId IdType='doi'>10.1/AB</ArticleId></ArticleIdList>"
        "</PubmedData></PubmedArticle></PubmedArticleSet>"
    )
    (document,), _ = read(tmp_path, "a.xml", content)
    assert document.about == Bibliography(
        doi="10.1/ab",
        pmid="7",
        authors=("Muster A", "Gout Group"),
        journal="Journal of Examples",
        date="2021-03",
        types=("Practice Guideline",),
        keywords=("Gout",),
        language="eng",
        notices=("expression of concern: J Ex 2022",),
    )


def test_a_search_shows_where_to_read_on(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    row = {"id": "a", "text": "Gout hurts.", "url": "https://x.org/1", "notices": ["erratum: J Ex 2022"]}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    build_index(file_corpus(tmp_path / "a.jsonl"), tmp_path / "index", SMALL)
    assert main(["search", "gout", "--index", str(tmp_path / "index")]) == 0
    assert "https://x.org/1, erratum: J Ex 2022" in capsys.readouterr().out
    assert main(["search", "gout", "--index", str(tmp_path / "index"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["url"] == "https://x.org/1"
