"""Lists of retractions take documents away, and a preprint yields to its article, in whatever order they are read."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path

import pytest

from medagent.retrieval.index import add_to_index, build_index
from medagent.retrieval.ingest_policy import Changes
from medagent.retrieval.maintenance import remove_from_index
from medagent.retrieval.readers import Withdrawn
from medagent.retrieval.search import HybridRetriever
from tests.retrieval.libraries import add, held, pubmed, record, rows
from tests.retrieval.support import SMALL, read

HEADER = "Record ID,Title,RetractionDate,OriginalPaperDOI,OriginalPaperPubMedID,RetractionNature,Reason\n"


def test_a_list_of_retractions_is_read_as_notices(tmp_path: Path) -> None:
    lines = (
        "1,Fake,1/31/2025 0:00,10.9999/Demo.77,77,Retraction,+Fabrication;+Plagiarism;",
        "2,No PMID,,10.9999/demo.78,0,Retraction,",
        "3,No DOI,1/2/2025 0:00,unavailable,79,Retraction,",
        "4,None,1/2/2025 0:00,unavailable,0,Retraction,",
        "5,Corrected,1/2/2025 0:00,,80,Correction,",
        "6,Doubted,1/2/2025 0:00,,81,Expression of concern,",
        "7,Back,1/2/2024 0:00,,82,Retraction,",
        "8,Back,5/2/2024 0:00,,82,Reinstatement,",
        '9,"open',
    )
    documents, found = read(tmp_path, "a.csv", HEADER + "\n".join(lines))
    assert not documents
    out = [each for each in found if isinstance(each, Withdrawn)]
    assert [each.names for each in out] == [("pmid:77", "doi:10.9999/demo.77"), ("doi:10.9999/demo.78",), ("pmid:79",)]
    assert (out[0].where, out[0].reason) == (
        "a.csv, line 2",
        "was retracted on 2025-01-31 (Fabrication;Plagiarism)",
    )
    others = [each.reason for each in found if not isinstance(each, Withdrawn)]
    assert "quote" in others[0]
    assert others[1] == (
        "keeps no document out by 4 of its notices: 1 notice without PMID and DOI, 1 correction, "
        "1 expression of concern, 1 reinstatement"
    )


@pytest.mark.parametrize("first", ["documents", "list"])
def test_a_list_of_retractions_takes_documents_out(tmp_path: Path, first: str) -> None:
    index = tmp_path / "index"
    found = rows(
        tmp_path / "a.jsonl",
        {"id": "own", "doi": "10.9999/demo.77", "text": "Wrong."},
        {"id": "fine", "doi": "10.9999/demo.1", "text": "Right."},
    )
    listed = tmp_path / "watch.csv"
    listed.write_text(HEADER + "1,Fake,1/2/2025 0:00,10.9999/demo.77,77,Retraction,\n2,X,,10.9/x,,Retraction,\n")
    article = pubmed(tmp_path / "b", 1, record(77, "Wrong too."), record(78, "Fine."))
    if first == "documents":
        add(index, found)
        add(index, article)
        assert add(index, listed) == {"retracted": 2, "notices": 1}
    else:
        add(index, pubmed(tmp_path / "c", 1, record(5, "Other.")))
        assert add(index, listed) == {"notices": 2}
        assert add(index, found) == {"added": 1, "kept out": 1}
        assert add(index, article) == {"added": 1, "kept out": 1}
    assert {"fine", "pmid:78"} <= set(held(index))
    assert not {"own", "pmid:77"} & set(held(index))


def test_removing_a_row_keeps_others_with_its_doi(tmp_path: Path) -> None:
    index = tmp_path / "index"
    path = rows(tmp_path / "a.jsonl", *({"id": f"p{n}", "doi": "10.1/x", "text": f"Part {n}."} for n in range(3)))
    add(index, path)
    remove_from_index(index, ["p1"])
    path.touch()
    add(index, path)
    assert set(held(index)) == {"p0", "p2"}


def linked(kind: str, pmid: int) -> str:
    link = f"<CommentsCorrections RefType='{kind}'><PMID>{pmid}</PMID></CommentsCorrections>"
    return f"<CommentsCorrectionsList>{link}</CommentsCorrectionsList>"


def preprint_record(pmid: int, text: str, inside: str = "") -> str:
    kinds = "<PublicationTypeList><PublicationType>Preprint</PublicationType></PublicationTypeList></Article>"
    return record(pmid, text, inside=inside).replace("</Article>", kinds)


def jats(doi: str, kind: str, text: str, related: str = "", to: str = "") -> str:
    link = f'<related-article related-article-type="{related}" ext-link-type="doi" xlink:href="{to}"/>' if to else ""
    return (
        f'<article xmlns:xlink="http://www.w3.org/1999/xlink" article-type="{kind}"><front><article-meta><article-id '
        f'pub-id-type="doi">{doi}</article-id><title-group><article-title>T</article-title></title-group>{link}'
        f"</article-meta></front><body><p>{text}</p></body></article>"
    )


def pmc(id_: str, source: str, text: str, link: dict[str, str] | None = None, **more: str) -> str:
    links = {"commentCorrectionList": {"commentCorrection": [link]}} if link else {}
    return json.dumps([{"id": id_, "source": source, "title": "T", "abstractText": text, **links, **more}])


def pubmed_file(*records: str) -> str:
    return f"<PubmedArticleSet>{''.join(records)}</PubmedArticleSet>"


BIORXIV = {"server": "medrxiv", "doi": "10.1101/p", "title": "T", "abstract": "Early.", "published": "10.9999/a"}
ARTICLE, EARLY = record(8, "Final."), preprint_record(7, "Early.")
# Names and contents of a file with the preprint and of one with the article.
PAIRS = [
    (("p.xml", pubmed_file(preprint_record(7, "Early.", linked("UpdateIn", 8)))), ("a.xml", pubmed_file(ARTICLE))),
    (("p.xml", pubmed_file(EARLY)), ("a.xml", pubmed_file(record(8, "Final.", inside=linked("UpdateOf", 7))))),
    (
        ("p.nxml", jats("10.1101/p", "preprint", "Early.")),
        ("a.nxml", jats("10.9999/a", "research-article", "Final.", "preprint", "https://doi.org/10.1101/P")),
    ),
    (
        ("p.nxml", jats("10.1101/p", "preprint", "Early.", "published-article", "10.9999/A")),
        ("a.nxml", jats("10.9999/a", "research-article", "Final.")),
    ),
    (
        ("p.json", pmc("PPR5", "PPR", "Early.", {"type": "Preprint of", "id": "8", "source": "MED"})),
        ("a.xml", pubmed_file(ARTICLE)),
    ),
    (
        ("p.json", pmc("PPR5", "PPR", "Early.", doi="10.1101/p")),
        ("a.json", pmc("8", "MED", "Final.", {"type": "Preprint in", "id": "PPR5", "source": "PPR"})),
    ),
    (
        ("p.json", json.dumps({"messages": [{"status": "ok"}], "collection": [BIORXIV]})),
        ("a.json", pmc("8", "MED", "Final.", doi="10.9999/A")),
    ),
    (
        ("p.jsonl", json.dumps({"id": "mine", "doi": "10.1101/p", "types": "preprint", "text": "Early."})),
        ("a.nxml", jats("10.9999/a", "research-article", "Final.", "preprint", "10.1101/p")),
    ),
    *(
        (
            ("p.nxml", jats(doi, "research-article", "Early.").replace("<article-meta>", f"{journal}<article-meta>")),
            ("a.nxml", jats("10.9999/a", "research-article", "Final.", "preprint", doi)),
        )
        for doi, journal in (
            ("10.1101/2021.01.01.21249999", ""),
            ("10.1101/s", "<journal-meta><journal-id>MEDRXIV</journal-id></journal-meta>"),
        )
    ),
]


@pytest.mark.parametrize("pair", PAIRS)
def test_a_preprint_yields_to_its_article(tmp_path: Path, pair: tuple[tuple[str, str], tuple[str, str]]) -> None:
    for number, order in enumerate([*permutations(pair), None]):
        folder, index = tmp_path / str(number), tmp_path / f"index{number}"
        folder.mkdir()
        for name, content in order or pair:
            (folder / name).write_text(content)
            counts = add(index, folder / name) if order else None
        if order is None:  # both in a call
            counts = add(index, folder)
        assert list(held(index).values()) == ["Final."]
        assert counts is not None
        assert counts["superseded"] == 1
        assert not counts["skipped"]
        if order:  # and again
            add(index, folder)
            assert list(held(index).values()) == ["Final."]


@pytest.mark.parametrize("pair", PAIRS)
def test_a_preprint_without_its_article_is_marked(tmp_path: Path, pair: tuple[tuple[str, str], ...]) -> None:
    (name, content), _ = pair
    (tmp_path / name).write_text(content)
    add(tmp_path / "index", tmp_path / name)
    retriever = HybridRetriever(str(tmp_path / "index"))
    (passage,) = retriever.passages
    retriever.close()
    assert "Preprint" in passage.about.types
    assert passage.about.notices == ("preprint, not peer-reviewed",)


def test_changes_say_why_a_preprint_went(tmp_path: Path) -> None:
    changes = Changes()
    for name, content in PAIRS[0]:
        (tmp_path / name).write_text(content)
    build_index(tmp_path / "p.xml", tmp_path / "index", SMALL)
    add_to_index(tmp_path / "index", tmp_path / "a.xml", changes=changes)
    assert ("superseded", "pmid:7", "its article pmid:8 is indexed") in changes.rows


def test_an_update_of_a_review_replaces_no_other_document(tmp_path: Path) -> None:
    update = record(8, "New review.", inside=linked("UpdateOf", 7))
    path = pubmed(tmp_path / "a", 1, record(7, "Old review.", inside=linked("UpdateIn", 8)), update)
    add(tmp_path / "index", path)
    assert set(held(tmp_path / "index")) == {"pmid:7", "pmid:8"}


def test_lists_of_retractions_name_articles_in_several_ways(tmp_path: Path) -> None:
    lines = (
        "1,Float,1/31/2020 0:00,,45.0,Retraction,",
        "2,Two,1/31/2020 0:00,10.1/d;10.1/e,24;25,Retraction,",
        "3,Old,1/31/2020 0:00,10.1002/(SICI)3.0.CO;2-2,PMID: 31,Retraction,",
        "4,Part,1/31/2021 0:00,10.1/d,24,Reinstatement,",
        "5,N/A,1/31/2020 0:00,N/A,nan,Retraction,",
    )
    _, found = read(tmp_path, "a.csv", HEADER + "\n".join(lines))
    assert [each.names for each in found if isinstance(each, Withdrawn)] == [
        ("pmid:45",),
        ("pmid:24", "pmid:25", "doi:10.1/d", "doi:10.1/e"),
        ("pmid:31", "doi:10.1002/(sici)3.0.co;2-2"),
    ]


@pytest.mark.parametrize(
    ("retracted", "reinstated", "out"),
    [
        ("31/12/2020", "1/1/2019 0:00", True),
        ("", "1/1/2019 0:00", True),
        ("", "", True),
        ("1/31/2020 0:00", "", True),
        ("2020-01-31", "1/1/2019 0:00", True),
        ("2020-01-31", "2/1/2020 0:00", False),
    ],
)
def test_only_a_later_reinstatement_counts(tmp_path: Path, retracted: str, reinstated: str, out: bool) -> None:
    lines = f"1,T,{reinstated},10.1/i,29,Reinstatement,\n2,T,{retracted},10.1/i,29,Retraction,\n"
    _, found = read(tmp_path, "a.csv", HEADER + lines)
    assert any(isinstance(each, Withdrawn) for each in found) == out
