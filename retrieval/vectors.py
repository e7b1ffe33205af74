"""The dense side: vectors in a Chroma collection, in the index's folder or on Chroma's own server."""

import json
import logging
import shutil
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import chromadb
import numpy as np
from chromadb.api.models.Collection import Collection
from chromadb.config import Settings
from chromadb.errors import ChromaError, NotFoundError
from numpy.typing import NDArray

from medagent.retrieval.access import is_disk_full, may_write, writable_copy
from medagent.retrieval.embedders import Space
from medagent.retrieval.errors import IndexMismatchError, RetrieverUnavailableError
from medagent.retrieval.store import PassageStore

log = logging.getLogger(__name__)
BATCH = 1024  # rows added at once; Chroma takes at most 5,461
# Up to so many passages every search visits all of them, so it is exact, and no slower than the rest of a search.
# Beyond, results may differ between processes: Chroma replays its log into the graph whenever it opens.
EXACT_UP_TO = 10_000
_BLOCK = 16_384  # vectors in memory at once in an exact search
HNSW = {"max_neighbors": 32, "ef_construction": 200, "ef_search": 500}


class ChromaVectors:
    """A collection whose ids are row numbers. It has vectors only; text and metadata are in the passage store."""

    def __init__(self, client: Any, name: str, where: str, folder: Path | None = None) -> None:
        """`where` names the collection in errors; `folder` is Chroma's own, where this object may tidy it."""
        self._client, self._name, self._where, self._folder = client, name, where, folder
        self._collection: Collection | None = None
        self.close: Callable[[], object] = lambda: None  # deletes the copy, where there is one

    @staticmethod
    def local(folder: Path) -> "ChromaVectors":
        """In `folder`/chroma. One process only may own it; who may not write there gets a copy."""
        place = folder / "chroma"
        copied = place.exists() and not may_write(folder)
        used = writable_copy(place) if copied else place
        client = chromadb.PersistentClient(str(used), settings=Settings(anonymized_telemetry=False))
        vectors = ChromaVectors(client, "passages", str(place), used)
        if copied:
            vectors.close = weakref.finalize(vectors, shutil.rmtree, used, ignore_errors=True)
        return vectors

    @staticmethod
    def remote(url: str, name: str) -> "ChromaVectors":
        """On a Chroma server (`chroma run`), in a collection of that name."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise IndexMismatchError(f"chroma {url!r}: wanted the address of a server, such as http://localhost:8000.")
        try:
            client = chromadb.HttpClient(
                host=parts.hostname,
                port=parts.port or (443 if parts.scheme == "https" else 8000),
                ssl=parts.scheme == "https",
                settings=Settings(anonymized_telemetry=False),
            )
        except Exception as error:  # Chroma raises ValueError, httpx errors and its own for a server that is not there
            raise RetrieverUnavailableError(
                f"Chroma's server {url} does not answer ({error!r}). Start it with: chroma run --path FOLDER"
            ) from error
        return ChromaVectors(client, name, url)

    def open(self) -> bool:
        """Open the collection; False where there is none."""
        try:
            self._collection = self._client.get_collection(self._name, embedding_function=None)
        except NotFoundError:
            return False
        model: Any = self._collection._model
        if '"known"' in json.dumps([model.configuration_json, model.serialized_schema]):
            self._collection = None
            raise IndexMismatchError(
                f"chroma {self._where}: found the name of an embedding function, wanted none. Chroma would build it, "
                "and run code that its settings name. Make the collection again with: medagent index rebuild FOLDER"
            )
        return True

    def hold(
        self, store: PassageStore, rows: NDArray[np.int64], *, space: Space, progress: Callable[[int], None]
    ) -> None:
        """Hold the vectors of these rows and no others; a local collection that cannot be used is made anew.

        `progress` is told how many it holds.
        """
        try:
            self._match(store, rows, space, progress)
        except ChromaError as error:
            if self._folder is None or is_disk_full(self._folder, error):
                raise
            log.warning("%s cannot be used (%s) and is made anew.", self._where, error)
            self.drop()
            self._match(store, rows, space, progress)

    def _match(
        self, store: PassageStore, rows: NDArray[np.int64], space: Space, progress: Callable[[int], None]
    ) -> None:
        # A small collection is made anew when it changes: how many passages its searches visit is fixed when it is
        # opened.
        if not self.open() or (len(rows) <= EXACT_UP_TO and len(self) != len(rows)):
            self.drop()
            hnsw = {**HNSW, "space": space, "ef_search": _ef_search(len(rows))}
            self._collection = self._client.create_collection(
                self._name, configuration={"hnsw": hnsw}, embedding_function=None
            )
        held = np.array(sorted(self.ids()), dtype=np.int64)
        surplus, missing = np.setdiff1d(held, rows), np.setdiff1d(rows, held)
        for start in range(0, len(surplus), BATCH):
            self.collection.delete(ids=[str(row) for row in surplus[start : start + BATCH]])
        vectors, done = store.vectors(), len(rows) - len(missing)
        for start in range(0, len(missing), BATCH):
            batch = missing[start : start + BATCH]
            self.collection.add(ids=[str(row) for row in batch], embeddings=np.asarray(vectors[batch]))
            progress(done + start + len(batch))
        # How many passages a search visits follows their present number, from the next opening on.
        self.collection.modify(configuration={"hnsw": {"ef_search": _ef_search(len(rows))}})

    def drop(self) -> None:
        """Delete the collection, if there is one."""
        if any(collection.name == self._name for collection in self._client.list_collections()):
            self._client.delete_collection(self._name)
        for left in self._folder.iterdir() if self._folder else ():
            if left.is_dir():  # Chroma leaves a deleted collection's graph on disk, vectors and all
                shutil.rmtree(left)
        self._collection = None

    @property
    def collection(self) -> Collection:
        """The open collection."""
        if self._collection is None:
            raise IndexMismatchError(f"chroma {self._where}: holds no collection {self._name!r}.")
        return self._collection

    def __len__(self) -> int:
        return int(self.collection.count())

    def ids(self) -> set[int]:
        """The row numbers in the collection."""
        found: set[int] = set()
        size = 50_000
        for offset in range(0, len(self), size):
            found.update(int(id_) for id_ in self.collection.get(limit=size, offset=offset, include=[])["ids"])
        return found

    def get(self, rows: Sequence[int]) -> dict[int, NDArray[np.float32]]:
        """The stored vectors of rows."""
        answer = self.collection.get(ids=[str(row) for row in rows], include=["embeddings"])
        return {
            int(id_): np.asarray(vector, dtype=np.float32)
            for id_, vector in zip(answer["ids"], answer["embeddings"], strict=True)  # type: ignore[arg-type]
        }

    def nearest(self, vectors: NDArray[np.float32], *, top_k: int) -> list[list[tuple[float, int]]]:
        """For each vector at most `top_k` (distance, row) pairs, nearest first."""
        try:
            answer = self.collection.query(query_embeddings=vectors, n_results=top_k, include=["distances"])
        except Exception as error:  # the one boundary at which Chroma's many failures become ours
            raise RetrieverUnavailableError(f"Chroma ({self._where}) does not answer: {error!r}") from error
        found = zip(answer["ids"], answer["distances"] or [], strict=True)
        return [
            [(distance, int(id_)) for id_, distance in zip(ids, distances, strict=True)] for ids, distances in found
        ]


def _ef_search(num_rows: int) -> int:
    return max(num_rows, 10) if num_rows <= EXACT_UP_TO else int(HNSW["ef_search"])


def exact_nearest(
    queries: NDArray[np.float32], vectors: NDArray[np.float32], rows: NDArray[np.int64], *, space: Space, top_k: int
) -> list[list[tuple[float, int]]]:
    """The exact form of `ChromaVectors.nearest` over the given rows only: (distance, row), ties by row."""
    best: list[list[tuple[float, int]]] = [[] for _ in queries]
    asked = _unit(queries.astype(np.float64)) if space == "cosine" else queries.astype(np.float64)
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        some = np.asarray(vectors[block], dtype=np.float64)
        found = 1 - asked @ (_unit(some) if space == "cosine" else some).T
        for i, distances in enumerate(found.astype(np.float32)):  # the last bit depends on the vectors beside
            order = np.argsort(distances, kind="stable")[:top_k]
            best[i] = sorted([*best[i], *((float(distances[j]), int(block[j])) for j in order)])[:top_k]
    return best


def _unit(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), dtype=np.float64)
