"""Checks, describes, repairs and rebuilds an index, and removes documents from it."""

import filecmp
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from chromadb.errors import ChromaError

from medagent.retrieval.access import ReadLock, writing
from medagent.retrieval.analysis import Analyser
from medagent.retrieval.embedders import Embedder
from medagent.retrieval.errors import IndexMismatchError
from medagent.retrieval.index import (
    check_read_whole,
    check_undamaged,
    make_search_structures,
    no_progress,
    open_chroma,
    open_vectors,
)
from medagent.retrieval.lexical import FOLDER, LexicalIndex
from medagent.retrieval.manifest import Manifest, check_embedder
from medagent.retrieval.store import PassageStore, Progress

BATCH = 1000
MAX_LISTED = 10_000  # of what was skipped
NUM_REEMBEDDED = 64  # passages embedded once more, spread over the index


@dataclass(frozen=True)
class Check:
    """One thing that was checked: what should hold, and what was found otherwise ("" where it holds)."""

    name: str
    problem: str = ""


def verify_index(folder: Path, embedder: Embedder, *, progress: Progress = no_progress) -> list[Check]:
    """Compare an index with its source of truth: digests, Chroma by vector, BM25 by byte, some embeddings."""
    manifest = Manifest.read(folder)
    check_embedder(folder, manifest, embedder)
    with closing(ReadLock(folder)), closing(PassageStore(folder, manifest.dimension)) as store:
        return list(_checks(folder, manifest, store, embedder, progress))


def _checks(
    folder: Path, manifest: Manifest, store: PassageStore, embedder: Embedder, progress: Progress
) -> Iterator[Check]:
    verdict = store.integrity()
    yield Check("the passage file is whole", "" if verdict == "ok" else f"SQLite says: {verdict}")
    yield _equal("the number of passages", store.count(), manifest.num_passages)
    yield _equal("the passages' digest", store.content_sha256(), manifest.content_sha256)
    yield _equal("the vectors' digest", store.embeddings_sha256(), manifest.embeddings_sha256)
    yield Check("some passages embed to their stored vectors", _embedded_again(store, embedder))
    yield Check("Chroma holds these passages and vectors", _against_chroma(folder, manifest, store, progress))
    yield Check("BM25 is what the passages give", _against_words(folder, manifest, store))


def _equal(name: str, found: object, wanted: object) -> Check:
    return Check(f"{name} is the manifest's", "" if found == wanted else f"found {found}, wanted {wanted}")


def _embedded_again(store: PassageStore, embedder: Embedder) -> str:
    rows = store.rows()
    some = rows[np.linspace(0, len(rows) - 1, num=min(NUM_REEMBEDDED, len(rows)), dtype=np.int64)]
    passages = store.fetch(some)
    fresh, stored = embedder.embed_passages([passages[int(row)] for row in some]), store.vectors()[some]
    worst = float(np.max(np.abs(fresh - stored)))
    near = worst <= 1e-3 * float(np.max(np.abs(stored)))
    return "" if near else f"a vector differs by {worst:.4f}; the model changed"


def _against_chroma(folder: Path, manifest: Manifest, store: PassageStore, progress: Progress) -> str:
    rows = store.rows()
    try:
        vectors = open_vectors(folder, manifest)
        held = vectors.ids()
    except ChromaError as error:
        return f"its files cannot be read ({error})"
    wanted = {int(row) for row in rows}
    if held != wanted:
        return f"{len(wanted - held):,} passages are missing and {len(held - wanted):,} do not belong there"
    stored = store.vectors()
    for start in range(0, len(rows), BATCH):
        batch = [int(row) for row in rows[start : start + BATCH]]
        found = vectors.get(batch)
        for row in batch:
            if not np.allclose(found[row], stored[row], atol=1e-5):
                return f"the vector of row {row} differs"
        progress("checking", start + len(batch), len(rows), len(rows))
    return ""


def _against_words(folder: Path, manifest: Manifest, store: PassageStore) -> str:
    settings, analyser = manifest.settings, Analyser(manifest.settings.analyser)
    with tempfile.TemporaryDirectory(prefix="medagent-verify-") as name:
        scratch, texts = Path(name), ((row, passage.indexed_text) for row, passage in store.stream())
        LexicalIndex.build(scratch, texts, analyser, k1=settings.bm25_k1, b=settings.bm25_b)
        LexicalIndex.load(folder, analyser)  # a missing file has an error of its own
        made, own = scratch / FOLDER, folder / FOLDER  # an index of an earlier version holds a file more
        same = all(filecmp.cmp(each, own / each.name, shallow=False) for each in made.iterdir())
        return "" if same else "its files differ"


