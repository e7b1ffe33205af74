"""What a disk refuses, told in a line with its remedy: it is full, or may not be written."""

from __future__ import annotations

import errno
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chromadb.errors import ChromaError

from medagent.retrieval.errors import IndexUnwritableError

FULL, REFUSED = (errno.ENOSPC, errno.EDQUOT), (errno.EROFS, errno.EACCES, errno.EPERM)
SPARE = 2**20  # bytes; with fewer left a failure of Chroma, which does not say why, is put down to the disk


@contextmanager
def disk_failures_told(folder: Path) -> Iterator[None]:
    """Raise `IndexUnwritableError` where the disk of an index refuses; what was written before stays."""
    try:
        yield
    except (OSError, sqlite3.OperationalError, ChromaError) as error:
        if is_full(folder, error):
            raise IndexUnwritableError(
                f"index {folder}: the disk is full ({error}). Free some space and run the same command again; it goes "
                "on where it was."
            ) from error
        if _is_refused(folder, error):
            raise IndexUnwritableError(
                f"index {folder}: cannot be written ({error}). Give the right to write there and run the same command "
                "again; it goes on where it was."
            ) from error
        raise


def is_full(folder: Path, error: Exception) -> bool:
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
