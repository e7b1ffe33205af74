"""An index where this process may not write: a read-only mount, a container's layer, a folder of another user.

SQLite then reads the database as it is. Chroma, which writes wherever it opens, works on a copy of its folder.
"""

import logging
import os
import shutil
import tempfile
from errno import ENOSPC
from pathlib import Path

from medagent.retrieval.errors import IndexUnwritableError, RetrievalError

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
