"""Embedders turn texts into unit vectors; the identity of an embedder decides whether an index may be searched with it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import HashingVectorizer

from retrieval.errors import RetrievalError


class Embedder(Protocol):
    """Anything with an identity that turns texts into rows of unit length."""

    @property
    def identity(self) -> str:
        """Names the mapping from text to vector: equal identities give equal vectors."""
        ...

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        ...

    def embed_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """[N, D] float32 unit vectors of passages."""
        ...

    def embed_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """[N, D] float32 unit vectors of queries."""
        ...


class HashedNgramEmbedder:
    """Hashed character n-grams (scikit-learn's `HashingVectorizer`): no model, no download, robust to spelling variants."""

    def __init__(self, dimension: int = 1024, min_n: int = 3, max_n: int = 5) -> None:
        """`dimension` is the number of hash buckets; n-grams of `min_n` to `max_n` characters inside word borders."""
        self._dimension = dimension
        self.identity = f"hashed-ngrams:{dimension}:{min_n}-{max_n}"
        self._vectorizer = HashingVectorizer(
            analyzer="char_wb", ngram_range=(min_n, max_n), n_features=dimension, norm="l2"
        )

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return self._dimension

    def embed_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """[N, D] unit vectors."""
        return np.asarray(self._vectorizer.transform(texts).toarray(), dtype=np.float32)

    embed_queries = embed_passages


class SentenceTransformerEmbedder:
    """A sentence-transformers model by hub name or local path (extra: `pip install medagent[sentence-transformers]`)."""

    def __init__(
        self,
        model: str,
        query_prefix: str = "",
        passage_prefix: str = "",
        device: str | None = None,
        batch_size: int = 64,
    ) -> None:
        """Prefixes are part of the identity: E5 wants "query: " and "passage: ", others want none."""
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise RetrievalError(
                f"the embedder {model!r} needs the package sentence-transformers, which is not installed. "
                "Install it with: pip install 'medagent[sentence-transformers]'"
            ) from error
        self._model = SentenceTransformer(model, device=device)
        self._prefixes = (query_prefix, passage_prefix)
        self._batch_size = batch_size
        self.identity = "|".join(("sentence-transformers", model, query_prefix, passage_prefix))

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return int(self._model.get_sentence_embedding_dimension() or 0)

    def _embed(self, prefix: str, texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = self._model.encode(
            [prefix + text for text in texts],
            batch_size=self._batch_size,
            normalize_embeddings=True,
            show_progress_bar=False,
        )
        return np.asarray(vectors, dtype=np.float32)

    def embed_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """[N, D] unit vectors of passages, with the passage prefix."""
        return self._embed(self._prefixes[1], texts)

    def embed_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """[N, D] unit vectors of queries, with the query prefix."""
        return self._embed(self._prefixes[0], texts)


def embedder_from_identity(identity: str) -> Embedder:
    """The embedder that an index or an agent names."""
    match = re.fullmatch(r"hashed-ngrams:(\d+):(\d+)-(\d+)", identity)
    if match:
        return HashedNgramEmbedder(*map(int, match.groups()))
    kind, *rest = identity.split("|")
    if kind == "sentence-transformers" and len(rest) == 3:
        model, query_prefix, passage_prefix = rest
        return SentenceTransformerEmbedder(model, query_prefix, passage_prefix)
    raise RetrievalError(
        f"embedder {identity!r}: unknown. Wanted 'hashed-ngrams:DIM:MIN-MAX' or "
        "'sentence-transformers|MODEL|QUERY_PREFIX|PASSAGE_PREFIX'."
    )
