"""An index is a folder whose passage and embedding files are the source of truth; Chroma and BM25 are rebuilt from them.

passages.jsonl    every passage, one a line          embeddings.f32   [N, D] float32, row i belongs to passage i
manifest.json     embedder identity, counts, digest  chroma/, bm25/   search structures
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import bm25s
import chromadb
import numpy as np
from chromadb.api.models.Collection import Collection
from chromadb.config import Settings
from chromadb.errors import NotFoundError
from numpy.typing import NDArray

from retrieval.embedders import Embedder
from retrieval.errors import CorpusError, IndexMismatchError
from retrieval.passages import Passage, read_passages, write_passages

FORMAT = 1
COLLECTION = "passages"
BATCH = 1024  # rows embedded and added at once; Chroma takes at most 5,461
# Chroma replays its log into the graph whenever it opens, so that an approximate search may differ from process to process.
# Up to so many passages every search visits all of them: exact, the same everywhere, and no slower than the rest of a search.
EXACT_UP_TO = 10_000
EF_SEARCH = 200
Progress = Callable[[str, int, int], None]  # stage, done, total


@dataclass(frozen=True)
class Manifest:
    """What an index was built with; `complete` is written last."""

    embedder: str
    dimension: int
    num_passages: int
    passages_sha256: str
    complete: bool = False
    format: int = FORMAT

    @staticmethod
    def read(folder: Path) -> Manifest:
        """The manifest of an index folder, checked for its format."""
        path = folder / "manifest.json"
        if not path.exists():
            raise IndexMismatchError(
                f"index {folder}: no manifest.json found there. Build one with: "
                f"medagent index build CORPUS --out {folder}"
            )
        row = json.loads(path.read_text(encoding="utf-8"))
        if row.get("format") != FORMAT:
            raise IndexMismatchError(
                f"index {folder}: format {row.get('format')} found, {FORMAT} wanted. Rebuild it with --overwrite."
            )
        return Manifest(**row)

    def write(self, folder: Path) -> None:
        """Write atomically: a killed build leaves the old manifest or the new one."""
        part = folder / "manifest.json.part"
        part.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        os.replace(part, folder / "manifest.json")


def _no_progress(stage: str, done: int, total: int) -> None:
    """Report nothing."""


def build_index(
    folder: Path,
    passages: Iterable[Passage],
    embedder: Embedder,
    *,
    overwrite: bool = False,
    progress: Progress = _no_progress,
) -> Manifest:
    """Build an index, or go on with one whose build was interrupted; a complete one of the same content is kept.

    Passages that repeat an id with the same content are dropped; the same id with other content is an error. An index of other content
    or another embedder is replaced only with `overwrite`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    others = [path.name for path in folder.iterdir() if path.name != "passages.jsonl.part"]
    if others and "manifest.json" not in others:
        raise IndexMismatchError(
            f"index {folder}: the folder holds other files ({', '.join(sorted(others)[:3])}) and no index. Choose an empty folder."
        )
    incoming = folder / "passages.jsonl.part"
    count = write_passages(incoming, _unique(passages))
    if count == 0:
        incoming.unlink()
        raise CorpusError(f"index {folder}: the corpus holds no passage. Check its path and format.")
    digest = hashlib.sha256(incoming.read_bytes()).hexdigest()
    wanted = Manifest(embedder.identity, embedder.dimension, count, digest)
    if (folder / "manifest.json").exists():
        found = Manifest.read(folder)
        same = (found.embedder, found.passages_sha256) == (wanted.embedder, digest)
        if not same and not overwrite:
            incoming.unlink()
            raise IndexMismatchError(
                f"index {folder}: holds {found.num_passages:,} passages embedded by {found.embedder!r}; wanted {count:,} "
                f"by {embedder.identity!r}. Choose another folder, or pass --overwrite to replace it."
            )
        if same and found.complete:
            incoming.unlink()
            return found
        if not same:
            Manifest(**{**asdict(found), "complete": False}).write(folder)
            (folder / "embeddings.f32").unlink(missing_ok=True)
            _drop_search_structures(folder)
    wanted.write(folder)
    os.replace(incoming, folder / "passages.jsonl")
    texts = [passage.indexed_text for passage in read_passages(folder / "passages.jsonl")]
    _embed_missing(folder, texts, embedder, progress)
    return rebuild_index(folder, progress=progress)


