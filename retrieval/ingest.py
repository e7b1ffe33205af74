"""A corpus into the store, batch by batch: cut, compare with what is held, embed, commit; a killed run goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from medagent.retrieval.chunking import chunk_document
from medagent.retrieval.corpora import Corpus, CorpusPart
from medagent.retrieval.embedders import Embedder
from medagent.retrieval.errors import IndexMismatchError
from medagent.retrieval.ingest_policy import Changes, ChunkedDocument, decide
from medagent.retrieval.passages import Passage
from medagent.retrieval.readers import Skipped, Withdrawn
from medagent.retrieval.settings import Chunking
from medagent.retrieval.store import PartState, PassageStore, Progress

BATCH = 1024  # passages embedded and committed at once
Unit = ChunkedDocument | Skipped | Withdrawn


@dataclass
class _Batch:
    """The content of one transaction. Small files share a batch, as a model embeds many passages quicker than few."""

    units: list[tuple[Unit, str, str]] = field(default_factory=list)  # each with its part and the part's fingerprint
    parts: dict[str, PartState] = field(default_factory=dict)
    passages: int = 0

    @property
    def full(self) -> bool:
        """Whether it is time to commit."""
        return max(self.passages, len(self.units), len(self.parts) // 10) >= BATCH


def ingest(
    store: PassageStore,
    corpus: Corpus,
    embedder: Embedder,
    chunking: Chunking,
    progress: Progress,
    *,
    changes: Changes,
    changed_again: bool = False,
) -> None:
    """Read what of the corpus is not stored yet, and note in `changes` what became of each document.

    Parts that changed since are read again with `changed_again`; without it they are an error.
    """
    states = store.parts()
    for part in corpus.parts:
        state = states.get(corpus.key(part))
        if state is not None and state.fingerprint != part.fingerprint:
            if not changed_again:
                raise IndexMismatchError(
                    f"index {store.folder}: {part.name} changed since it was read, or is read in another way now. "
                    "Choose another folder, or pass --overwrite to begin anew."
                )
            del states[corpus.key(part)]
    total, read = sum(part.size for part in corpus.parts), 0
    keys = {corpus.key(part) for part in corpus.parts}
    batch = _Batch()
    for part in corpus.parts:
        key = corpus.key(part)
        state = states.get(key, PartState(part.fingerprint, 0, complete=False))
        if not state.complete:
            number = 0
            for number, (unit, position) in enumerate(chunk_part(part, embedder, chunking), start=1):
                if number <= state.position:
                    continue  # committed before an interruption
                batch.units.append((unit, key, part.fingerprint))
                batch.passages += len(unit.passages) if isinstance(unit, ChunkedDocument) else 0
                if batch.full:
                    batch.parts[key] = PartState(part.fingerprint, number, complete=False)
                    _commit(store, batch, embedder, changes, keys)
                    batch = _Batch()
                    progress("reading", read + min(position, part.size or position), total, len(store))
            batch.parts[key] = PartState(part.fingerprint, number, complete=True)
        read += part.size
        if batch.full:
            _commit(store, batch, embedder, changes, keys)
            batch = _Batch()
            progress("reading", read, total, len(store))
    if batch.parts:
        _commit(store, batch, embedder, changes, keys)
    progress("reading", read, total, len(store))


def chunk_part(part: CorpusPart, embedder: Embedder, chunking: Chunking) -> Iterator[tuple[Unit, int]]:
    """The part's documents, cut, and what had to be skipped, each with how much of the part was read by then."""
    longest = embedder.max_tokens
    if longest is not None and chunking.max_tokens:
        size = min(chunking.max_tokens, longest)
        chunking = Chunking(size, min(chunking.overlap_tokens, size // 2))
    for item, position in part.read():
        if isinstance(item, Skipped | Withdrawn):
            yield item, position
        elif isinstance(item, Passage):
            yield ChunkedDocument(item.id, f"{part.name}, {item.id}", (item,)), position
        else:
            passages = tuple(chunk_document(item, chunking, embedder.count_tokens))
            where = f"{part.name}, {item.id or item.title or 'a document'}"
            if passages:
                name = item.id or item.name or f"{part.name}:{passages[0].document or passages[0].id}"
                by_path = not item.id and bool(item.name)
                yield ChunkedDocument(name, where, passages, item.version, item.aliases, by_path), position
            else:
                yield Skipped(where, "has no text"), position


def _commit(store: PassageStore, batch: _Batch, embedder: Embedder, changes: Changes, parts: Collection[str]) -> None:
    decided = decide(store, batch.units, parts)
    vectors = _vectors(store, [passage for passage, _ in decided.fresh], embedder)
    found, tables, skipped = decided.changes.counts, decided.tables, decided.skipped
    counts = Counter({"duplicates": found["repeated"], "ids told apart": found["told apart"]})
    store.append(decided.fresh, vectors, parts=batch.parts, skipped=skipped, counts=counts, changes=tables)
    changes.extend(decided.changes)


def _vectors(store: PassageStore, passages: list[Passage], embedder: Embedder) -> NDArray[np.float32]:
    """[N, D] the passages' vectors. Words that the index or the batch holds are not embedded again."""
    vectors = np.zeros((len(passages), embedder.dimension), dtype=np.float32)
    if not passages:
        return vectors
    digests = [passage.digest for passage in passages]
    rows = store.rows_with(digests)
    first: dict[str, int] = {}
    for at, digest in enumerate(digests):
        if digest not in rows:
            first.setdefault(digest, at)
    fresh = embedder.embed_passages([passages[at] for at in first.values()]) if first else ()
    made = dict(zip(first, fresh, strict=True))
    held = store.vectors() if rows else None
    for at, digest in enumerate(digests):
        vectors[at] = held[rows[digest]] if held is not None and digest in rows else made[digest]
    return vectors


def remove_lost(store: PassageStore, corpus: Corpus, changes: Changes) -> bool:
    """Take out documents that a corpus lost, but for unreadable parts; returns whether parts must be read once more."""
    gone, lost = _gone(store, corpus, changes, {corpus.key(p): p.fingerprint for p in corpus.parts})
    if gone and len(gone) == store.documents.count():
        changes.add("skipped", corpus.identity, "nothing was taken out, since nothing would be left")
        return False
    others = store.documents.other_parts(gone)
    if gone:
        store.drop(gone)
    store.forget_parts([*lost, *others])
    for name in gone:
        changes.add("gone", name, "its source has it no more")
    return bool(others)


def _gone(
    store: PassageStore, corpus: Corpus, changes: Changes, readings: dict[str, str]
) -> tuple[list[str], list[str]]:
    """Documents that are held and not in the corpus any more, and parts that it has no more."""
    before = f"{corpus.identity}::"
    unreadable = {where for what, where, _ in changes.rows if what == "skipped"}

    def sound(part: str) -> bool:
        name = part.removeprefix(before)
        return not any(name == where or name.startswith(f"{where}/") for where in unreadable)

    lost = [part for part in store.parts() if part.startswith(before) and part not in readings and sound(part)]
    gone = [name for part in lost for name in store.documents.of_part(part)]
    for part, reading in readings.items():
        if sound(part):
            gone += store.documents.of_part(part, not_read_as=reading)
    return gone, lost


def preview_sync(store: PassageStore, corpus: Corpus, embedder: Embedder, chunking: Chunking, changes: Changes) -> None:
    """Note what a synchronisation would change, without writing anything. It reads the parts that changed."""
    states = store.parts()
    readings = {corpus.key(part): part.fingerprint for part in corpus.parts}
    units: list[tuple[Unit, str, str]] = []
    changed: set[str] = set()
    for part in corpus.parts:
        key = corpus.key(part)
        if key not in states or not states[key].complete or states[key].fingerprint != readings[key]:
            changed.add(key)
            units += [(unit, key, readings[key]) for unit, _ in chunk_part(part, embedder, chunking)]
    decided = decide(store, units, readings)
    changes.extend(decided.changes)
    seen = {*decided.tables.held, *decided.tables.gone}
    unchanged = {key: reading for key, reading in readings.items() if key not in changed}
    gone, _ = _gone(store, corpus, changes, unchanged | dict.fromkeys(changed, ""))
    for name in gone:
        if name not in seen:
            changes.add("gone", name, "its source has it no more")
