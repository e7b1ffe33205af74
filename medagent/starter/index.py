"""The starter world's index: short one-fact passages, with words taken as they are and nothing cut or collapsed.

The demo and the studies measure with these settings. Those for texts in general are `IndexSettings()`.
"""

from collections.abc import Sequence
from pathlib import Path

from medagent.retrieval.embedders import HashedNgramEmbedder
from medagent.retrieval.index import build_index
from medagent.retrieval.manifest import Manifest
from medagent.retrieval.passages import Passage
from medagent.retrieval.settings import Chunking, IndexSettings, SearchSettings

STARTER_INDEX = IndexSettings(
    chunking=Chunking(max_tokens=0, overlap_tokens=0),
    analyser="words",
    bm25_k1=1.5,
    bm25_b=0.75,
    search=SearchSettings(num_candidates=20, rrf_k=60, collapse=0.0),
)


def build_starter_index(folder: Path, passages: Sequence[Passage], *, overwrite: bool = False) -> Manifest:
    """Index passages of the starter world with hashed n-grams and the starter's settings."""
    return build_index(passages, folder, HashedNgramEmbedder(), settings=STARTER_INDEX, overwrite=overwrite)
