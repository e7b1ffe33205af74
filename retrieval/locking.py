"""An index has many readers, each with a lock file in `readers/`, or one writer, who holds `lock`.

The system releases the locks of a process that dies. A reader that may not write there holds no lock: it looks before
each search whether the index is still the one it opened.
"""

import errno
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from chromadb.errors import ChromaError
from filelock import FileLock, Timeout

from medagent.retrieval.access import check_writable, may_write
from medagent.retrieval.errors import IndexBusyError, IndexMismatchError, IndexUnwritableError

LOCKS = ("lock", "readers")
FULL, REFUSED = (errno.ENOSPC, errno.EDQUOT), (errno.EROFS, errno.EACCES, errno.EPERM)
SPARE = 2**20  # bytes; with fewer left a failure of Chroma, which does not say why, is put down to the disk


class ReadLock:
    """Held by a process that searches an index, from now until `close` or the end of the process."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, None
        self._opened = _version(folder)
        if not may_write(folder):
            return
        try:
            (folder / "readers").mkdir(exist_ok=True)
        except OSError as error:
            raise _unwritable(folder, error) from error
        with _held(folder / "lock", folder, "is being written by another process; try again when that is done"):
            # Process ids repeat over containers that share a volume, so they alone would not do as names.
            self._path = folder / "readers" / f"{os.getpid()}-{uuid4().hex[:8]}"
            self._lock = FileLock(self._path)
            self._lock.acquire(timeout=0)

    def check(self) -> None:
        """An error where another process changed the index, which it may where this one could not lock it."""
        if self._lock is None and _version(self._folder) != self._opened:
            raise IndexMismatchError(
                f"index {self._folder}: was changed while it was open here, where it cannot be locked. Open it again."
            )

    def close(self) -> None:
        """Let writers in again."""
        if self._lock is not None and self._lock.is_locked:
            self._lock.release()
            self._path.unlink(missing_ok=True)


def _version(folder: Path) -> tuple[int, int] | None:
    """What changes with each new manifest, which a writer writes first and last."""
    path = folder / "manifest.json"
    return (path.stat().st_ino, path.stat().st_mtime_ns) if path.exists() else None


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """The right to change an index; an error that names the process where the index is open."""
    check_writable(folder)
    with _held(folder / "lock", folder, "is being written by another process; wait for it, or stop it"):
        for path in sorted((folder / "readers").glob("*")):
            process = path.name.partition("-")[0]
            advice = "stop that process first (training, serving and searching keep an index open)"
            with _held(path, folder, f"is open in process {process}; {advice}"):
                path.unlink()
        with explain_disk_errors(folder):
            yield


@contextmanager
def _held(path: Path, folder: Path, otherwise: str) -> Iterator[None]:
    lock = FileLock(path)
    try:
        lock.acquire(timeout=1)
    except Timeout as error:
        raise IndexBusyError(f"index {folder}: {otherwise}.") from error
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        yield
    finally:
        lock.release()


def _unwritable(folder: Path, error: OSError) -> IndexUnwritableError:
    return IndexUnwritableError(
        f"index {folder}: cannot be locked ({error}). Give the right to write in its folder, or search a served one "
        "(medagent index serve)."
    )


@contextmanager
def explain_disk_errors(folder: Path) -> Iterator[None]:
    """Raise `IndexUnwritableError` where the disk of an index refuses; what was written before stays."""
    try:
        yield
    except (OSError, sqlite3.OperationalError, ChromaError) as error:
        full = is_disk_full(folder, error)
        if not full and not _is_refused(folder, error):
            raise
        what, remedy = "cannot be written", "Give the right to write there"
        if full:
            what, remedy = "the disk is full", "Free some space"
        raise IndexUnwritableError(
            f"index {folder}: {what} ({error}). {remedy} and run the same command again; it goes on where it was."
        ) from error


def is_disk_full(folder: Path, error: Exception) -> bool:
    """Whether an error comes of a full disk."""
    if isinstance(error, OSError):
        return error.errno in FULL
    if isinstance(error, sqlite3.OperationalError):
        return "disk is full" in str(error)
    return "disk is full" in str(error) or "No space left" in str(error) or shutil.disk_usage(folder).free < SPARE


def _is_refused(folder: Path, error: Exception) -> bool:
    if isinstance(error, OSError):
        of_index = error.filename is None or folder in Path(error.filename).parents
        return error.errno == errno.EROFS or (error.errno in REFUSED and of_index)
    return any(sign in str(error) for sign in ("readonly database", "read-only", "attempt to write a readonly"))