def rebuild_index(folder: Path, *, progress: Progress = _no_progress) -> Manifest:
    """Make Chroma and BM25 afresh from the passage and embedding files."""
    manifest = Manifest.read(folder)
    passages = load_passages(folder)
    vectors = load_embeddings(folder, manifest)
    _drop_search_structures(folder)
    client = open_client(folder)
    ef_search = len(passages) if len(passages) <= EXACT_UP_TO else EF_SEARCH
    collection = client.create_collection(
        COLLECTION, configuration={"hnsw": {"space": "cosine", "ef_search": ef_search}}
    )
    for start in range(0, len(passages), BATCH):
        rows = slice(start, start + BATCH)
        collection.add(ids=[passage.id for passage in passages[rows]], embeddings=vectors[rows])
        progress("indexing", min(start + BATCH, len(passages)), len(passages))
    lexical = bm25s.BM25()
    lexical.index(lexical_tokens([passage.indexed_text for passage in passages]), show_progress=False)
    lexical.save(folder / "bm25")
    done = Manifest(**{**asdict(manifest), "complete": True})
    done.write(folder)
    return done


def lexical_tokens(texts: list[str]) -> list[list[str]]:
    """Lower-case words as BM25 sees them.

    Single letters and digits count ("hepatitis B", "type 1"), and nothing is stopped: inverse document frequency weighs
    "the" down, and "a" may name a virus.
    """
    pattern = r"(?u)\b\w+\b"
    tokens = bm25s.tokenize(texts, token_pattern=pattern, stopwords=[], return_ids=False, show_progress=False)
    return [list(words) for words in tokens]


def load_passages(folder: Path) -> list[Passage]:
    """All passages, in row order."""
    return list(read_passages(folder / "passages.jsonl"))


def load_embeddings(folder: Path, manifest: Manifest) -> NDArray[np.float32]:
    """[N, D] memory-mapped vectors; an error where the file is incomplete."""
    path = folder / "embeddings.f32"
    wanted = manifest.num_passages * manifest.dimension * 4
    found = path.stat().st_size if path.exists() else 0
    if found != wanted:
        raise IndexMismatchError(
            f"index {folder}: embeddings.f32 has {found:,} bytes, wanted {wanted:,}. The build was interrupted: "
            "run the same `medagent index build` again to go on."
        )
    return np.memmap(path, dtype=np.float32, mode="r", shape=(manifest.num_passages, manifest.dimension))


def open_client(folder: Path) -> Any:
    """Chroma's client on the folder, without telemetry. One process only may own it."""
    return chromadb.PersistentClient(str(folder / "chroma"), settings=Settings(anonymized_telemetry=False))


def open_collection(folder: Path, manifest: Manifest) -> Collection:
    """The collection of a complete index, checked against its manifest."""
    if not manifest.complete:
        raise IndexMismatchError(
            f"index {folder}: its build was interrupted. Run the same `medagent index build` again to go on."
        )
    try:
        collection: Collection = open_client(folder).get_collection(COLLECTION, embedding_function=None)
    except NotFoundError as error:
        raise IndexMismatchError(
            f"index {folder}: Chroma holds no collection. Rebuild it from its files with: medagent index rebuild {folder}"
        ) from error
    if collection.count() != manifest.num_passages:
        raise IndexMismatchError(
            f"index {folder}: Chroma holds {collection.count():,} vectors, the manifest {manifest.num_passages:,}. "
            f"Rebuild it from its files with: medagent index rebuild {folder}"
        )
    return collection


def _unique(passages: Iterable[Passage]) -> Iterable[Passage]:
    seen: dict[str, str] = {}
    for passage in passages:
        digest = hashlib.sha256(passage.indexed_text.encode()).hexdigest()
        known = seen.setdefault(passage.id, digest)
        if known is digest:
            yield passage
        elif known != digest:
            raise CorpusError(
                f"two passages have the id {passage.id!r} and different content (the second is titled "
                f"{passage.title!r}). Give each passage its own id, or none to derive it from the content."
            )


def _embed_missing(folder: Path, texts: list[str], embedder: Embedder, progress: Progress) -> None:
    """Append the vectors that embeddings.f32 lacks; a torn last row of a killed build is cut off."""
    path, row_bytes = folder / "embeddings.f32", embedder.dimension * 4
    done = path.stat().st_size // row_bytes if path.exists() else 0
    with path.open("r+b" if path.exists() else "wb") as file:
        file.truncate(done * row_bytes)
        file.seek(done * row_bytes)
        for start in range(done, len(texts), BATCH):
            batch = texts[start : start + BATCH]
            file.write(np.ascontiguousarray(embedder.embed_passages(batch), dtype=np.float32).tobytes())
            file.flush()
            progress("embedding", start + len(batch), len(texts))


def _drop_search_structures(folder: Path) -> None:
    client_folder = folder / "chroma"
    if client_folder.exists():
        client = open_client(folder)  # through the client: Chroma caches open databases by path
        if any(collection.name == COLLECTION for collection in client.list_collections()):
            client.delete_collection(COLLECTION)
    shutil.rmtree(folder / "bm25", ignore_errors=True)
