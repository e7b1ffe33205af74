"""What readers share: an open file that knows how far it was read, and the record of what was skipped."""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from charset_normalizer import from_bytes

from retrieval.chunking import Document
from retrieval.documents import Kind
from retrieval.passages import Passage

SAMPLE = 65_536  # bytes by which an encoding is found out


@dataclass(frozen=True)
class Skipped:
    """Something of the corpus that could not be used: where it stands and why."""

    where: str
    reason: str


@dataclass(frozen=True)
class Withdrawn:
    """Documents that must not be in an index, by any of their names: the source says so, and why."""

    where: str
    names: tuple[str, ...]
    kind: Kind
    reason: str
    version: str = ""


Item = Document | Passage | Skipped | Withdrawn


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
        """The whole file as text, by `encoding_of`; a UnicodeDecodeError where it is no text."""
        raw = self.stream.read()
        return raw.decode(encoding_of(raw[:SAMPLE])).replace("\r\n", "\n").replace("\r", "\n")


def encoding_of(head: bytes) -> str:
    """The encoding of a file's beginning: by its byte order mark, UTF-8 where it is that, else the likeliest."""
    marks = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
    for mark, name in marks.items():
        if head.startswith(mark):
            return name
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # the end of the sample may cut a character
    except UnicodeDecodeError:
        found = from_bytes(head).best()
        return found.encoding if found is not None else "utf-8"
    return "utf-8"


Read = Callable[[OpenFile], Iterator[Item]]
# A damaged or truncated archive. A disk that fails is another matter: it ends the build.
UNREADABLE = (gzip.BadGzipFile, EOFError, zlib.error)
