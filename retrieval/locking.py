"""An index has many readers or one writer, so no process changes what another has open.

Each reader holds a lock file of its own in `readers/`. A writer holds `lock`, and starts when no reader's lock is held.
The system releases the locks of a process that dies.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from filelock import FileLock, Timeout

from medagent.retrieval.disk import disk_failures_told
from medagent.retrieval.errors import IndexBusyError, IndexUnwritableError

LOCKS = ("lock", "readers")


class ReadLock:
    """Held by a process that searches an index, from now until `release` or the end of the process."""

    def __init__(self, folder: Path) -> None:
        try:
            (folder / "readers").mkdir(exist_ok=True)
        except OSError as error:
            raise _unwritable(folder, error) from error
        with _held(folder / "lock", folder, "is being written by another process; try again when that is done"):
            # Process ids repeat over containers that share a volume, so they alone would not do as names.
            self._path = folder / "readers" / f"{os.getpid()}-{uuid4().hex[:8]}"
            self._lock = FileLock(self._path)
            self._lock.acquire(timeout=0)

    def release(self) -> None:
        """Let writers in again."""
        if self._lock.is_locked:
            self._lock.release()
            self._path.unlink(missing_ok=True)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """The right to change an index; an error that names the process where the index is open."""
    with _held(folder / "lock", folder, "is being written by another process; wait for it, or stop it"):
        for path in sorted((folder / "readers").glob("*")):
            process = path.name.partition("-")[0]
            advice = (
                f"is open in process {process}; stop that process first (training, serving and searching keep "
                "an index open)"
            )
            with _held(path, folder, advice):
                path.unlink()
        with disk_failures_told(folder):
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
        f"index {folder}: cannot be locked ({error}). Who searches an index needs the right to write in its folder; "
        "give it, or search a served one (medagent index serve)."
    )
