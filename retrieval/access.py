"""The rights to read and to write an index: locks, and folders where this process may not write.

An index has many readers, each with a lock file in `readers/`, or one writer, who holds `lock`. The system releases
the locks of a process that dies. On a read-only mount, or in a folder of another user, a reader holds no lock: it looks
before each search whether the index is still the one it opened. SQLite then reads the database as it is. Chroma, which
writes wherever it opens, works on a copy of its folder.
"""

import errno
import logging
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from errno import ENOSPC
from pathlib import Path
from uuid import uuid4

from chromadb.errors import ChromaError
from filelock import FileLock, Timeout

from medagent.retrieval.errors import IndexBusyError, IndexMismatchError, IndexUnwritableError, RetrievalError

log = logging.getLogger(__name__)


def may_write(folder: Path) -> bool:
    """Whether this process may change everything in an index."""
    return _refused(folder) is None


def check_writable(folder: Path) -> None:
    """Refuse an index, or the place of a new one, where this process may not write; the error says why."""
    if refused := _refused(folder):
        raise IndexUnwritableError(
            f"index {folder}: cannot be changed: {_cause(refused)}. Run the command where the index may be "
            "written. Searching, serving, stats and verify work without that right."
        )


def check_readable(folder: Path) -> None:
    """Refuse an index of which this process may not read a file."""
    try:
        (folder / "manifest.json").open("rb").close()
        for place in _places(folder):
            os.scandir(place).close() if place.is_dir() else place.open("rb").close()
    except PermissionError as error:
        raise RetrievalError(
            f"index {folder}: user {os.geteuid()} may not read {error.filename}. Give it the right to read the folder "
            "and all in it."
        ) from error
    except (FileNotFoundError, NotADirectoryError):
        return  # there is no index, or another reader's lock just went


def database_uri(folder: Path) -> str:
    """The address under which SQLite opens an index's passages, read-only where this process may not write."""
    uri, log = (folder / "passages.sqlite").absolute().as_uri(), folder / "passages.sqlite-wal"
    refused = _refused(folder)
    if refused is None:
        return uri
    if not log.exists() or not log.stat().st_size:
        return f"{uri}?mode=ro&immutable=1"
    if (folder / "passages.sqlite-shm").exists():  # without it SQLite cannot read the log, nor make it here
        return f"{uri}?mode=ro"
    raise IndexUnwritableError(
        f"index {folder}: {log.name} holds changes that passages.sqlite lacks, of a writer that was killed, and "
        f"{_cause(refused)}. Run medagent index stats where the index may be written: that folds them in."
    )


def writable_copy(place: Path) -> Path:
    """A copy of Chroma's folder in the system's folder for temporary files. The caller deletes it."""
    size = sum(path.stat().st_size for path in place.rglob("*") if path.exists())
    copy = None
    try:
        copy = Path(tempfile.mkdtemp(prefix="medagent-chroma-"))
        if shutil.disk_usage(copy).free < size:
            raise OSError(ENOSPC, "too little space is free", str(copy.parent))
        shutil.copytree(place, copy, copy_function=shutil.copyfile, dirs_exist_ok=True)
        for path in (copy, *copy.rglob("*")):
            path.chmod(0o700)
    except OSError as error:
        if copy is not None:
            shutil.rmtree(copy, ignore_errors=True)
        raise RetrievalError(
            f"index {place.parent}: may not be written, and Chroma needs a copy of {size / 1e6:,.1f} MB that may, "
            f"which cannot be made ({error}). Name a folder with that space in the variable TMPDIR."
        ) from error
    log.warning("index %s may not be written: Chroma works on a copy of %.1f MB, %s.", place.parent, size / 1e6, copy)
    return copy


def _refused(folder: Path) -> Path | None:
    """The first place that this process may not write."""
    while not os.access(folder, os.F_OK):  # unlike Path.exists, no error where a parent may not be entered
        folder = folder.absolute().parent
    unwritable = (place for place in _places(folder) if not os.access(place, os.W_OK))
    return next((place for place in unwritable if os.path.lexists(place)), None)  # SQLite removes its log on closing


def _places(folder: Path) -> list[Path]:
    """An index's folder and all in it, but for the locks of its readers."""
    inside = folder.rglob("*") if (folder / "manifest.json").exists() else ()
    return [folder, *(place for place in inside if place.parent != folder / "readers")]


def _cause(place: Path) -> str:
    """Why a place cannot be written."""
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        return f"{place} is on a read-only mount"
    return f"user {os.geteuid()} may not write {place}"


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
