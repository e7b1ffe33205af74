"""BM25 (bm25s) over an index's passages, with the constants of Anserini (Yang et al., SIGIR 2017)."""

from __future__ import annotations

import hashlib
import math
import os
import shutil
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import bm25s
import numpy as np
from numpy.typing import NDArray

from medagent.retrieval.analysis import Analyser
from medagent.retrieval.errors import IndexMismatchError
from medagent.retrieval.query_match import QueryWords, Synonyms, read_synonyms

FOLDER = "bm25"
LENGTHS = "lengths.npy"  # in tokens; what `medagent.retrieval.lexical` needs besides


class LexicalIndex:
    """BM25 scores of an index. Ties are broken by row, so that equal searches give equal results."""

    def __init__(
        self, scores: bm25s.BM25, rows: NDArray[np.int64], analyser: Analyser, synonyms: Synonyms | None = None
    ) -> None:
        """`rows[i]` is the row number of document i, ascending; `constants` are BM25's k1 and b."""
        self._scores, self.rows, self.analyser = scores, rows, analyser
        self.constants = float(scores.k1), float(scores.b)
        self.words = QueryWords(analyser.groups, self.vocabulary, self.num_passages_with, len(rows), synonyms)

    @staticmethod
    def build(folder: Path, texts: Iterable[tuple[int, str]], analyser: Analyser, *, k1: float, b: float) -> None:
        """Index (row, text) pairs and save them in `folder`/bm25, whole or not at all."""
        vocabulary: dict[str, int] = {}
        documents: list[array[int]] = []
        rows = array("q")
        for row, text in texts:
            rows.append(row)
            ids = (vocabulary.setdefault(token, len(vocabulary)) for token in analyser.tokens(text))
            documents.append(array("i", ids))  # a list of integers would take twice the memory
        if not vocabulary:
            vocabulary[""] = 0
        scores = bm25s.BM25(k1=k1, b=b)
        scores.index(SimpleNamespace(ids=documents, vocab=vocabulary), show_progress=False)
        part = folder / f"{FOLDER}.part"
        shutil.rmtree(part, ignore_errors=True)
        scores.save(part)
        np.save(part / "rows.npy", np.frombuffer(rows, dtype=np.int64))
        np.save(part / LENGTHS, np.array(list(map(len, documents)), dtype=np.int64))
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
        return LexicalIndex(scores, rows, analyser, Synonyms(read_synonyms(folder)))

    def vocabulary(self) -> Iterable[str]:
        """The words that passages have."""
        return [word for word in self._scores.vocab_dict if word]  # bm25s adds an empty one

    def num_passages_with(self, token: str) -> int:
        """In how many passages a token is."""
        return len(self.postings(token)[0])

    def postings(self, token: str) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The documents with a token, as places in `rows`, and its scores there; nothing for an unknown token."""
        stored = self._scores.scores
        if token not in self._scores.vocab_dict:
            return stored["indices"][:0], stored["data"][:0]
        id_ = self._scores.vocab_dict[token]
        start, end = int(stored["indptr"][id_]), int(stored["indptr"][id_ + 1])
        return stored["indices"][start:end], stored["data"][start:end]

    def search(
        self, queries: Sequence[str], *, top_k: int, allowed: NDArray[np.int64] | None = None, near_words: bool = False
    ) -> list[list[int]]:
        """For each query at most `top_k` rows with a score above 0, best first; `allowed` rows only, where given."""
        outside = None if allowed is None else ~np.isin(self.rows, allowed)
        return [self._best(self.words.searched(query, near_words=near_words), top_k, outside) for query in queries]

    def _best(self, variants: list[list[str]], top_k: int, outside: NDArray[np.bool_] | None) -> list[int]:
        some = [ids for words in variants if (ids := self._scores.get_tokens_ids(words))]
        if not some:
            return []
        scores = self._scores.get_scores_from_ids(some[0])
        for ids in some[1:]:
            scores = np.maximum(scores, self._scores.get_scores_from_ids(ids))
        if outside is not None:
            scores[outside] = 0
        return [int(row) for row in self.rows[best_documents(scores, top_k)]]


def best_documents(scores: NDArray[np.float32], top_k: int) -> NDArray[np.int64]:
    """The places of the `top_k` highest scores above 0, best first; ties are broken by place."""
    last = np.partition(scores, -top_k)[-top_k] if top_k < len(scores) else 0
    found = np.flatnonzero(scores >= last if last > 0 else scores > 0)
    return np.asarray(found[np.lexsort((found, -scores[found]))[:top_k]])


def lexical_sha256(folder: Path) -> str:
    """SHA-256 over the saved BM25 files, in the order of their names."""
    digest = hashlib.sha256()
    for path in sorted((folder / FOLDER).iterdir()):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


@dataclass(frozen=True)
class WordStatistics:
    """Statistics of passages: their number, their tokens in all, and how many passages hold each token."""

    passages: int
    tokens: int
    frequencies: Mapping[str, int]

    def __add__(self, other: WordStatistics) -> WordStatistics:
        """The statistics of both."""
        names = {*self.frequencies, *other.frequencies}
        counts = {name: self.frequencies.get(name, 0) + other.frequencies.get(name, 0) for name in names}
        return WordStatistics(self.passages + other.passages, self.tokens + other.tokens, counts)

    def idf(self, token: str) -> np.float32:
        """The weight of a token, in the precision in which bm25s keeps it."""
        frequency = self.frequencies[token]
        return np.float32(math.log(1 + (self.passages - frequency + 0.5) / (frequency + 0.5)))


class LexicalShard:
    """One of several indexes of words. Passages that are `excluded` count nowhere."""

    def __init__(self, folder: Path, index: LexicalIndex, excluded: NDArray[np.int64]) -> None:
        """`excluded` are row numbers; an `IndexMismatchError` where the lengths are not those of the passages."""
        self._index, self._excluded = index, np.isin(index.rows, excluded)
        path = folder / FOLDER / LENGTHS
        try:
            self._lengths = np.load(path)
        except (OSError, ValueError) as error:
            raise IndexMismatchError(
                f"index {folder}: the lengths of its passages cannot be read ({error}), and are wanted for a search "
                f"together with other indexes. Make them with: medagent index rebuild {folder}"
            ) from error
        if len(self._lengths) != len(index.rows):
            raise IndexMismatchError(
                f"index {folder}: {path.name} holds {len(self._lengths):,} lengths, wanted {len(index.rows):,}. Make "
                f"them with: medagent index rebuild {folder}"
            )
        self._own_mean = float(self._lengths.mean())

    def statistics(self, tokens: set[str]) -> WordStatistics:
        """The statistics of what is not left out, for these tokens."""
        kept = ~self._excluded
        found = {token: self.num_passages_with(token) for token in tokens}
        return WordStatistics(int(kept.sum()), int(self._lengths[kept].sum()), found)

    def num_passages_with(self, token: str) -> int:
        """In how many passages a token is, of those that are not left out."""
        return int((~self._excluded[self._index.postings(token)[0]]).sum())

    def best(
        self, variants: list[list[str]], of_all: WordStatistics, *, top_k: int, allowed: NDArray[np.int64] | None
    ) -> list[tuple[float, int]]:
        """At most `top_k` (score, row) pairs above 0, by the best variant; `allowed` rows only, where given."""
        scores = self._scores(variants[0], of_all)
        for tokens in variants[1:]:
            scores = np.maximum(scores, self._scores(tokens, of_all))
        outside = self._excluded if allowed is None else self._excluded | ~np.isin(self._index.rows, allowed)
        scores[outside] = 0
        found = best_documents(scores, top_k)
        return [(float(score), int(row)) for score, row in zip(scores[found], self._index.rows[found], strict=True)]

    def _scores(self, tokens: list[str], of_all: WordStatistics) -> NDArray[np.float32]:
        """[passages] scores of a query's tokens."""
        scores = np.zeros(len(self._index.rows), dtype=np.float32)
        mean = np.float64(of_all.tokens / of_all.passages)
        for token in tokens:
            documents, stored = self._index.postings(token)
            if len(documents):
                tf = self._term_frequencies(documents, stored)
                saturation = self._saturation(self._lengths[documents], mean)
                scores[documents] += (of_all.idf(token) * (tf / (tf + saturation))).astype(np.float32)
        return scores

    def _saturation(self, lengths: NDArray[np.int64], mean: float) -> NDArray[np.float64]:
        k1, b = self._index.constants
        return np.asarray(k1 * ((1 - b) + b * lengths / mean), dtype=np.float64)

    def _term_frequencies(self, documents: NDArray[np.int32], stored: NDArray[np.float32]) -> NDArray[np.float64]:
        """How often a token is in each of its documents."""
        own = WordStatistics(len(self._index.rows), 0, {"": len(documents)})
        share = stored / np.float64(own.idf(""))  # tf / (tf + K)
        saturation = self._saturation(self._lengths[documents], self._own_mean)
        # If K is 0, so is the fraction, and tf does not count: 1 does as well as any.
        found = np.rint(saturation * share / np.maximum(1 - share, 1e-9))
        return np.asarray(np.maximum(found, 1.0), dtype=np.float64)
