"""Character n-grams of words, hashed into a fixed number of places (Weinberger et al., arXiv 0902.2206).

The vectors are those of scikit-learn's `HashingVectorizer(analyzer="char_wb")`, which takes seconds to import.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import mmh3
import numpy as np
from numpy.typing import NDArray

REMEMBERED_WORDS = 100_000


class HashedNgrams:
    """Texts to unit vectors of `dimension` places; n-grams of `min_n` to `max_n` characters within words."""

    def __init__(self, dimension: int, min_n: int, max_n: int) -> None:
        self._dimension, self._min_n, self._max_n = dimension, min_n, max_n
        self._places = lru_cache(maxsize=REMEMBERED_WORDS)(self._hashed)

    def vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """[N, D] unit vectors; zero for a text without words."""
        found = np.zeros((len(texts), self._dimension), dtype=np.float64)
        for row, text in enumerate(texts):
            words = [self._places(word) for word in text.lower().split()]
            if words:
                places, signs = (np.concatenate(parts) for parts in zip(*words, strict=True))
                found[row] = np.bincount(places, weights=signs, minlength=self._dimension)
        norms = np.sqrt((found**2).sum(axis=1, keepdims=True))
        return np.asarray(found / np.where(norms == 0, 1, norms), dtype=np.float32)

    def _hashed(self, word: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The places and signs of a word's n-grams; the sign keeps collisions from adding up."""
        padded = f" {word} "
        grams: list[str] = []
        for n in range(self._min_n, self._max_n + 1):
            grams += [padded[at : at + n] for at in range(max(1, len(padded) - n + 1))]
            if len(padded) <= n:  # a short word counts once
                break
        hashes = np.array([mmh3.hash(gram.encode("utf-8", "surrogatepass")) for gram in grams], dtype=np.int64)
        return np.abs(hashes) % self._dimension, np.where(hashes >= 0, 1.0, -1.0)
