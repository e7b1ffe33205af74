"""A corpus into the store, batch by batch: cut, look for duplicates, embed, commit.

After a kill it goes on where it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from retrieval.chunking import Chunking, cut_document
from retrieval.corpora import Corpus, CorpusPart
from retrieval.embedders import Embedder
from retrieval.errors import IndexMismatchError
from retrieval.passages import Passage
from retrieval.readers import Skipped
from retrieval.store import PartState, PassageStore, Progress

BATCH = 1024  # passages embedded and committed at once


@dataclass
class _Batch:
    """What one transaction will hold.

    Small files share a batch, as a model embeds many passages at once far quicker than few.
    """

    passages: list[Passage] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    parts: dict[str, PartState] = field(default_factory=dict)

    def take(self, item: Passage | Skipped) -> None:
        """Put one in."""
        if isinstance(item, Skipped):
            self.skipped.append((item.where, item.reason))
        else:
            self.passages.append(item)

    @property
    def full(self) -> bool:
        """Whether it is time to commit."""
        return max(len(self.passages), len(self.skipped), len(self.parts) // 10) >= BATCH


def ingest(
    store: PassageStore,
    corpus: Corpus,
    embedder: Embedder,
    chunking: Chunking,
    progress: Progress,
    *,
    changed_again: bool = False,
) -> None:
    """Read what of the corpus is not stored yet.

    Parts that changed since are read again with `changed_again`; without it they are an error. A passage whose content
    is stored already is dropped and counted. One whose id is taken by other content gets a suffix.
    """
    states = store.parts()
    prints = {part.name: part.fingerprint for part in corpus.parts}
    for part in corpus.parts:
        state = states.get(f"{corpus.identity}::{part.name}")
        if state is not None and state.fingerprint != prints[part.name]:
            if not changed_again:
                raise IndexMismatchError(
                    f"index {store.folder}: {part.name} changed since it was read. Choose another folder, or pass "
                    "--overwrite to begin anew."
                )
            del states[f"{corpus.identity}::{part.name}"]
    total, read = corpus.size, 0
    batch = _Batch()
    for part in corpus.parts:
        key, fingerprint = f"{corpus.identity}::{part.name}", prints[part.name]
        state = states.get(key, PartState(fingerprint, 0, complete=False))
        if not state.complete:
            number = 0
            for number, (item, position) in enumerate(cut_part(part, embedder, chunking), start=1):
                if number <= state.position:
                    continue  # committed before an interruption
                batch.take(item)
                if batch.full:
                    batch.parts[key] = PartState(fingerprint, number, complete=False)
                    _commit(store, batch, embedder)
                    batch = _Batch()
                    progress("reading", read + min(position, part.size or position), total, len(store))
            batch.parts[key] = PartState(fingerprint, number, complete=True)
        read += part.size
        if batch.full:
            _commit(store, batch, embedder)
            batch = _Batch()
            progress("reading", read, total, len(store))
    if batch.parts:
        _commit(store, batch, embedder)
    progress("reading", read, total, len(store))


def cut_part(part: CorpusPart, embedder: Embedder, chunking: Chunking) -> Iterator[tuple[Passage | Skipped, int]]:
    """The part's passages and what had to be skipped, each with how much of the part was read by then."""
    longest = embedder.max_tokens
    if longest is not None and chunking.max_tokens:
        size = min(chunking.max_tokens, longest)
        chunking = Chunking(size, min(chunking.overlap_tokens, size // 2))
    for item, position in part.read():
        if isinstance(item, Passage | Skipped):
            yield item, position
        else:
            passages = list(cut_document(item, chunking, embedder.count_tokens))
            if not passages:
                yield Skipped(f"{part.name}, {item.id or item.title or 'a document'}", "has no text"), position
            for passage in passages:
                yield passage, position


def _told_apart(store: PassageStore, id: str, digest: str, taken: dict[str, str]) -> str:
    """The id with a suffix that follows from the content, and that neither the store nor the batch has."""
    new = f"{id}~{digest[:8]}"
    while new in taken or store.rows_of([new]):
        new += "~"
    return new


def _commit(store: PassageStore, batch: _Batch, embedder: Embedder) -> None:
    ids, digests = store.known(batch.passages)
    counts: Counter[str] = Counter()
    fresh: list[Passage] = []
    for passage in batch.passages:
        digest = passage.digest
        if digest in digests:
            counts["duplicates"] += 1
            continue
        if ids.get(passage.id, digest) != digest:
            passage = replace(passage, id=_told_apart(store, passage.id, digest, ids))
            counts["ids told apart"] += 1
        ids[passage.id] = digest
        digests.add(digest)
        fresh.append(passage)
    vectors = embedder.embed_passages(fresh) if fresh else np.zeros((0, embedder.dimension), dtype=np.float32)
    store.append(fresh, vectors, parts=batch.parts, skipped=batch.skipped, counts=counts)
