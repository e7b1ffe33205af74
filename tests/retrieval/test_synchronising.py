"""An index follows its source: what is new, changed and gone, what several files have, and what comes back."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from medagent.retrieval.errors import IndexMismatchError
from medagent.retrieval.index import sync_index
from medagent.retrieval.ingest_policy import Changes
from medagent.retrieval.maintenance import remove_from_index, restore_in_index
from tests.retrieval.libraries import add, held, notice, pubmed, record, rows, synced


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
    monkeypatch.setattr("medagent.retrieval.corpora.READINGS", {})
    monkeypatch.setattr("medagent.retrieval.readers.pages.expand_ligatures", lambda text: text + " OLD")
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
