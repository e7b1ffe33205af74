"""A corpus into the store, batch by batch: cut, compare with what is held, embed, commit; a killed run goes on."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from medagent.retrieval.chunking import chunk_document
from medagent.retrieval.corpora import Corpus, CorpusPart
from medagent.retrieval.embedders import Embedder
from medagent.retrieval.errors import IndexMismatchError
from medagent.retrieval.ingest_policy import Changes, ChunkedDocument, IngestPolicy, Unit
from medagent.retrieval.passages import Passage
from medagent.retrieval.readers import Item, LeftOut, Skipped, Withdrawn
from medagent.retrieval.settings import Chunking
from medagent.retrieval.store import PassageStore, Progress
from medagent.retrieval.stored_rows import PartState

BATCH = 1024  # passages embedded and committed at once


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


class Ingest:
    """Reads a corpus into a store; `changes` notes what became of each document."""

    def __init__(
        self, store: PassageStore, corpus: Corpus, embedder: Embedder, chunking: Chunking, changes: Changes | None
    ) -> None:
        self._store, self._corpus, self._embedder, self._chunking = store, corpus, embedder, chunking
        self._changes = Changes() if changes is None else changes
        self._readings = {corpus.key(part): part.fingerprint for part in corpus.parts}

    def read(self, progress: Progress, *, changed_again: bool = False) -> None:
        """Read what is not stored yet. Parts that changed are read again with `changed_again`, else an error."""
        states = self._store.parts()
        for part in self._corpus.parts:
            key = self._corpus.key(part)
            if key in states and states[key].fingerprint != part.fingerprint:
                if not changed_again:
                    raise IndexMismatchError(
                        f"index {self._store.folder}: {part.name} changed since it was read, or is read in another way "
                        "now. Choose another folder, or pass --overwrite to begin anew."
                    )
                del states[key]
                self._store.forget_notes(part.name)
        total, read, batch = sum(part.size for part in self._corpus.parts), 0, _Batch()
        for part in self._corpus.parts:
            key = self._corpus.key(part)
            state = states.get(key, PartState(part.fingerprint, 0, complete=False))
            if not state.complete:
                number = 0
                for number, (unit, position) in enumerate(chunk_part(part, self._embedder, self._chunking), start=1):
                    if number <= state.position:
                        continue  # committed before an interruption
                    batch.units.append((unit, key, part.fingerprint))
                    batch.passages += len(unit.passages) if isinstance(unit, ChunkedDocument) else 0
                    if batch.full:
                        batch.parts[key] = PartState(part.fingerprint, number, complete=False)
                        batch = self._commit(batch)
                        progress("reading", read + min(position, part.size or position), total, len(self._store))
                batch.parts[key] = PartState(part.fingerprint, number, complete=True)
            read += part.size
            if batch.full:
                batch = self._commit(batch)
                progress("reading", read, total, len(self._store))
        if batch.parts:
            self._commit(batch)
        progress("reading", read, total, len(self._store))

    def _commit(self, batch: _Batch) -> _Batch:
        """Write a batch; returns the next."""
        decided = IngestPolicy(self._store, batch.units, self._readings)
        vectors = self._vectors([passage for passage, _ in decided.fresh])
        found = decided.changes.counts
        counts = Counter({"duplicates": found["repeated"], "ids told apart": found["told apart"]})
        self._store.append(
            decided.fresh,
            vectors,
            parts=batch.parts,
            skipped=decided.skipped,
            left_out=decided.left_out,
            counts=counts,
            changes=decided.tables,
        )
        self._changes.rows += decided.changes.rows
        return _Batch()

    def _vectors(self, passages: list[Passage]) -> NDArray[np.float32]:
        """[N, D] the passages' vectors. Words that the index or the batch holds are not embedded again."""
        digests = [passage.digest for passage in passages]
        rows = self._store.rows_with(digests)
        fresh = {digest: passage for digest, passage in zip(digests, passages, strict=True) if digest not in rows}
        made = dict(zip(fresh, self._embedder.embed_passages(list(fresh.values())) if fresh else (), strict=True))
        vectors = np.zeros((len(passages), self._embedder.dimension), dtype=np.float32)
        held = self._store.vectors() if rows else vectors
        for at, digest in enumerate(digests):
            vectors[at] = held[rows[digest]] if digest in rows else made[digest]
        return vectors

    def remove_lost(self) -> bool:
        """Take out documents that the corpus lost, but for unreadable parts; whether parts must be read once more."""
        gone, lost = self._gone(self._readings)
        if gone and len(gone) == self._store.count("documents"):
            self._changes.add("skipped", self._corpus.identity, "nothing was taken out, since nothing would be left")
            return False
        others = self._store.documents.other_parts(gone)
        self._store.drop(gone, [*lost, *others])
        self._note_gone(gone)
        return bool(others)

    def _note_gone(self, names: Iterable[str]) -> None:
        for name in names:
            self._changes.add("gone", name, "its source has it no more")

    def _gone(self, readings: Mapping[str, str]) -> tuple[list[str], list[str]]:
        """Documents that are held and not in the corpus any more, and parts that it has no more."""
        before = f"{self._corpus.identity}::"
        unreadable = {where for what, where, _ in self._changes.rows if what == "skipped"}

        def sound(part: str) -> bool:
            name = part.removeprefix(before)
            return not any(name == where or name.startswith(f"{where}/") for where in unreadable)

        parts, documents = self._store.parts(), self._store.documents
        lost = [part for part in parts if part.startswith(before) and part not in readings and sound(part)]
        gone = [name for part in lost for name in documents.of_part(part)]
        read = [(part, reading) for part, reading in readings.items() if sound(part)]
        return gone + [name for part, reading in read for name in documents.of_part(part, not_read_as=reading)], lost

    def preview(self) -> None:
        """Note what a sync would change, without writing anything. It reads the parts that changed."""
        states, units, readings = self._store.parts(), list[tuple[Unit, str, str]](), dict(self._readings)
        for part in self._corpus.parts:
            key = self._corpus.key(part)
            if key not in states or not states[key].complete or states[key].fingerprint != part.fingerprint:
                chunked = chunk_part(part, self._embedder, self._chunking)
                units += [(unit, key, part.fingerprint) for unit, _ in chunked]
                readings[key] = ""  # so all of its documents count as not read
        decided = IngestPolicy(self._store, units, self._readings)
        self._changes.rows += decided.changes.rows
        seen = {*decided.tables.held, *decided.tables.gone}
        self._note_gone(name for name in self._gone(readings)[0] if name not in seen)


def chunk_part(part: CorpusPart, embedder: Embedder, chunking: Chunking) -> Iterator[tuple[Unit, int]]:
    """The part's documents, cut, and what had to be skipped, each with how much of the part was read by then."""
    longest = embedder.max_tokens
    if longest is not None and chunking.max_tokens:
        size = min(chunking.max_tokens, longest)
        chunking = Chunking(size, min(chunking.overlap_tokens, size // 2))
    for item, position in part.read():
        yield _chunked(item, part, embedder, chunking), position


def _chunked(item: Item, part: CorpusPart, embedder: Embedder, chunking: Chunking) -> Unit:
    if isinstance(item, Skipped | LeftOut | Withdrawn):
        return item
    if isinstance(item, Passage):
        return ChunkedDocument(item.id, f"{part.name}, {item.id}", (item,))
    passages = tuple(chunk_document(item, chunking, embedder.count_tokens))
    where = f"{part.name}, {item.id or item.title or 'a document'}"
    if not passages:
        return Skipped(where, "has no text")
    name = item.id or item.name or f"{part.name}:{passages[0].document or passages[0].id}"
    return ChunkedDocument(name, where, passages, item.version, item.aliases, not item.id and bool(item.name))
