"""Settings of building and searching an index, written into its manifest, so that every caller searches alike."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from medagent.retrieval.errors import RetrievalError

AnalyserName = Literal["medical", "biomedical", "biomedical-unstemmed", "words"]  # see retrieval.analysis
MOST_EVIDENCE = 10.0  # a guideline then counts eleven times what a letter does


@dataclass(frozen=True)
class Chunking:
    """A passage has at most `max_tokens` tokens (0: no limit); up to `overlap_tokens` repeat the one before."""

    max_tokens: int = 200
    overlap_tokens: int = 30

    def __post_init__(self) -> None:
        if self.max_tokens < 0 or not 0 <= self.overlap_tokens <= max(self.max_tokens // 2, 0):
            raise RetrievalError(
                f"chunking: max_tokens {self.max_tokens} and overlap_tokens {self.overlap_tokens} found; wanted "
                "max_tokens of at least 0 and an overlap of at most half of it."
            )


@dataclass(frozen=True)
class SearchSettings:
    """How rankings are fused and shown.

    The dense and the lexical ranking give `num_candidates` each. Reciprocal rank fusion adds weight / (rrf_k + rank).
    Hits that repeat another's words to the share `collapse` are left out (1: only equal text, 0: none). With
    `near_words` a word of a query that no passage has stands for the nearest that some have. A passage is shown where
    it has the share `floor` of the query's words, weighted by how rare they are, so that a search may find nothing; 0
    shows all. A score is multiplied by 1 + `evidence_weight` times the level of the passage's publication type
    (`medagent.retrieval.fusion`); 0 ignores types. docs/retrieval-figures.md measures the defaults.
    """

    num_candidates: int = 50
    dense_weight: float = 1.0
    lexical_weight: float = 1.0
    rrf_k: int = 10
    collapse: float = 0.9
    near_words: bool = True
    floor: float = 0.0
    evidence_weight: float = 0.0

    def __post_init__(self) -> None:
        if self.num_candidates < 1 or self.rrf_k < 0 or not (0 <= self.collapse <= 1 and 0 <= self.floor <= 1):
            raise RetrievalError(
                f"search settings: {asdict(self)} found; wanted num_candidates of at least 1, rrf_k of at least 0, "
                "and collapse and floor from 0 to 1."
            )
        if min(self.dense_weight, self.lexical_weight) < 0 or self.dense_weight + self.lexical_weight == 0:
            raise RetrievalError("search settings: weights must not be negative, and one of them must be above 0.")
        if not 0 <= self.evidence_weight <= MOST_EVIDENCE:
            raise RetrievalError(
                f"search settings: evidence_weight {self.evidence_weight} found, wanted a number from 0 to "
                f"{MOST_EVIDENCE:g}."
            )


@dataclass(frozen=True)
class IndexSettings:
    """Settings of an index besides corpus and embedder; `chroma` is a server's address, or empty for the folder.

    `ocr` are the languages in which pages of PDFs without text are recognized; empty for none.
    """

    chunking: Chunking = Chunking()
    analyser: AnalyserName = "medical"
    bm25_k1: float = 0.9
    bm25_b: float = 0.4
    chroma: str = ""
    search: SearchSettings = field(default_factory=SearchSettings)
    ocr: str = ""

    @staticmethod
    def from_json(row: dict[str, Any]) -> "IndexSettings":
        """The inverse of `asdict`."""
        return IndexSettings(
            **{**row, "chunking": Chunking(**row["chunking"]), "search": SearchSettings(**row["search"])}
        )
