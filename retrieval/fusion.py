"""Two rankings become one: reciprocal rank fusion, levels of evidence, repeats left out.

Reciprocal rank fusion (Cormack et al., SIGIR 2009): score(d) = sum over rankings of weight / (k + rank of d).
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from functools import lru_cache

from medagent.retrieval.filters import KINDS, fold
from medagent.retrieval.passages import Passage
from medagent.retrieval.settings import SearchSettings

Ranking = list[int]
_WORD = re.compile(r"\w+")
SHINGLE = 3
LEVELS = {"guideline": 1.0, "systematic review": 0.9, "rct": 0.7, "trial": 0.5, "review": 0.3, "case report": 0.1}


def nearest_rows(found: list[tuple[float, int]], top_k: int) -> Ranking:
    """Rows of (distance, row) pairs by distance, then number; ties of the last, drawn by chance, are left out."""
    nearest = sorted(found)
    if len(nearest) > top_k and nearest[0][0] < nearest[-1][0]:
        nearest = [pair for pair in nearest if pair[0] < nearest[-1][0]]
    return [row for _, row in nearest][:top_k]


def fuse(dense: Ranking, lexical: Ranking, settings: SearchSettings) -> list[tuple[int, float]]:
    """(row, score) pairs of either ranking, best first; ties are broken by row."""
    scores: dict[int, float] = {}
    weights = (settings.dense_weight, settings.lexical_weight)
    for weight, ranking in zip(weights, (dense, lexical), strict=True):
        for rank, row in enumerate(ranking if weight else (), start=1):
            scores[row] = scores.get(row, 0.0) + weight / (settings.rrf_k + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


def drop_duplicates(ranked: Iterable[tuple[Passage, float]], threshold: float) -> Iterator[tuple[Passage, float]]:
    """The (passage, score) pairs that repeat none before them; all of them where `threshold` is 0.

    A repeat holds the same numbers, and the Jaccard similarity of its runs of three words reaches `threshold`.
    """
    kept: list[tuple[frozenset[tuple[str, ...]], Counter[str]]] = []
    for passage, score in ranked:
        if threshold:
            words = _WORD.findall(passage.indexed_text.lower())
            shingles = frozenset(zip(*(words[i:] for i in range(SHINGLE)), strict=False)) or frozenset([tuple(words)])
            numbers = Counter(word for word in words if any(char.isdigit() for char in word))
            if any(numbers == others and _similar(shingles, other, threshold) for other, others in kept):
                continue
            kept.append((shingles, numbers))
        yield passage, score


def _similar(a: frozenset[tuple[str, ...]], b: frozenset[tuple[str, ...]], threshold: float) -> bool:
    if min(len(a), len(b)) < threshold * max(len(a), len(b)):  # similarity cannot exceed this ratio
        return False
    common = len(a & b)
    return common >= threshold * (len(a) + len(b) - common)


def evidence_level(types: Iterable[str]) -> float:
    """The highest level of a passage's types, from 0 (unknown, letter, editorial) to 1 (guideline)."""
    return max((_level(name) for name in types), default=0.0)


@lru_cache(maxsize=1000)
def _level(name: str) -> float:
    """The level of one type; LEVELS begins with the strongest."""
    found = fold(name)
    kinds = (level for kind, level in LEVELS.items() if any(fnmatchcase(found, each) for each in (kind, *KINDS[kind])))
    return next(kinds, 0.0)
