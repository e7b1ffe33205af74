"""Chapters of books in BITS, as NCBI Bookshelf gives StatPearls and others."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from medagent.cli.main import main
from medagent.retrieval.corpora import file_corpus
from medagent.retrieval.embedders import HashedNgramEmbedder
from medagent.retrieval.index import build_index
from medagent.retrieval.search import HybridRetriever
from medagent.retrieval.store import PassageStore

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
    assert {section: passage.text for section, passage in found.items()} == {
        "Etiology": "Urate crystals cause it.",
        "Treatment": "Colchicine is given early.",
        "Treatment > Doses": "Drug: Colchicine; Dose: 1.2 mg",
    }
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
    assert {passage.document for passage in retriever.passages} | {passage.id for passage in retriever.passages} >= {
        f"statpearls:c{number}" for number in (1, 2, 3, 4)
    }
    assert {passage.source for passage in retriever.passages} == {"StatPearls"}
    assert len(retriever) == 4
    assert "topic3" in retriever.search(["topic3"], top_k=1)[0][0].passage.text


def test_a_chapter_without_text_is_said(tmp_path: Path) -> None:
    empty = part(5, kind="part")
    built(tmp_path / "c", f"<book>{META}<book-body>{part(1)}{empty}</book-body></book>").close()
    with closing(PassageStore(tmp_path / "c" / "index", 64)) as store:
        assert "is a chapter without text" in str(list(store.skipped(limit=5)))
