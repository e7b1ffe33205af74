"""BM25 (bm25s) over an index's passages, with the constants of Anserini (Yang et al., SIGIR 2017)."""

import os
import shutil
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace

import bm25s
import numpy as np
from numpy.typing import NDArray

from medagent.retrieval.analysis import Analyser
from medagent.retrieval.errors import IndexMismatchError
from medagent.retrieval.query_match import QueryWords, Synonyms, read_synonyms

FOLDER = "bm25"


class LexicalIndex:
    """BM25 scores of an index. Ties are broken by row, so that equal searches give equal results."""

    def __init__(
        self, scores: bm25s.BM25, rows: NDArray[np.int64], analyser: Analyser, synonyms: Synonyms | None = None
    ) -> None:
        """`rows[i]` is the row number of document i, ascending."""
        self._scores, self.rows, self.analyser = scores, rows, analyser
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
        shutil.rmtree(folder / FOLDER, ignore_errors=True)
        os.replace(part, folder / FOLDER)

    @staticmethod
    def load(folder: Path, analyser: Analyser) -> "LexicalIndex":
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
        if token not in self._scores.vocab_dict:
            return 0
        id_, starts = self._scores.vocab_dict[token], self._scores.scores["indptr"]
        return int(starts[id_ + 1]) - int(starts[id_])

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
