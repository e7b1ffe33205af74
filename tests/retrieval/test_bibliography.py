"""What is known of a document is kept, found again and shown, and leads to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from medagent.cli.main import main
from medagent.retrieval.bibliography import Bibliography
from medagent.retrieval.corpora import file_corpus
from medagent.retrieval.index import build_index
from medagent.retrieval.passages import Passage
from medagent.retrieval.search import HybridRetriever
from tests.retrieval.support import SMALL, read

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
