"""Small libraries that change: files of records and rows, and an index that follows them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from medagent.retrieval.index import add_to_index, build_index, sync_index
from medagent.retrieval.ingest_policy import Changes
from medagent.retrieval.search import HybridRetriever
from tests.retrieval.support import SMALL, problems


def record(pmid: int, text: str, *, revised: str = "", inside: str = "", title: str = "On fictolol.") -> str:
    date = f"<DateRevised><Year>{revised[:4]}</Year><Month>{revised[4:6]}</Month><Day>{revised[6:]}</Day></DateRevised>"
    return (
        f'<PubmedArticle><MedlineCitation><PMID Version="1">{pmid}</PMID>{date if revised else ""}<Article>'
        f"<ArticleTitle>{title}</ArticleTitle><Abstract><AbstractText>{text}</AbstractText></Abstract></Article>"
        f"{inside}</MedlineCitation></PubmedArticle>"
    )


def notice(pmid: int, *, by: int = 50) -> str:
    """A record that retracts another one."""
    link = f"<CommentsCorrections RefType='RetractionOf'><PMID>{pmid}</PMID></CommentsCorrections>"
    return record(by, "Notice.", inside=f"<CommentsCorrectionsList>{link}</CommentsCorrectionsList>", title="About it.")


def pubmed(folder: Path, number: int, *records: str, deleted: tuple[int, ...] = (), year: int = 25) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"pubmed{year}n{number:04d}.xml"
    gone = "".join(f"<PMID>{pmid}</PMID>" for pmid in deleted)
    tail = f"<DeleteCitation>{gone}</DeleteCitation>" if deleted else ""
    path.write_text(f"<PubmedArticleSet>{''.join(records)}{tail}</PubmedArticleSet>")
    return path


def rows(path: Path, *found: dict[str, object]) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text("".join(json.dumps({"source": "S", **row}) + "\n" for row in found))
    return path


def held(index: Path) -> dict[str, str]:
    """The passages by id."""
    retriever = HybridRetriever(str(index))
    try:
        return {passage.id: passage.text for passage in retriever.passages}
    finally:
        retriever.close()


def add(index: Path, path: Path) -> Counter[str]:
    changes = Changes()
    if (index / "manifest.json").exists():
        add_to_index(index, path, changes=changes)
    else:
        build_index(path, index, SMALL, changes=changes)
    assert not problems(index)
    return changes.counts


def synced(index: Path, folder: Path) -> Counter[str]:
    changes = Changes()
    sync_index(index, folder, changes=changes)
    assert not problems(index)
    return changes.counts
