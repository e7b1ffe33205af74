"""Indexes that a process may not write: what reads works and leaves no trace, what writes says why it refuses."""

from __future__ import annotations

import gc
import logging
import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from medagent.cli.main import main
from medagent.retrieval import access
from medagent.retrieval.errors import IndexMismatchError, IndexUnwritableError, RetrievalError
from medagent.retrieval.index import add_to_index, build_index, sync_index
from medagent.retrieval.maintenance import index_stats, rebuild_index, remove_from_index, restore_in_index
from medagent.retrieval.manifest import Manifest
from medagent.retrieval.query_match import set_synonyms
from medagent.retrieval.search import HybridRetriever
from tests.retrieval.support import PASSAGES, SMALL, problems


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build_index(PASSAGES, tmp_path / "index", SMALL)
    return tmp_path / "index"


@pytest.fixture
def read_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The index as who lacks the right to write sees it; the tests may run as root, who has every right."""
    real = os.access

    def denied(path: Path, mode: int) -> bool:
        return real(path, mode) and not (mode & os.W_OK and Path(path).is_relative_to(folder))

    monkeypatch.setattr(access.os, "access", denied)
    return folder


def state(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in (folder, *folder.rglob("*"))}


def test_reading_works_and_writes_nothing(read_only: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = state(read_only)
    with caplog.at_level(logging.WARNING), closing(HybridRetriever(str(read_only))) as one:
        assert one.search(["agent7"], top_k=1)[0][0].passage.title == "condition 7"
        with closing(HybridRetriever(str(read_only))) as second:
            assert second.search(["agent8"], top_k=1) == one.search(["agent8"], top_k=1)
    assert "copy of" in caplog.text
    assert "MB" in caplog.text
    assert not problems(read_only)
    assert index_stats(read_only)["passages"] == 40
    sync_index(read_only, PASSAGES, SMALL, dry_run=True)
    assert main(["ask", "What is first-line for condition 3?", "--agent", "none", "--index", str(read_only)]) == 0
    assert state(read_only) == before


def test_chromas_copy_is_deleted(read_only: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "copies").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "copies"))
    retriever = HybridRetriever(str(read_only))
    assert len(list((tmp_path / "copies").iterdir())) == 1
    retriever.close()  # a service that a signal ends does no more than that
    assert not list((tmp_path / "copies").iterdir())
    assert not problems(read_only)
    gc.collect()
    assert not list((tmp_path / "copies").iterdir())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(RetrievalError, match="TMPDIR"):
        HybridRetriever(str(read_only))


def test_writing_is_refused_with_the_cause(read_only: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, unread = state(read_only), tmp_path / "absent"
    changes = (
        lambda: add_to_index(read_only, str(unread)),
        lambda: sync_index(read_only, str(unread)),
        lambda: remove_from_index(read_only, [PASSAGES[0].id]),
        lambda: restore_in_index(read_only, ["x"]),
        lambda: rebuild_index(read_only),
        lambda: set_synonyms(read_only, unread),
        lambda: build_index(PASSAGES[:3], read_only, SMALL, overwrite=True),
        lambda: build_index(PASSAGES, read_only / "new", SMALL),
    )
    for change in changes:
        with pytest.raises(IndexUnwritableError, match=rf"user \d+ may not write {read_only}"):
            change()
    mounted = os.statvfs_result((*os.statvfs(read_only)[:8], os.ST_RDONLY, 255))
    monkeypatch.setattr(access.os, "statvfs", lambda path: mounted)
    with pytest.raises(IndexUnwritableError, match="read-only mount"):
        rebuild_index(read_only)
    assert state(read_only) == before


def test_a_change_by_another_process_is_noticed(read_only: Path) -> None:
    retriever = HybridRetriever(str(read_only), cache_size=0)
    Manifest.read(read_only).write(read_only)
    with pytest.raises(IndexMismatchError, match="Open it again"):
        retriever.search(["agent7"], top_k=1)
    assert HybridRetriever(str(read_only)).search(["agent7"], top_k=1)[0]


def test_tables_that_an_older_index_lacks_are_empty(
    folder: Path, read_only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite3.connect(folder / "passages.sqlite")) as database:
        database.execute("DROP TABLE left_out")
        database.execute("DROP TABLE withdrawn")
    found = index_stats(read_only)
    assert (found["left_out"], found["kept_out"], found["passages"]) == ([], [], 40)


def test_changes_in_sqlites_log_are_read_or_said_to_be_missing(read_only: Path) -> None:
    with closing(sqlite3.connect(read_only / "passages.sqlite")) as writer:  # still at work, or killed
        writer.execute("INSERT INTO skipped VALUES ('a.txt', 'is empty')")
        writer.commit()
        log = (read_only / "passages.sqlite-wal").read_bytes()
        assert index_stats(read_only)["skipped"] == 1
    (read_only / "passages.sqlite-wal").write_bytes(log)
    with pytest.raises(IndexUnwritableError, match=r"passages.sqlite-wal holds changes.*index stats") as caught:
        index_stats(read_only)
    assert "backup" not in str(caught.value)


def test_a_file_that_may_not_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.open

    def denied(self: Path, *args: str, **more: str) -> object:
        if self.name == "rows.npy":
            raise PermissionError(13, "Permission denied", str(self))
        return real(self, *args, **more)

    monkeypatch.setattr(Path, "open", denied)
    for read in (HybridRetriever, lambda name: index_stats(Path(name))):
        with pytest.raises(RetrievalError, match=r"may not read .*rows.npy\. Give it the right") as caught:
            read(str(folder))
        assert "rebuild" not in str(caught.value)


def test_a_file_that_sqlite_removes_while_the_rights_are_checked_refuses_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite removes its log when the last connection closes, so it may be listed and gone a moment later."""
    listed = [folder, folder / "passages.sqlite-wal"]
    assert not listed[1].exists()
    monkeypatch.setattr(access, "_places", lambda folder: listed)
    access.check_writable(folder)
    assert access.may_write(folder)
