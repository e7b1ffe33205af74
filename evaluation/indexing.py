"""Corpora by name, and `medagent index build` with progress for people."""

from __future__ import annotations

from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from evaluation.benchmarks import bioasq_passages, pubmedqa_passages
from medagent.starter.world import World
from retrieval.corpora import read_corpus
from retrieval.embedders import embedder_from_identity
from retrieval.index import build_index
from retrieval.passages import Passage


def corpus_passages(corpus: str, *, max_words: int) -> list[Passage]:
    """The passages of a corpus by name: starter, starter:train, pubmedqa:FILE, bioasq:PATH, or a path."""
    if corpus == "starter":
        return World.load().passages()
    if corpus == "starter:train":
        return World.load().passages(("train", "validation"))
    if corpus.startswith("pubmedqa:"):
        return pubmedqa_passages(Path(corpus.removeprefix("pubmedqa:")))
    if corpus.startswith("bioasq:"):
        return bioasq_passages(Path(corpus.removeprefix("bioasq:")))
    return list(read_corpus(Path(corpus), max_words=max_words))


def build_index_aloud(corpus: str, out: Path, *, embedder: str, max_words: int, overwrite: bool) -> None:
    """Build an index with progress bars."""
    columns = (TextColumn("{task.description:10s}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as bars:
        tasks = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done)

        passages = corpus_passages(corpus, max_words=max_words)
        manifest = build_index(out, passages, embedder_from_identity(embedder), overwrite=overwrite, progress=show)
    print(f"Index {out}: {manifest.num_passages:,} passages, embedder {manifest.embedder}.")
