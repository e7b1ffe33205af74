"""BM25 over several indexes with the statistics of all their passages, so that scores are those of one index.

bm25s stores a score per token and passage, with its own index's idf and mean length in it. The score is

    idf(df, N) * tf / (tf + K),   K = k1 * (1 - b + b * length / mean length)
    idf(df, N) = ln(1 + (N - df + 0.5) / (df + 0.5))

so tf follows from it, and the score is computed again with N, df and the mean length of all. It is equal to the last
bit, as the operations, their order and their precision are bm25s's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from medagent.retrieval.errors import IndexMismatchError
from medagent.retrieval.lexical import FOLDER, LENGTHS, LexicalIndex, best_documents


@dataclass(frozen=True)
class WordStatistics:
    """Of some passages: how many, the sum of their lengths in tokens, and how many hold each token."""

    passages: int
    tokens: int
    frequencies: Mapping[str, int]

    def __add__(self, other: WordStatistics) -> WordStatistics:
        """Of both."""
        names = {*self.frequencies, *other.frequencies}
        counts = {name: self.frequencies.get(name, 0) + other.frequencies.get(name, 0) for name in names}
        return WordStatistics(self.passages + other.passages, self.tokens + other.tokens, counts)

    def idf(self, token: str) -> np.float32:
        """The weight of a token, in the precision in which bm25s keeps it."""
        frequency = self.frequencies[token]
        return np.float32(math.log(1 + (self.passages - frequency + 0.5) / (frequency + 0.5)))


class LexicalShard:
    """One of several indexes of words. Passages that are `left_out` count nowhere."""

    def __init__(self, folder: Path, index: LexicalIndex, left_out: NDArray[np.int64]) -> None:
        """`left_out` are row numbers.

        Raises:
            IndexMismatchError: the lengths are not stored, or are not those of the passages.
        """
        self._index, self._left_out = index, np.isin(index.rows, left_out)
        path = folder / FOLDER / LENGTHS
        try:
            self._lengths = np.load(path)
        except (OSError, ValueError) as error:
            raise IndexMismatchError(
                f"index {folder}: the lengths of its passages cannot be read ({error}), and are wanted for a search "
                f"together with other indexes. Make them with: medagent index rebuild {folder}"
            ) from error
        if len(self._lengths) != len(index):
            raise IndexMismatchError(
                f"index {folder}: {path.name} holds {len(self._lengths):,} lengths, wanted {len(index):,}. Make it "
                f"again with: medagent index rebuild {folder}"
            )

    def statistics(self, tokens: set[str]) -> WordStatistics:
        """The statistics of what is not left out, for these tokens."""
        kept = ~self._left_out
        found = {token: self.num_passages_with(token) for token in tokens}
        return WordStatistics(int(kept.sum()), int(self._lengths[kept].sum()), found)

    def num_passages_with(self, token: str) -> int:
        """In how many passages a token is, of those that are not left out."""
        return int((~self._left_out[self._index.postings(token)[0]]).sum())

    def best(
        self, variants: list[list[str]], of_all: WordStatistics, *, top_k: int, allowed: NDArray[np.int64] | None
    ) -> list[tuple[float, int]]:
        """At most `top_k` (score, row) pairs with a score above 0, best first; `allowed` rows only, where given.

        A passage has the best score of the variants of a query.
        """
        scores = self._scores(variants[0], of_all)
        for tokens in variants[1:]:
            scores = np.maximum(scores, self._scores(tokens, of_all))
        outside = self._left_out if allowed is None else self._left_out | ~np.isin(self._index.rows, allowed)
        scores[outside] = 0
        found = best_documents(scores, top_k)
        return [(float(score), int(row)) for score, row in zip(scores[found], self._index.rows[found], strict=True)]

    def _scores(self, tokens: list[str], of_all: WordStatistics) -> NDArray[np.float32]:
        """[passages] scores of a query's tokens."""
        scores = np.zeros(len(self._index), dtype=np.float32)
        mean = np.float64(of_all.tokens / of_all.passages)
        for token in tokens:
            documents, stored = self._index.postings(token)
            if len(documents):
                tf = self._term_frequencies(documents, stored)
                saturation = self._saturation(self._lengths[documents], mean)
                scores[documents] += (of_all.idf(token) * (tf / (tf + saturation))).astype(np.float32)
        return scores

    @cached_property
    def _own_mean(self) -> float:
        return float(self._lengths.mean())

    def _saturation(self, lengths: NDArray[np.int64], mean: float) -> NDArray[np.float64]:
        k1, b = self._index.constants
        return np.asarray(k1 * ((1 - b) + b * lengths / mean), dtype=np.float64)

    def _term_frequencies(self, documents: NDArray[np.int32], stored: NDArray[np.float32]) -> NDArray[np.float64]:
        """How often a token is in each of its documents."""
        own = WordStatistics(len(self._index), 0, {"": len(documents)})
        share = stored / np.float64(own.idf(""))  # tf / (tf + K)
        saturation = self._saturation(self._lengths[documents], self._own_mean)
        # Where K is 0, so is the fraction: then tf counts for nothing, and 1 does as well as any.
        found = np.rint(saturation * share / np.maximum(1 - share, 1e-9))
        return np.asarray(np.maximum(found, 1.0), dtype=np.float64)
