"""Corpora: named parts (files, datasets, lists), read one after the other and always in the same order."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from retrieval.errors import CorpusError
from retrieval.passages import Passage
from retrieval.readers import READERS, Item, OpenFile, Skipped, kind_of, read_file
from retrieval.readers.rows import document_of_row


class CorpusPart(Protocol):
    """A part of a corpus that is read in one go. Its fingerprint changes when its content does."""

    @property
    def name(self) -> str:
        """Names the part within its corpus."""
        ...

    @property
    def fingerprint(self) -> str:
        """Equal fingerprints mean equal content."""
        ...

    @property
    def size(self) -> int:
        """How much there is to read, in bytes, rows or passages; 0 where unknown. All parts must use one unit."""
        ...

    def read(self) -> Iterator[tuple[Item, int]]:
        """Documents and what had to be skipped, each with how much of the part was read by then."""
        ...


@dataclass(frozen=True)
class Corpus:
    """Parts in reading order. `identity` tells an interrupted build whether it is the same corpus."""

    identity: str
    parts: Sequence[CorpusPart]

    @property
    def size(self) -> int:
        """Sum of the parts' sizes."""
        return sum(part.size for part in self.parts)


@dataclass(frozen=True)
class FilePart:
    """A file; its fingerprint is its size and the time it was last written."""

    path: Path
    name: str

    @property
    def fingerprint(self) -> str:
        """Size and modification time."""
        return "{0.st_size}:{0.st_mtime_ns}".format(_status(self.path))

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return _status(self.path).st_size

    def read(self) -> Iterator[tuple[Item, int]]:
        """See `CorpusPart.read`."""
        try:
            file = OpenFile(self.path, self.name)
        except OSError as error:
            raise _unreachable(self.path, error) from error
        try:
            for item in read_file(file):
                yield item, file.position()
        except OSError as error:  # a disk or a network that fails; the file itself may be sound
            raise _unreachable(self.path, error) from error
        except Exception as error:  # whatever a damaged file makes a parser do must not end a build of many files
            yield Skipped(self.name, f"cannot be read ({type(error).__name__}: {error})"), file.position()
        finally:
            file.close()


def _status(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise _unreachable(path, error) from error


def _unreachable(path: Path, error: OSError) -> CorpusError:
    return CorpusError(
        f"{path}: cannot be read ({error.strerror or error}). Put that right and run the same command again; what "
        "was read so far is kept."
    )


@dataclass(frozen=True)
class UnreadPart:
    """A file of a kind that nothing reads: counted, never passed over in silence."""

    name: str
    size: int = 0
    fingerprint: str = ""

    def read(self) -> Iterator[tuple[Item, int]]:
        """One `Skipped`."""
        yield Skipped(self.name, f"is of a kind that is not read; wanted {', '.join(READERS)} (or these with .gz)"), 0


@dataclass(frozen=True)
class MemoryPart:
    """Passages that are there already; they are never cut."""

    passages: Sequence[Passage]
    name: str
    fingerprint: str

    @property
    def size(self) -> int:
        """Number of passages."""
        return len(self.passages)

    def read(self) -> Iterator[tuple[Item, int]]:
        """See `CorpusPart.read`."""
        for number, passage in enumerate(self.passages, start=1):
            yield passage, number


@dataclass(frozen=True)
class HubPart:
    """A split of a dataset of the Hugging Face hub, or of a local folder in its formats, streamed row by row."""

    dataset: str
    split: str

    @property
    def name(self) -> str:
        """Dataset and split."""
        return f"{self.dataset}:{self.split}"

    @property
    def fingerprint(self) -> str:
        """The hub's own identity of a dataset's version, where it gives one."""
        return str(getattr(self._rows.info, "version", "") or "") + f":{self.size}"

    @property
    def size(self) -> int:
        """Rows, where the dataset says how many."""
        split = (self._rows.info.splits or {}).get(self.split)
        return int(split.num_examples or 0) if split is not None else 0

    def read(self) -> Iterator[tuple[Item, int]]:
        """See `CorpusPart.read`."""
        for number, row in enumerate(self._numbered(), start=1):
            where = f"{self.name}, row {number}"
            yield (
                document_of_row({key.lower(): value for key, value in row.items()}, where, source=self.dataset),
                number,
            )

    def _numbered(self) -> Iterator[dict[str, Any]]:
        try:
            yield from self._rows
        except Exception as error:  # of many kinds: the network, the file format, the hub
            raise CorpusError(
                f"hub dataset {self.name}: failed on the way ({error}). Run the same command again; what was read so "
                "far is kept."
            ) from error

    @cached_property
    def _rows(self) -> Any:
        try:
            import datasets
        except ImportError as error:
            raise CorpusError(
                "a hub dataset needs the package datasets, which is not installed. Install it with: pip install "
                "'medagent[hub]'"
            ) from error
        try:
            return datasets.load_dataset(self.dataset, split=self.split, streaming=True)
        except Exception as error:  # of many kinds: no network, no such dataset, a script that it refuses to run
            raise CorpusError(
                f"hub dataset {self.dataset!r}, split {self.split!r}: cannot be loaded ({error}). Check its name, "
                "its split and the network."
            ) from error


def memory_corpus(passages: Sequence[Passage], name: str = "passages") -> Corpus:
    """A corpus of passages in memory."""
    digest = hashlib.sha256()
    for passage in passages:
        digest.update(f"{passage.id}\n{passage.digest}\n{passage.source}\n".encode())
    fingerprint = digest.hexdigest()[:32]
    return Corpus(f"{name}:{fingerprint}", [MemoryPart(passages, name, fingerprint)])


def file_corpus(path: Path) -> Corpus:
    """A file, or all files below a folder in the order of their names.

    Hidden files and indexes are left out.
    """
    if not path.exists():
        raise CorpusError(
            f"corpus {path}: not found. Give a file or folder of {', '.join(READERS)} (or these with .gz)."
        )
    if path.is_file():
        if kind_of(path) not in READERS:
            raise CorpusError(
                f"corpus {path}: found a {path.suffix or 'nameless'} file; wanted {', '.join(READERS)} (or these "
                "with .gz)."
            )
        return Corpus(str(path.resolve()), [FilePart(path, path.name)])
    indexes = {found.parent for found in path.rglob("passages.sqlite")}
    files = sorted(
        file
        for file in path.rglob("*")
        if file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
        and not indexes.intersection(file.parents)
    )
    if not any(kind_of(file) in READERS for file in files):
        raise CorpusError(
            f"corpus {path}: found no file that can be read among {len(files)}; wanted {', '.join(READERS)} (or "
            "these with .gz)."
        )
    parts: list[CorpusPart] = []
    for file in files:
        name = file.relative_to(path).as_posix()
        parts.append(FilePart(file, name) if kind_of(file) in READERS else UnreadPart(name))
    return Corpus(str(path.resolve()), parts)


def hub_corpus(name: str) -> Corpus:
    """`NAME` or `NAME:SPLIT` (train where none is given), rows in MedRAG's layout: id, title, content."""
    dataset, _, split = name.partition(":")
    return Corpus(f"hub:{name}", [HubPart(dataset, split or "train")])
