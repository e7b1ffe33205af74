"""Corpora: named parts (files, datasets, lists), read one after the other and always in the same order."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from medagent.retrieval.errors import CorpusError, needs_package
from medagent.retrieval.formats import READERS, WANTED, kind_of
from medagent.retrieval.passages import Passage
from medagent.retrieval.readers import Item, OpenFile, Skipped, read_file, read_row
from medagent.retrieval.readers.tesseract import Tesseract


@dataclass(frozen=True)
class CorpusPart:
    """A part of a corpus, read in one go; `size` is in bytes, rows or passages, 0 where unknown.

    `read` gives documents and what had to be skipped, each with how much of the part was read by then.
    """

    name: str
    read: Callable[[], Iterable[tuple[Item, int]]]
    fingerprint: str = ""
    size: int = 0
    path: Path | None = None  # of a file


@dataclass(frozen=True)
class Corpus:
    """Parts in reading order. `identity` tells an interrupted build whether it is the same corpus."""

    identity: str
    parts: Sequence[CorpusPart]

    def key(self, part: CorpusPart) -> str:
        """Names a part among those of all corpora."""
        return f"{self.identity}::{part.name}"


Sources = Corpus | str | Path | Sequence[Passage] | Sequence[str] | Sequence[Path] | Sequence[str | Path]


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


def memory_corpus(passages: Sequence[Passage], name: str = "passages") -> Corpus:
    """A corpus of passages in memory, which are never split."""
    digest = hashlib.sha256()
    for passage in passages:
        digest.update(f"{passage.id}\n{passage.digest}\n{passage.source}\n".encode())
    fingerprint = digest.hexdigest()[:32]
    read = partial(zip, passages, range(1, len(passages) + 1), strict=True)
    return Corpus(f"{name}:{fingerprint}", [CorpusPart(name, read, fingerprint, len(passages))])


def file_corpus(*paths: Path) -> Corpus:
    """Files, or all below folders, by name, without hidden ones and indexes; known by the folder of all."""
    whole = [path.resolve() for path in paths]
    if len(paths) == 1:
        parts = _parts_of(paths[0], paths[0] if paths[0].is_dir() else paths[0].parent)
        return Corpus(str(whole[0]), sorted(parts, key=lambda part: part.name))
    top = Path(os.path.commonpath([path.parent for path in whole]))
    named = {part.name: part for path in whole for part in _parts_of(path, top)}
    return Corpus(str(top), [named[name] for name in sorted(named)])


def _parts_of(path: Path, top: Path) -> list[CorpusPart]:
    if not path.exists():
        raise CorpusError(f"corpus {path}: not found; {WANTED}.")
    if path.is_file():
        if kind_of(path) not in READERS:
            raise CorpusError(f"corpus {path}: found a {path.suffix or 'nameless'} file; {WANTED}.")
        return [_file_part(path, top)]
    found = list(_found_below(path, top))
    if not any(part.fingerprint for part in found):
        raise CorpusError(f"corpus {path}: found no file that can be read among {len(found)}; {WANTED}.")
    return found


def _file_part(path: Path, top: Path) -> CorpusPart:
    """A file; its fingerprint is its size, its modification time, and the number of its kind's reading after 1."""
    try:
        status = path.stat()
    except OSError as error:
        raise _unreachable(path, error) from error
    name, reading = path.relative_to(top).as_posix(), READERS[kind_of(path)].reading
    fingerprint = f"{status.st_size}:{status.st_mtime_ns}" + (f":{reading}" if reading else "")
    return CorpusPart(name, partial(_read_file, path, name), fingerprint, status.st_size, path)


def with_ocr(corpus: Corpus, languages: str, progress: Callable[[str, int, int, int], None]) -> Corpus:
    """The corpus, with text recognition of its PDFs' pages without text; a `CorpusError` where that cannot be done."""
    parts = list(corpus.parts)
    scans = [(at, each.path) for at, each in enumerate(parts) if each.path is not None and kind_of(each.path) == ".pdf"]
    if not languages or not scans:
        return corpus
    ocr = Tesseract(languages, progress)
    ocr.check()
    for at, path in scans:
        read = partial(_read_file, path, parts[at].name, ocr)
        parts[at] = replace(parts[at], read=read, fingerprint=f"{parts[at].fingerprint}:{languages}")
    return replace(corpus, parts=parts)


