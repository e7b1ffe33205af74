"""What readers share: an open file that knows how far it was read, and the record of what was skipped."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from retrieval.chunking import Document
from retrieval.passages import Passage


@dataclass(frozen=True)
class Skipped:
    """Something of the corpus that could not be used: where it stands and why."""

    where: str
    reason: str


Item = Document | Passage | Skipped


class OpenFile:
    """A file of a corpus; `.gz` is unpacked while it is read. `name` is its name in documents and messages."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self._raw = path.open("rb")
        packed = path.suffix.lower() == ".gz"
        self.stream: IO[bytes] = gzip.GzipFile(fileobj=self._raw) if packed else self._raw  # type: ignore[assignment]

    def position(self) -> int:
        """Bytes of the file on disk that were read so far."""
        return self._raw.tell() if not self._raw.closed else self.path.stat().st_size

    def close(self) -> None:
        """Close the file."""
        self.stream.close()
        self._raw.close()

    def text(self) -> str:
        """The whole file as text; a UnicodeDecodeError where it is not UTF-8."""
        return self.stream.read().decode("utf-8-sig").replace("\r\n", "\n")


Read = Callable[[OpenFile], Iterator[Item]]
# A damaged or truncated archive. A disk that fails is another matter: it ends the build.
UNREADABLE = (gzip.BadGzipFile, EOFError, zlib.error)
