"""Indexes that were interrupted, damaged or lost, and disks that are full or read-only."""

from __future__ import annotations

import errno
import os
import sqlite3
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chromadb.api.models.Collection import Collection
from chromadb.errors import InternalError

from medagent.cli import main as cli
from medagent.cli.main import main
from medagent.retrieval.access import ReadLock, explain_disk_errors, writing
from medagent.retrieval.corpora import file_corpus
from medagent.retrieval.embedders import HashedNgramEmbedder
from medagent.retrieval.errors import CorpusError, IndexMismatchError, IndexUnwritableError
from medagent.retrieval.filters import Filter
from medagent.retrieval.index import add_to_index, build_index, open_chroma, open_vectors
from medagent.retrieval.lexical import LexicalIndex
from medagent.retrieval.maintenance import index_stats, rebuild_index, remove_from_index
from medagent.retrieval.manifest import Manifest
from medagent.retrieval.passages import Passage
from medagent.retrieval.readers import Skipped
from medagent.retrieval.search import HybridRetriever
from medagent.retrieval.store import PassageStore
from medagent.retrieval.vectors import ChromaVectors
from tests.retrieval.support import PASSAGES, SMALL, CountingEmbedder, problems


def test_an_interrupted_build_is_never_taken_for_the_whole_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("medagent.retrieval.ingest.BATCH", 8)
    with pytest.raises(KeyboardInterrupt):
        build_index(PASSAGES, tmp_path, CountingEmbedder(fail_after=16))
    with pytest.raises(IndexMismatchError, match="read by half"):
        rebuild_index(tmp_path)
    with pytest.raises(IndexMismatchError, match="read by half"):
        remove_from_index(tmp_path, [PASSAGES[0].id])
    assert build_index(PASSAGES, tmp_path, SMALL).num_passages == 40
    more = [Passage.make("new", f"note {i}") for i in range(20)]
    with pytest.raises(KeyboardInterrupt):
        add_to_index(tmp_path, more, CountingEmbedder(fail_after=8))
    with pytest.raises(IndexMismatchError, match="read by half"):
        build_index(PASSAGES, tmp_path, SMALL)
    assert add_to_index(tmp_path, more, SMALL).num_passages == 60
    assert not problems(tmp_path)


