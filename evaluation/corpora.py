"""Corpora by the names that `medagent index build` and `medagent contamination` take."""

from medagent.evaluation.benchmarks import bioasq_passages, pubmedqa_passages
from medagent.retrieval.corpora import Corpus, as_corpus, memory_corpus
from medagent.retrieval.embedders import HashedNgramEmbedder
from medagent.retrieval.ingest import chunk_part
from medagent.retrieval.ingest_policy import ChunkedDocument
from medagent.retrieval.passages import Passage
from medagent.retrieval.settings import Chunking
from medagent.starter.world import World


def named_corpus(corpus: str) -> Corpus:
    """A corpus by name or path.

    Names: starter, starter:train, pubmedqa:FILE, pubmedqa:hub:DATASET, bioasq:FILES, hub:DATASET[:SPLIT].
    """
    if corpus == "starter":
        return memory_corpus(World.load().passages(), corpus)
    if corpus == "starter:train":
        return memory_corpus(World.load().passages(("train", "validation")), corpus)
    if corpus.startswith("pubmedqa:"):
        return memory_corpus(pubmedqa_passages(corpus.removeprefix("pubmedqa:")), "pubmedqa")
    if corpus.startswith("bioasq:"):
        return memory_corpus(bioasq_passages(corpus.removeprefix("bioasq:")), "bioasq")
    return as_corpus(corpus)


def corpus_passages(corpus: str) -> list[Passage]:
    """All passages of a corpus by name, whole documents uncut."""
    whole = Chunking(max_tokens=0, overlap_tokens=0)
    units = (unit for part in named_corpus(corpus).parts for unit, _ in chunk_part(part, HashedNgramEmbedder(), whole))
    return [passage for unit in units if isinstance(unit, ChunkedDocument) for passage in unit.passages]
