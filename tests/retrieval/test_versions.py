"""Documents by name and version: newer ones replace older ones, an index follows its source, and removals last."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from medagent.retrieval import formats
from medagent.retrieval.corpora import file_corpus
from medagent.retrieval.errors import IndexMismatchError
from medagent.retrieval.index import build_index, sync_index
from medagent.retrieval.ingest_policy import Changes
from medagent.retrieval.maintenance import remove_from_index, restore_in_index
from medagent.retrieval.remote import open_index
from medagent.retrieval.store import PassageStore
from tests.retrieval.libraries import add, held, notice, pubmed, record, rows, synced
from tests.retrieval.support import CountingEmbedder


@pytest.mark.parametrize("at_once", [True, False])
def test_a_revised_record_replaces_the_older_one(tmp_path: Path, at_once: bool) -> None:
    index, folder = tmp_path / "index", tmp_path / "pubmed"
    old = pubmed(folder, 1, record(1, "The starting dose was 50 mg."), record(2, "Other."))
    new = pubmed(folder, 1276, record(1, "The starting dose was 5 mg."))
    if at_once:
        assert add(index, folder) == {"added": 2, "replaced": 1}
    else:
        add(index, old)
        assert add(index, new) == {"replaced": 1}
    assert held(index) == {"pmid:1": "The starting dose was 5 mg.", "pmid:2": "Other."}


def test_files_out_of_order_and_repeated_do_not_bring_old_words_back(tmp_path: Path) -> None:
    index, folder = tmp_path / "index", tmp_path / "pubmed"
    add(index, pubmed(folder, 5, record(1, "Newer.")))
    assert add(index, pubmed(folder, 3, record(1, "Older."))) == {"older": 1}
    assert add(index, pubmed(folder, 9, record(1, "Newer."))) == {"unchanged": 1}
    assert add(index, pubmed(folder, 7, record(1, "Between."))) == {"older": 1}
    assert add(index, pubmed(folder, 1, record(1, "Revised.", revised="20260101"), year=26)) == {"replaced": 1}
    assert held(index) == {"pmid:1": "Revised."}


def test_deletions_go_by_the_place_of_their_file(tmp_path: Path) -> None:
    index, folder = tmp_path / "index", tmp_path / "pubmed"
    add(index, pubmed(folder, 1, record(1, "One."), record(2, "Two."), record(3, "Three.")))
    assert add(index, pubmed(folder, 4, deleted=(1, 99))) == {"deleted": 1, "skipped": 1}
    assert set(held(index)) == {"pmid:2", "pmid:3"}
    assert add(index, pubmed(folder, 2, record(1, "One."))) == {"kept out": 1}
    assert add(index, pubmed(folder, 3, record(99, "Late."))) == {"kept out": 1}
    assert add(index, pubmed(folder, 6, record(1, "One again."))) == {"added": 1}
    assert add(index, pubmed(folder, 5, deleted=(1,))) == {"older": 1}
    assert set(held(index)) == {"pmid:1", "pmid:2", "pmid:3"}


@pytest.mark.parametrize("first", ["article", "notice"])
def test_a_notice_takes_the_article_out_now_and_later(tmp_path: Path, first: str) -> None:
    index = tmp_path / "index"
    article = pubmed(tmp_path / "a", 1, record(1, "Wrong."))
    other = pubmed(tmp_path / "b", 2, notice(1), record(3, "Fine."))
    for path in (article, other) if first == "article" else (other, article):
        add(index, path)
    assert set(held(index)) == {"pmid:3"}
    assert add(index, pubmed(tmp_path / "c", 9, record(1, "Wrong, again.")))["kept out"] == 1


@pytest.mark.parametrize("how", ["touch", "move", "name the file", "other id"])
def test_what_was_removed_stays_out_until_it_is_restored(tmp_path: Path, how: str) -> None:
    index, folder = tmp_path / "index", tmp_path / "c"
    path = rows(folder / "a.jsonl", {"id": "gone", "text": "A wrong claim."}, {"id": "stays", "text": "A sound text."})
    add(index, folder)
    remove_from_index(index, ["gone"])
    if how == "touch":
        os.utime(path, (1, 1))
    elif how == "move":
        folder = folder.rename(tmp_path / "moved")
    elif how == "name the file":
        folder = path
    else:
        rows(path, {"id": "renamed", "text": "A wrong claim."}, {"id": "stays", "text": "A sound text."})
    counts = add(index, folder)
    assert counts["kept out"] == 1
    assert set(held(index)) == {"stays"}
    restore_in_index(index, ["gone"])
    with pytest.raises(IndexMismatchError, match="nothing was removed"):
        restore_in_index(index, ["gone"])
    os.utime(folder / "a.jsonl" if folder.is_dir() else folder, (2, 2))
    add(index, folder)
    assert len(held(index)) == 2


def test_one_passage_of_a_document_can_stay_out(tmp_path: Path) -> None:
    index = tmp_path / "index"
    text = "\n\n".join(f"## Part {n}\n\nSentence {n} on fictolol." for n in range(3))
    (tmp_path / "a.md").write_text(f"# Guide\n\n{text}")
    add(index, tmp_path / "a.md")
    ids = list(held(index))
    remove_from_index(index, [ids[1]])
    os.utime(tmp_path / "a.md", (1, 1))
    add(index, tmp_path / "a.md")
    assert set(held(index)) == {ids[0], ids[2]}


def test_two_documents_of_the_same_words_keep_their_names(tmp_path: Path) -> None:
    index = tmp_path / "index"
    counting = CountingEmbedder()
    same = ({"id": f"doc{n}", "text": "The same words.", "source": f"s{n}"} for n in range(3))
    path = rows(tmp_path / "a.jsonl", *same)
    build_index(file_corpus(path), index, counting)
    assert counting.embedded == 1
    assert set(held(index)) == {"doc0", "doc1", "doc2"}
    store = PassageStore(index, 64)
    assert np.all(store.vectors()[0] == store.vectors()[2])
    store.close()
    remove_from_index(index, ["doc1"])
    assert set(held(index)) == {"doc0", "doc2"}, "the others were not asked for"


def test_ids_that_many_files_use_do_not_overwrite_one_another(tmp_path: Path) -> None:
    index, folder = tmp_path / "index", tmp_path / "c"
    rows(folder / "a.jsonl", {"id": "1", "text": "One of a."}, {"id": "intro", "text": "Intro of a."})
    rows(folder / "b.jsonl", {"id": "1", "text": "One of b."}, {"id": "intro", "text": "Intro of b."})
    assert add(index, folder) == {"added": 4, "told apart": 2}
    assert add(index, rows(tmp_path / "d" / "c.jsonl", {"id": "1", "text": "One of c."}))["told apart"] == 1
    assert len(held(index)) == 5
    revised = rows(tmp_path / "d" / "new.jsonl", {"id": "intro", "text": "Revised intro."})
    assert add(index, revised) == {"replaced": 1}
    assert "Intro of a." not in held(index).values()


def test_files_of_one_name_in_two_folders_are_two_documents(tmp_path: Path) -> None:
    index = tmp_path / "index"
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "README.md").write_text(f"# Read\n\nOf {name}.")
        add(index, tmp_path / name)
    assert len(held(index)) == 2
    (tmp_path / "a").rename(tmp_path / "moved")
    (tmp_path / "moved" / "README.md").write_text("# Read\n\nOf a, revised.")
    assert add(index, tmp_path / "moved") == {"replaced": 1}
    assert sorted(held(index).values()) == ["Of a, revised.", "Of b."]


def test_a_notice_reaches_every_holder_of_its_doi(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    ids = "<PubmedData><ArticleIdList><ArticleId IdType='doi'>10.1/AB</ArticleId></ArticleIdList></PubmedData>"
    pubmed(folder, 1, record(1, "Wrong.").replace("</PubmedArticle>", ids + "</PubmedArticle>"), record(2, "Fine."))
    (folder / "full.nxml").write_text(
        "<article><front><article-meta><article-id pub-id-type='pmc'>PMC42</article-id><article-id pub-id-type='doi'>"
        "10.1/ab</article-id></article-meta></front><body><p>Wrong, at length.</p></body></article>"
    )
    (folder / "z-notice.nxml").write_text(
        '<article xmlns:xlink="http://www.w3.org/1999/xlink" article-type="retraction"><front><article-meta>'
        '<related-article related-article-type="retracted-article" xlink:href="https://doi.org/10.1/AB"/>'
        "</article-meta></front></article>"
    )
    assert add(tmp_path / "index", folder)["retracted"] == 2
    assert set(held(tmp_path / "index")) == {"pmid:2"}


def test_an_index_of_another_format_is_refused(tmp_path: Path) -> None:
    index = tmp_path / "index"
    add(index, rows(tmp_path / "a.jsonl", {"id": "one", "text": "One."}))
    manifest = json.loads((index / "manifest.json").read_text())
    (index / "manifest.json").write_text(json.dumps({**manifest, "format": 2}))
    with pytest.raises(IndexMismatchError, match="format 2 found, 3 wanted. Build it again from its documents"):
        open_index(str(index))


def test_a_synchronised_index_is_what_its_source_is(tmp_path: Path) -> None:
    index, folder = tmp_path / "index", tmp_path / "c"
    rows(folder / "a.jsonl", {"id": "one", "text": "One."}, {"id": "two", "text": "Two."})
    rows(folder / "b.jsonl", {"id": "three", "text": "Three."})
    (folder / "guide.md").write_text("# Guide\n\nFirst edition.")
    add(index, folder)
    add(index, rows(tmp_path / "other.jsonl", {"id": "other", "text": "Of another source."}))
    rows(folder / "a.jsonl", {"id": "one", "text": "One, changed."}, {"id": "four", "text": "Four."})
    (folder / "b.jsonl").unlink()
    (folder / "guide.md").write_text("# Guide\n\nSecond edition.")
    wanted = {"added": 1, "replaced": 2, "gone": 2}
    before, foreseen = held(index), Changes()
    sync_index(index, folder, dry_run=True, changes=foreseen)
    assert (foreseen.counts, held(index)) == (wanted, before)
    assert synced(index, folder) == wanted
    assert sorted(held(index).values()) == ["Four.", "Of another source.", "One, changed.", "Second edition."]
    assert not synced(index, folder)
    (folder / "a.jsonl").rename(folder / "renamed.jsonl")
    assert synced(index, folder) == {"unchanged": 2}
    assert len(held(index)) == 4


def test_files_that_are_read_otherwise_now_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index, folder = tmp_path / "index", tmp_path / "c"
    rows(folder / "a.jsonl", {"id": "one", "text": "One."})
    (folder / "b.html").write_text("<title>B</title><p>Words that an older reader left as they were.</p>")
    older = replace(formats.READERS[".html"], reading=1)
    monkeypatch.setitem(formats.READERS, ".html", older)
    monkeypatch.setattr("medagent.retrieval.readers.html_text.expand_ligatures", lambda text: text + " OLD")
    add(index, folder)
    assert any("OLD" in text for text in held(index).values())
    monkeypatch.undo()
    assert synced(index, folder) == {"replaced": 1}
    assert not any("OLD" in text for text in held(index).values())


def test_what_another_file_still_has_is_not_lost(tmp_path: Path) -> None:
    index, folder = tmp_path / "index", tmp_path / "c"
    rows(folder / "a.jsonl", {"id": "x", "text": "X."}, {"id": "y", "text": "Y."})
    rows(folder / "b.jsonl", {"id": "x", "text": "X."})
    add(index, folder)
    (folder / "b.jsonl").unlink()
    synced(index, folder)
    assert set(held(index)) == {"x", "y"}
    rows(folder / "b.jsonl", {"id": "x", "text": "X."})
    synced(index, folder)
    rows(folder / "a.jsonl", {"id": "y", "text": "Y."})
    synced(index, folder)
    assert set(held(index)) == {"x", "y"}, "b still has it"


def test_a_source_that_cannot_be_read_has_lost_nothing(tmp_path: Path) -> None:
    index, folder = tmp_path / "index", tmp_path / "c"
    rows(folder / "a.jsonl", *({"id": f"a{n}", "text": f"Row {n} of a."} for n in range(50)))
    rows(folder / "b.jsonl", {"id": "b", "text": "B."})
    whole = gzip.compress((folder / "a.jsonl").read_bytes())
    (folder / "a.jsonl").unlink()
    (folder / "a.jsonl.gz").write_bytes(whole)
    add(index, folder)
    (folder / "a.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    assert not synced(index, folder)["gone"]
    (folder / "a.jsonl.gz").unlink()
    (folder / "a.jsonl.gz").symlink_to(tmp_path / "unmounted")
    assert not synced(index, folder)["gone"]
    assert len(held(index)) == 51
    (folder / "a.jsonl.gz").unlink()
    (folder / "a.jsonl.gz").write_bytes(whole)
    (folder / "b.jsonl").unlink()
    assert synced(index, folder)["gone"] == 1


def test_restoring_brings_back_what_was_taken_out(tmp_path: Path) -> None:
    index, folder = tmp_path / "index", tmp_path / "c"
    pubmed(folder, 1, record(1, "One."), record(2, "Two."))
    pubmed(folder, 2, notice(1))
    text = "\n\n".join(f"## Part {n}\n\nSentence {n} on fictolol." for n in range(3))
    (folder / "a.md").write_text(f"# Guide\n\n{text}")
    add(index, folder)
    everything = set(held(index))
    passage = next(id_ for id_, said in held(index).items() if "Sentence 1" in said)
    remove_from_index(index, [passage])
    with pytest.raises(IndexMismatchError, match="'nothing'"):
        restore_in_index(index, [passage, "nothing"])
    restore_in_index(index, [passage, "pmid:1"])
    synced(index, folder)
    assert set(held(index)) == {*everything, "pmid:1"}
    os.utime(folder / "pubmed25n0002.xml", (1, 1))
    synced(index, folder)
    assert "pmid:1" in held(index), "though the notice was read again"


def test_removing_one_leaves_those_that_say_or_are_called_the_same(tmp_path: Path) -> None:
    index, folder = tmp_path / "index", tmp_path / "c"
    a = rows(folder / "a.jsonl", {"id": "1", "text": "One of a."}, {"id": "x", "text": "The same."})
    b = rows(folder / "b.jsonl", {"id": "1", "text": "One of b."}, {"id": "y", "text": "The same."})
    add(index, folder)
    remove_from_index(index, ["1", "x"])
    for path in (a, b):
        os.utime(path, (1, 1))
    synced(index, folder)
    assert sorted(held(index).values()) == ["One of b.", "The same."]


def test_a_file_revised_beside_another_of_its_ids_replaces_its_own(tmp_path: Path) -> None:
    index, folder = tmp_path / "index", tmp_path / "c"
    rows(folder / "a.jsonl", {"id": "intro", "text": "Of a."})
    rows(folder / "b.jsonl", {"id": "intro", "text": "Give 50 mg."})
    add(index, folder)
    rows(folder / "b.jsonl", {"id": "intro", "text": "Give 5 mg."})
    add(index, folder)
    assert sorted(held(index).values()) == ["Give 5 mg.", "Of a."]
