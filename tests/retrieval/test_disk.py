"""A disk that is full, read-only or was: one line that names the remedy, and the same command goes on."""

from __future__ import annotations

import errno
import sqlite3
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from chromadb.errors import InternalError

from medagent.cli import main as cli
from medagent.cli.main import main
from medagent.retrieval.embedders import HashedNgramEmbedder
from medagent.retrieval.errors import IndexMismatchError, IndexUnwritableError
from medagent.retrieval.index import build_index
from medagent.retrieval.lexical import LexicalIndex
from medagent.retrieval.locking import ReadLock, explain_disk_errors, writing
from medagent.retrieval.maintenance import rebuild_index
from medagent.retrieval.passages import Passage
from medagent.retrieval.search import HybridRetriever
from medagent.retrieval.store import PassageStore
from medagent.retrieval.vectors import ChromaVectors
from tests.retrieval.support import problems

EMBEDDER = HashedNgramEmbedder(64)
PASSAGES = [Passage.make(f"Drug {i}", f"Drug {i} treats disease {i % 7}.", id=f"p{i}") for i in range(1500)]
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
        (ChromaVectors, "match", 1, InternalError("error returned from database: (code: 13) database or disk is full")),
        (ChromaVectors, "fit_search", 1, InternalError("Query error: No space left on device (os error 28)")),
        (LexicalIndex, "build", 1, FULL),
    ],
)
def test_after_a_full_disk_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: Any, name: str, call: int, error: Exception
) -> None:
    with monkeypatch.context() as patched:
        fail(patched, of, name, call, error)
        with pytest.raises(IndexUnwritableError, match="the disk is full .* run the same command again"):
            build_index(PASSAGES, tmp_path / "index", EMBEDDER)
    again = build_index(PASSAGES, tmp_path / "index", EMBEDDER)
    fresh = build_index(PASSAGES, tmp_path / "fresh", EMBEDDER)
    assert (again.content_sha256, again.embeddings_sha256) == (fresh.content_sha256, fresh.embeddings_sha256)
    assert not problems(tmp_path / "index", EMBEDDER)


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
    build_index(PASSAGES, tmp_path / "index", EMBEDDER)
    return tmp_path / "index"


def test_chromas_files_that_a_full_disk_broke_are_made_anew(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = InternalError("Error in compaction: Failed to apply logs to the hnsw segment writer")
    fail(monkeypatch, ChromaVectors, "match", 1, broken)
    rebuild_index(index)
    assert not problems(index, EMBEDDER)


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
    assert not problems(index, EMBEDDER)
    assert HybridRetriever(str(index)).search(["Drug 77"], top_k=1)[0][0].passage.id == "p77"


def test_damaged_passages_cannot_be_repaired(index: Path) -> None:
    with sqlite3.connect(index / "passages.sqlite") as database:
        database.execute("UPDATE passages SET text = 'other' WHERE id = 'p3'")
    with pytest.raises(IndexMismatchError, match="passages.sqlite from a backup"):
        rebuild_index(index, EMBEDDER)


def test_a_folder_that_cannot_be_locked_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()  # whoever the tests run as, a folder is no lock file
    with pytest.raises(IndexUnwritableError, match="right to write"), writing(tmp_path):
        pass
    (tmp_path / "readers").touch()
    with pytest.raises(IndexUnwritableError, match="right to write"):
        ReadLock(tmp_path)
