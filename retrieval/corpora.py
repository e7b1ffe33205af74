"""Corpora: named parts (files, datasets, lists), read one after the other and always in the same order."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from medagent.retrieval.errors import CorpusError
from medagent.retrieval.passages import Passage
from medagent.retrieval.readers import READERS, READINGS, Item, OpenFile, Skipped, kind_of, read_file
from medagent.retrieval.readers.rows import document_of_row


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

    def key(self, part: CorpusPart) -> str:
        """Names a part among those of all corpora."""
        return f"{self.identity}::{part.name}"

    @property
    def size(self) -> int:
        """Sum of the parts' sizes."""
        return sum(part.size for part in self.parts)


@dataclass(frozen=True)
class FilePart:
    """A file; its fingerprint is its size, the time it was last written, and how its kind is read."""

    path: Path
    name: str

    @property
    def fingerprint(self) -> str:
        """Size and modification time, and the number of the kind's reading where that has changed."""
        reading = READINGS.get(kind_of(self.path))
        return "{0.st_size}:{0.st_mtime_ns}".format(_status(self.path)) + (f":{reading}" if reading else "")

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
    """What lies in the folder and is not read: counted, never passed over in silence."""

    name: str
    reason: str
    size: int = 0
    fingerprint: str = ""

    def read(self) -> Iterator[tuple[Item, int]]:
        """One `Skipped`."""
        yield Skipped(self.name, self.reason), 0


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


Sources = Corpus | str | Path | Sequence[Passage] | Sequence[str] | Sequence[Path] | Sequence[str | Path]


def memory_corpus(passages: Sequence[Passage], name: str = "passages") -> Corpus:
    """A corpus of passages in memory."""
    digest = hashlib.sha256()
    for passage in passages:
        digest.update(f"{passage.id}\n{passage.digest}\n{passage.source}\n".encode())
    fingerprint = digest.hexdigest()[:32]
    return Corpus(f"{name}:{fingerprint}", [MemoryPart(passages, name, fingerprint)])


def as_corpus(sources: Sources) -> Corpus:
    """The corpus of a path, of several, of passages, or of a dataset of the hub, "hub:NAME[:SPLIT]"."""
    if isinstance(sources, Corpus):
        return sources
    if isinstance(sources, str) and sources.startswith("hub:"):
        return hub_corpus(sources.removeprefix("hub:"))
    if isinstance(sources, str | Path):
        return file_corpus(Path(sources))
    passages = [each for each in sources if isinstance(each, Passage)]
    paths = [Path(each) for each in sources if not isinstance(each, Passage)]
    if paths and passages:
        raise CorpusError("corpus: found passages and paths together, wanted either.")
    return file_corpus(*paths) if paths else memory_corpus(passages)


def file_corpus(*paths: Path) -> Corpus:
    """Files, or all files below folders, in the order of their names; hidden files and indexes are left out.

    The corpus of several paths is known by the folder that holds them all.
    """
    found = {path.resolve(): sorted(_parts_of(path), key=lambda part: part.name) for path in paths}
    if len(paths) == 1:
        return next(Corpus(str(path), parts) for path, parts in found.items())
    top = Path(os.path.commonpath([path.parent for path in found]))
    named: dict[str, CorpusPart] = {}
    for path, parts in found.items():
        for part in parts:
            name = (path if path.is_file() else path / part.name).relative_to(top).as_posix()
            named[name] = replace(part, name=name)
    return Corpus(str(top), [named[name] for name in sorted(named)])


def _parts_of(path: Path) -> list[FilePart | UnreadPart]:
    wanted = f"wanted {', '.join(READERS)} (or these with .gz)."
    if not path.exists():
        raise CorpusError(f"corpus {path}: not found; {wanted}")
    if path.is_file():
        if kind_of(path) not in READERS:
            raise CorpusError(f"corpus {path}: found a {path.suffix or 'nameless'} file; {wanted}")
        return [FilePart(path, path.name)]
    found = list(_found_below(path))
    if not any(isinstance(part, FilePart) for part in found):
        raise CorpusError(f"corpus {path}: found no file that can be read among {len(found)}; {wanted}")
    return found


def _found_below(top: Path) -> Iterator[FilePart | UnreadPart]:
    """The files below a folder, and what cannot be read there.

    Links to files are followed, and links to folders are not: they may lead around in a circle.
    """
    unread: list[UnreadPart] = []

    def closed(error: OSError) -> None:
        name = Path(error.filename).relative_to(top).as_posix()
        unread.append(UnreadPart(name, f"is a folder that cannot be entered ({error.strerror})"))

    for folder, folders, files in os.walk(top, onerror=closed):
        here = Path(folder)
        if "passages.sqlite" in files:  # an index
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in folders:
            if (here / name).is_symlink():
                where = (here / name).relative_to(top).as_posix()
                yield UnreadPart(where, "is a link to a folder, which is not followed; add that folder by its own path")
        for name in files:
            file = here / name
            where = file.relative_to(top).as_posix()
            if name.startswith("."):
                continue
            if not file.exists():
                yield UnreadPart(where, "is a link that leads nowhere")
            elif not file.is_file():
                yield UnreadPart(where, "is no file")
            elif kind_of(file) not in READERS:
                wanted = ", ".join(READERS)
                yield UnreadPart(where, f"is of a kind that is not read; wanted {wanted} (or these with .gz)")
            else:
                yield FilePart(file, where)
    yield from unread


def hub_corpus(name: str) -> Corpus:
    """`NAME` or `NAME:SPLIT` (train where none is given), rows in MedRAG's layout: id, title, content."""
    dataset, _, split = name.partition(":")
    return Corpus(f"hub:{name}", [HubPart(dataset, split or "train")])