def index_stats(folder: Path) -> dict[str, Any]:
    """Statistics of an index as plain data; sizes in bytes."""
    manifest = Manifest.read(folder)
    with closing(PassageStore(folder, manifest.dimension)) as store:
        words = np.array([len(passage.text.split()) for _, passage in store.stream()])
        counts = store.counts()
        skipped = store.skipped(limit=MAX_LISTED)
        return {
            "folder": str(folder),
            "complete": manifest.complete,
            "version": manifest.version,
            "embedder": manifest.embedder,
            "dimension": manifest.dimension,
            "analyser": manifest.settings.analyser,
            "chroma": manifest.settings.chroma or "in the folder",
            "passages": store.count(),
            "duplicates_dropped": counts["duplicates"],
            "ids_told_apart": counts["ids told apart"],
            "removed": counts["removed"],
            "kept_out": [f"{name}: {reason}" for name, reason in store.documents.kept_out(limit=MAX_LISTED)],
            "skipped": store.count("skipped"),
            "skipped_documents": [f"{where} {reason}" for where, reason in skipped],
            "left_out": [f"{where}: {what}" for where, what in store.skipped(limit=MAX_LISTED, table="left_out")],
            "words": {
                name: int(np.quantile(words, share)) if len(words) else 0
                for name, share in (("min", 0), ("median", 0.5), ("p95", 0.95), ("max", 1))
            },
            "years": list(store.years() or ()),
            "sources": dict(store.tally("source", limit=20)),
            "licences": dict(store.tally("licence", limit=10)),
            "bytes": {
                name: sum(file.stat().st_size for file in folder.glob(pattern) if file.is_file())
                for name, pattern in (
                    ("passages", "passages.sqlite*"),
                    ("vectors", "embeddings.f32"),
                    ("chroma", "chroma/**/*"),
                    ("bm25", "bm25/*"),
                )
            },
        }


def show_stats(found: dict[str, Any], *, as_json: bool) -> str:
    """The statistics of an index as JSON, or in lines for people."""
    if as_json:
        return json.dumps(found, ensure_ascii=False, indent=2)
    lines = []
    for name, value in found.items():
        if name == "bytes":
            value = ", ".join(f"{part} {size / 1e6:,.1f} MB" for part, size in value.items())
        elif isinstance(value, dict):
            value = ", ".join(f"{part or '(none)'}: {number:,}" for part, number in value.items())
        elif isinstance(value, list):
            value = " to ".join(map(str, value)) if name == "years" else "".join(f"\n  {line}" for line in value[:20])
        lines.append(f"{name.replace('_', ' ')}: {f'{value:,}' if type(value) is int else value}")
    return "\n".join(lines)


def rebuild_index(folder: Path, embedder: Embedder | None = None, *, progress: Progress = no_progress) -> Manifest:
    """Make Chroma and BM25 afresh from undamaged passages and vectors; with an embedder, damaged vectors too."""
    manifest = Manifest.read(folder)
    if embedder is not None:
        check_embedder(folder, manifest, embedder)
    with writing(folder), closing(PassageStore(folder, manifest.dimension)) as store:
        if embedder is None:
            check_undamaged(folder, manifest)
        elif manifest.complete and store.content_sha256() != manifest.content_sha256:
            raise IndexMismatchError(
                f"index {folder}: its passages are not those it was built with, and nothing else holds them. Restore "
                "passages.sqlite from a backup, or build the index again with --overwrite."
            )
        check_read_whole(folder, store)
        if embedder is not None and manifest.complete and store.embeddings_sha256() != manifest.embeddings_sha256:
            store.embed_again(embedder, progress)
        open_chroma(folder, manifest).drop()
        return make_search_structures(folder, store, manifest, progress)


def restore_in_index(folder: Path, names: Sequence[str]) -> int:
    """Let removed or retracted documents come back with the next `add` or `sync`; returns how many names."""
    manifest = Manifest.read(folder)
    with writing(folder), closing(PassageStore(folder, manifest.dimension)) as store:
        store.restore(names)
    return len(names)


def remove_from_index(folder: Path, ids: Sequence[str], *, progress: Progress = no_progress) -> tuple[Manifest, int]:
    """Remove passages, or all passages of documents, by id; returns how many passages went. They stay out."""
    manifest = Manifest.read(folder)
    with writing(folder), closing(PassageStore(folder, manifest.dimension)) as store:
        check_undamaged(folder, manifest)
        check_read_whole(folder, store)
        by_id = {id_: store.rows_of_document(id_) for id_ in ids}
        if unknown := [id_ for id_, found in by_id.items() if not found]:
            raise IndexMismatchError(
                f"index {folder}: holds no passage or document {unknown[0]!r}. `medagent search` shows ids; nothing "
                "was removed."
            )
        rows = {row for found in by_id.values() for row in found}
        if len(rows) == len(store):
            raise IndexMismatchError(
                f"index {folder}: these are all its passages. Delete the folder instead; nothing was removed."
            )
        replace(manifest, complete=False).write(folder)
        store.remove(by_id)
        return make_search_structures(folder, store, manifest, progress), len(rows)