def _read_file(path: Path, name: str, ocr: Tesseract | None = None) -> Iterator[tuple[Item, int]]:
    try:
        with closing(OpenFile(path, name, ocr)) as file:
            for item in read_file(file):
                yield item, file.position()
    except OSError as error:  # a disk or a network that fails; the file itself may be sound
        raise _unreachable(path, error) from error
    except Exception as error:  # whatever a damaged file makes a parser do must not end a build of many files
        yield Skipped(name, f"cannot be read ({type(error).__name__}: {error})"), path.stat().st_size


def _unreachable(path: Path, error: OSError) -> CorpusError:
    return CorpusError(
        f"{path}: cannot be read ({error.strerror or error}). Put that right and run the same command again; what "
        "was read so far is kept."
    )


def _unread(path: Path, top: Path, reason: str) -> CorpusPart:
    """Something in the folder that is not read: counted, never passed over in silence."""
    name = path.relative_to(top).as_posix()
    return CorpusPart(name, lambda: [(Skipped(name, reason), 0)])


def _found_below(folder: Path, top: Path) -> Iterator[CorpusPart]:
    """The files below a folder, and what cannot be read there; links to folders are not followed."""
    closed: list[OSError] = []
    for inner, folders, files in os.walk(folder, onerror=closed.append):
        here = Path(inner)
        if "passages.sqlite" in files:  # an index
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith(".")]
        for each in [here / name for name in folders if (here / name).is_symlink()]:
            yield _unread(each, top, "is a link to a folder, which is not followed; add that folder by its own path")
        for file in [here / name for name in files if not name.startswith(".")]:
            if not file.exists():
                yield _unread(file, top, "is a link that leads nowhere")
            elif not file.is_file():
                yield _unread(file, top, "is no file")
            elif kind_of(file) not in READERS:
                yield _unread(file, top, f"is of a kind that is not read; {WANTED}")
            else:
                yield _file_part(file, top)
    for error in closed:
        yield _unread(Path(error.filename), top, f"is a folder that cannot be entered ({error.strerror})")


def hub_corpus(name: str) -> Corpus:
    """`NAME` or `NAME:SPLIT` of the Hugging Face hub, or of a local folder in its formats; rows are streamed."""
    dataset, _, split = name.partition(":")
    split = split or "train"
    with needs_package("a hub dataset", "datasets", "hub", CorpusError):
        import datasets
    try:
        rows = datasets.load_dataset(dataset, split=split, streaming=True)
    except Exception as error:  # of many kinds: no network, no such dataset, a script that it refuses to run
        raise CorpusError(
            f"hub dataset {dataset!r}, split {split!r}: cannot be loaded ({error}). Check its name, its split and the "
            "network."
        ) from error
    about = (rows.info.splits or {}).get(split)
    size = int(about.num_examples or 0) if about is not None else 0
    fingerprint = f"{getattr(rows.info, 'version', '') or ''}:{size}"
    read = partial(_read_rows, rows, dataset, split)
    return Corpus(f"hub:{name}", [CorpusPart(f"{dataset}:{split}", read, fingerprint, size)])


def _read_rows(rows: Iterable[dict[str, Any]], dataset: str, split: str) -> Iterator[tuple[Item, int]]:
    remaining, number = iter(rows), 0
    while True:
        try:
            row = next(remaining, None)
        except Exception as error:  # of many kinds: the network, the file format, the hub
            raise CorpusError(
                f"hub dataset {dataset}:{split}: failed on the way ({error}). Run the same command again; what was "
                "read so far is kept."
            ) from error
        if row is None:
            return
        number += 1
        where = f"{dataset}:{split}, row {number}"
        for item in read_row({key.lower(): value for key, value in row.items()}, where, source=dataset):
            yield item, number
