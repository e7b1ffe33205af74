"""BM25 (bm25s) over an index's passages: built in one pass over the stored passages, searched by row number.

The defaults k1 = 0.9 and b = 0.4 (`IndexSettings`) are those of Anserini (Yang et al., SIGIR 2017).
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import bm25s
import numpy as np
from numpy.typing import NDArray

from retrieval.analysis import Analyser
from retrieval.errors import IndexMismatchError
from retrieval.near_words import NearWords

FOLDER = "bm25"


class _TokenIds(Sequence[list[int]]):
    """Token ids of many texts in one flat array: lists of Python integers would take ten times the memory."""

    def __init__(self) -> None:
        self._flat, self._ends = array("i"), array("q", [0])

    def add(self, ids: Iterable[int]) -> None:
        self._flat.extend(ids)
        self._ends.append(len(self._flat))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> list[int]:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._flat[self._ends[index] : self._ends[index + 1]].tolist()

    def __iter__(self) -> Iterator[list[int]]:
        return (self[index] for index in range(len(self)))


class LexicalIndex:
    """BM25 scores of an index. Ties are broken by row, so that equal searches give equal results."""

    def __init__(self, scores: bm25s.BM25, rows: NDArray[np.int64], analyser: Analyser) -> None:
        """`rows[i]` is the row number of document i."""
        self._scores, self._rows, self._analyser = scores, rows, analyser
        self._vocabulary: dict[str, int] = scores.vocab_dict
        self._near = NearWords(self._vocabulary, self._num_passages_with)

    @staticmethod
    def build(folder: Path, texts: Iterable[tuple[int, str]], analyser: Analyser, *, k1: float, b: float) -> None:
        """Index (row, text) pairs and save them in `folder`/bm25, whole or not at all."""
        vocabulary: dict[str, int] = {}
        documents, rows = _TokenIds(), array("q")
        for row, text in texts:
            rows.append(row)
            documents.add(vocabulary.setdefault(token, len(vocabulary)) for token in analyser.tokens(text))
        if not vocabulary:
            vocabulary[""] = 0
        scores = bm25s.BM25(k1=k1, b=b)
        scores.index(SimpleNamespace(ids=documents, vocab=vocabulary), show_progress=False)
        part = folder / f"{FOLDER}.part"
        shutil.rmtree(part, ignore_errors=True)
        scores.save(part)
        np.save(part / "rows.npy", np.frombuffer(rows, dtype=np.int64))
        shutil.rmtree(folder / FOLDER, ignore_errors=True)
        os.replace(part, folder / FOLDER)

    @staticmethod
    def load(folder: Path, analyser: Analyser) -> LexicalIndex:
        """Open what `build` saved; the scores stay on disk until they are used."""
        try:
            scores = bm25s.BM25.load(folder / FOLDER, load_corpus=False, mmap=True)
            rows = np.load(folder / FOLDER / "rows.npy")
        except (OSError, ValueError, KeyError) as error:
            raise IndexMismatchError(
                f"index {folder}: its BM25 files cannot be read ({error}). Make them again with: medagent index "
                f"rebuild {folder}"
            ) from error
        return LexicalIndex(scores, rows, analyser)

    def __len__(self) -> int:
        """How many passages it holds."""
        return len(self._rows)

    def search(
        self,
        queries: Sequence[str],
        *,
        top_k: int,
        allowed: NDArray[np.int64] | None = None,
        near_words: bool = False,
    ) -> list[list[int]]:
        """For each query at most `top_k` rows with a score above 0, best first; `allowed` rows only, where given.

        With `near_words` a word that no passage has stands for the nearest that some have (`retrieval.near_words`).
        """
        outside = None if allowed is None else ~np.isin(self._rows, allowed)
        return [self._best(self._known(query, near_words), top_k, outside) for query in queries]

    def coverage(self, query: str, texts: Sequence[str], *, near_words: bool = False) -> list[float]:
        """How much of a query each text has: the share of its words, each weighted by how rare it is (0 to 1).

        The weight is BM25's idf, log(1 + (N - n + 0.5) / (n + 0.5)) with n of N passages having the word. A word that
        no passage has counts most.
        """
        wanted: dict[str, set[str]] = {}
        for word in self._analyser.tokens(query):
            near = self._near.near(word) if near_words and word not in self._vocabulary else ()
            wanted[word] = {word, *near}
        weights = {word: max(self._idf(each) for each in same) for word, same in wanted.items()}
        total = sum(weights.values())
        found = [set(self._analyser.tokens(text)) for text in texts]
        return [
            sum(weight for word, weight in weights.items() if wanted[word] & held) / total if total else 1.0
            for held in found
        ]

    def _known(self, query: str, near_words: bool) -> list[int]:
        """The numbers of the query's words that passages have."""
        words = self._analyser.tokens(query)
        if near_words:
            words = [each for word in words for each in ([word] if word in self._vocabulary else self._near.near(word))]
        return list(self._scores.get_tokens_ids(words))

    def _num_passages_with(self, token: int) -> int:
        starts = self._scores.scores["indptr"]
        return int(starts[token + 1] - starts[token])

    def _idf(self, word: str) -> float:
        held = self._num_passages_with(self._vocabulary[word]) if word in self._vocabulary else 0
        return math.log(1 + (len(self) - held + 0.5) / (held + 0.5))

    def _best(self, ids: list[int], top_k: int, outside: NDArray[np.bool_] | None) -> list[int]:
        if not ids:
            return []
        scores = self._scores.get_scores_from_ids(ids)
        if outside is not None:
            scores[outside] = 0
        last = np.partition(scores, -top_k)[-top_k] if top_k < len(scores) else 0
        found = np.flatnonzero(scores >= last if last > 0 else scores > 0)
        order = np.lexsort((found, -scores[found]))[:top_k]
        return [int(row) for row in self._rows[found[order]]]


def lexical_sha256(folder: Path) -> str:
    """SHA-256 over the saved BM25 files, in the order of their names."""
    digest = hashlib.sha256()
    for path in sorted((folder / FOLDER).iterdir()):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