def test_a_removal_killed_on_the_way_is_finished_by_rebuild(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_index(PASSAGES, tmp_path, SMALL)

    def killed_here(self: PassageStore) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr(PassageStore, "blank_gaps", killed_here)
        with pytest.raises(KeyboardInterrupt):
            remove_from_index(tmp_path, [PASSAGES[3].id])
    with pytest.raises(IndexMismatchError, match="index rebuild"):
        HybridRetriever(str(tmp_path))
    assert rebuild_index(tmp_path).num_passages == 39
    assert not problems(tmp_path)
    vectors = np.fromfile(tmp_path / "embeddings.f32", dtype=np.float32).reshape(-1, 64)
    assert [row for row in range(40) if not np.any(vectors[row])] == [3]


def test_a_damaged_index_refuses_rebuild_add_and_remove(tmp_path: Path) -> None:
    build_index(PASSAGES, tmp_path, SMALL)
    with (tmp_path / "embeddings.f32").open("r+b") as file:
        file.write(np.float32(9).tobytes())
    more = [Passage.make("new", "note")]
    for change, *arguments in ((rebuild_index,), (add_to_index, more, SMALL), (remove_from_index, ["x"])):
        with pytest.raises(IndexMismatchError, match="not those it was built with"):
            change(tmp_path, *arguments)
    store = PassageStore(tmp_path, 64)
    (tmp_path / "embeddings.f32").write_bytes(b"short")
    with pytest.raises(IndexMismatchError, match="5 bytes, wanted"):
        store.append([], np.zeros((0, 64), np.float32), parts={})
    store.close()


def test_an_empty_corpus_does_not_replace_an_index(tmp_path: Path) -> None:
    build_index(PASSAGES, tmp_path, SMALL)
    with pytest.raises(CorpusError, match="was left as it is"):
        build_index([], tmp_path, SMALL, overwrite=True)
    assert len(HybridRetriever(str(tmp_path)).search(["agent7"], top_k=1)[0]) == 1


def test_ids_that_look_like_made_suffixes_keep_their_passages(tmp_path: Path) -> None:
    second = Passage("x", "t", "two")
    passages = [Passage("x", "t", "one"), Passage(f"x~{second.digest[:8]}", "t", "three"), second]
    build_index(passages, tmp_path, SMALL)
    assert {p.text for p in HybridRetriever(str(tmp_path)).passages} == {"one", "two", "three"}


def test_a_failing_disk_stops_the_build_and_a_damaged_file_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        (tmp_path / f"{name}.xml").write_text('<?xml version="1.0" encoding="GBK"?><PubmedArticleSet/>')
    (tmp_path / "c.md").write_text("# Only\n\n# Headings\n")
    (tmp_path / "d.txt").write_text("Text.")
    build_index(file_corpus(tmp_path), tmp_path / "index", SMALL)
    skipped = index_stats(tmp_path / "index")["skipped_documents"]
    assert [line.split()[0] for line in skipped] == ["a.xml", "b.xml", "c.md"]

    def broken(self: Path, *args: object, **kwargs: object) -> None:
        raise OSError(5, "Input/output error")

    corpus = file_corpus(tmp_path / "d.txt")
    monkeypatch.setattr(Path, "open", broken)
    with pytest.raises(CorpusError, match=r"Input/output error.*run the same command again"):
        list(corpus.parts[0].read())
    monkeypatch.undo()
    (tmp_path / "d.txt").unlink()
    with pytest.raises(CorpusError, match="No such file"):
        list(corpus.parts[0].read())


def test_what_a_folder_hides_is_counted(tmp_path: Path) -> None:
    corpus, elsewhere = tmp_path / "c", tmp_path / "elsewhere"
    for folder in (corpus, elsewhere):
        folder.mkdir()
        (folder / "a.jsonl").write_text('{"text": "a"}\n')
    for name in ("zero.jsonl", "b.png"):
        (corpus / name).touch()
    (corpus / "linked").symlink_to(elsewhere)
    (corpus / "file.jsonl").symlink_to(elsewhere / "a.jsonl")
    (corpus / "broken.jsonl").symlink_to(tmp_path / "nowhere")
    (corpus / "locked").mkdir(mode=0)
    read = {part.name: [item for item, _ in part.read()] for part in file_corpus(corpus).parts}
    reasons = {name: found[0].reason for name, found in read.items() if isinstance(found[0], Skipped)}
    assert len(read["a.jsonl"]) == len(read["file.jsonl"]) == 1
    wanted = {"zero.jsonl": "is empty", "b.png": "kind", "linked": "link to a folder", "broken.jsonl": "leads nowhere"}
    if os.geteuid():  # root enters every folder
        wanted["locked"] = "cannot be entered"
    assert set(reasons) == set(wanted)
    assert all(part in reasons[name] for name, part in wanted.items())
    (corpus / "locked").chmod(0o700)


def test_small_files_are_embedded_and_committed_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes").mkdir()
    for i in range(50):
        (tmp_path / "notes" / f"{i:02d}.txt").write_text(f"Note number {i}.")
    sizes: list[int] = []
    embed = SMALL.embed_passages
    monkeypatch.setattr(SMALL, "embed_passages", lambda passages: sizes.append(len(passages)) or embed(passages))
    monkeypatch.setattr("medagent.retrieval.ingest.BATCH", 20)
    build_index(file_corpus(tmp_path / "notes"), tmp_path / "index", SMALL)
    assert sizes == [20, 20, 10]
    assert len(PassageStore(tmp_path / "index", 64).parts()) == 50


@pytest.mark.parametrize("damage", ["vector", "text", "lost vector", "bm25", "model"])
def test_verify_finds_damage(tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build_index(PASSAGES, tmp_path, SMALL)
    assert not problems(tmp_path)
    if damage == "vector":
        with (tmp_path / "embeddings.f32").open("r+b") as file:
            file.write(np.float32(9).tobytes())
        wanted = {"the vectors' digest is the manifest's", "some passages embed to their stored vectors"}
        assert set(problems(tmp_path)) == wanted | {"Chroma holds these passages and vectors"}
    elif damage == "text":
        store = PassageStore(tmp_path, 64)
        store._db.execute("UPDATE passages SET text = 'changed' WHERE row = 3")
        store._db.commit()
        store.close()
        assert "the passages' digest is the manifest's" in problems(tmp_path)
        assert "BM25 is what the passages give" in problems(tmp_path)
    elif damage == "lost vector":
        vectors = open_vectors(tmp_path, Manifest.read(tmp_path))
        vectors.collection.delete(ids=["5"])
        with pytest.raises(IndexMismatchError, match="index rebuild"):
            problems(tmp_path)
        rebuild_index(tmp_path)
        assert not problems(tmp_path)
    elif damage == "bm25":
        path = tmp_path / "bm25" / "rows.npy"
        np.save(path, np.load(path)[::-1])
        assert set(problems(tmp_path)) == {"BM25 is what the passages give"}
    else:
        changed = HashedNgramEmbedder(64)
        monkeypatch.setattr(changed, "embed_queries", lambda texts: -SMALL.embed_queries(texts))
        with pytest.raises(IndexMismatchError, match="its model changed"):
            HybridRetriever(str(tmp_path), changed)


def test_lost_and_foreign_files_are_explained(tmp_path: Path) -> None:
    with pytest.raises(IndexMismatchError, match="medagent index build"):
        HybridRetriever(str(tmp_path / "nowhere"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    with pytest.raises(IndexMismatchError, match="other files"):
        build_index(PASSAGES, tmp_path / "mine", SMALL)
    out = tmp_path / "index"
    build_index(PASSAGES, out, SMALL)
    with pytest.raises(IndexMismatchError, match="hashed-ngrams:64"):
        HybridRetriever(str(out), HashedNgramEmbedder(128))
    open_chroma(out, Manifest.read(out)).drop()
    with pytest.raises(IndexMismatchError, match="index rebuild"):
        HybridRetriever(str(out))
    rebuild_index(out)
    (out / "embeddings.f32").write_bytes(b"short")
    with pytest.raises(IndexMismatchError, match="5 bytes, wanted 10,240"):
        HybridRetriever(str(out)).search_where(["x"], top_k=1, where=Filter.of(["test"]))
    for broken in ('{"format": 1}', "not json", '{"format": 3}'):
        (out / "manifest.json").write_text(broken)
        with pytest.raises(IndexMismatchError, match=r"format 1 found|damaged"):
            Manifest.read(out)
    (out / "passages.sqlite").write_bytes(b"no database, but long enough to look at" * 50)
    with pytest.raises(IndexMismatchError, match="cannot be read"):
        PassageStore(out, 64)


DRUGS = [Passage.make(f"Drug {i}", f"Drug {i} treats disease {i % 7}.", id=f"p{i}") for i in range(1500)]
FULL = OSError(errno.ENOSPC, "No space left on device")


def fail(monkeypatch: pytest.MonkeyPatch, of: Any, name: str, call: int, error: Exception) -> None:
    """Let a method raise an error at its so manieth call."""
    method, calls = getattr(of, name), count(1)

    def failing(*args: Any, **more: Any) -> Any:
        if next(calls) == call:
            raise error
        return method(*args, **more)

    monkeypatch.setattr(of, name, staticmethod(failing) if name == "build" else failing)


@pytest.mark.parametrize(
    ("of", "name", "call", "error"),
    [
        (PassageStore, "_write_vectors", 2, FULL),
        (PassageStore, "append", 2, sqlite3.OperationalError("database or disk is full")),
        (
            ChromaVectors,
            "_match",
            1,
            InternalError("error returned from database: (code: 13) database or disk is full"),
        ),
        (Collection, "modify", 1, InternalError("Query error: No space left on device (os error 28)")),
        (LexicalIndex, "build", 1, FULL),
    ],
)
def test_after_a_full_disk_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: Any, name: str, call: int, error: Exception
) -> None:
    with monkeypatch.context() as patched:
        fail(patched, of, name, call, error)
        with pytest.raises(IndexUnwritableError, match="the disk is full .* run the same command again"):
            build_index(DRUGS, tmp_path / "index", SMALL)
    again = build_index(DRUGS, tmp_path / "index", SMALL)
    fresh = build_index(DRUGS, tmp_path / "fresh", SMALL)
    assert (again.content_sha256, again.embeddings_sha256) == (fresh.content_sha256, fresh.embeddings_sha256)
    assert not problems(tmp_path / "index")


def test_what_the_disk_refuses_is_told_and_other_failures_keep_their_words(tmp_path: Path) -> None:
    denied = OSError(errno.EACCES, "Permission denied", str(tmp_path / "passages.sqlite"))
    read_only = (OSError(errno.EROFS, "Read-only file system"), denied)
    for error, wanted, said in (
        *((each, IndexUnwritableError, "cannot be written") for each in read_only),
        (sqlite3.OperationalError("attempt to write a readonly database"), IndexUnwritableError, "cannot be written"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), IndexUnwritableError, "the disk is full"),
        (OSError(errno.EACCES, "Permission denied", "/elsewhere/a.pdf"), OSError, "Permission denied"),
        (sqlite3.OperationalError("no such table"), sqlite3.OperationalError, "no such table"),
    ):
        with pytest.raises(wanted, match=said), explain_disk_errors(tmp_path):
            raise error


def test_a_full_disk_elsewhere_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fail(monkeypatch, cli, "auto_cli", 1, FULL)
    assert main(["search", "gout"]) == 1
    said = "No space left on device. Free some space, or write elsewhere, and run the command again.\n"
    assert capsys.readouterr().err == f"medagent: [Errno 28] {said}"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    build_index(DRUGS, tmp_path / "index", SMALL)
    return tmp_path / "index"


def test_chromas_files_that_a_full_disk_broke_are_made_anew(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = InternalError("Error in compaction: Failed to apply logs to the hnsw segment writer")
    fail(monkeypatch, ChromaVectors, "_match", 1, broken)
    rebuild_index(index)
    assert not problems(index)


@pytest.mark.parametrize("damage", ["vectors", "words", "both"])
def test_repair_makes_afresh_what_passages_give(index: Path, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    if damage != "words":
        vectors = index / "embeddings.f32"
        vectors.write_bytes(vectors.read_bytes()[:-1000])
    if damage != "vectors":
        (index / "bm25" / "rows.npy").unlink()
    if damage == "words":
        assert main(["index", "verify", str(index)]) == 1
    capsys.readouterr()
    assert main(["index", "verify", str(index), "--repair"]) == 0
    assert "PROBLEM" not in capsys.readouterr().out
    assert not problems(index)
    assert HybridRetriever(str(index)).search(["Drug 77"], top_k=1)[0][0].passage.id == "p77"


def test_damaged_passages_cannot_be_repaired(index: Path) -> None:
    with sqlite3.connect(index / "passages.sqlite") as database:
        database.execute("UPDATE passages SET text = 'other' WHERE id = 'p3'")
    with pytest.raises(IndexMismatchError, match="passages.sqlite from a backup"):
        rebuild_index(index, SMALL)


def test_a_folder_that_cannot_be_locked_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()  # whoever the tests run as, a folder is no lock file
    with pytest.raises(IndexUnwritableError, match="right to write"), writing(tmp_path):
        pass
    (tmp_path / "readers").touch()
    with pytest.raises(IndexUnwritableError, match="right to write"):
        ReadLock(tmp_path)
