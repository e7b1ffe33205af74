"""The work of `medagent index build` and `medagent index add`, with progress."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from evaluation.corpora import named_corpus
from medagent.cli.progress import Show, index_bars
from medagent.starter.index import STARTER_INDEX
from retrieval.embedders import embedder_from_identity
from retrieval.index import add_to_index, build_index
from retrieval.manifest import Manifest
from retrieval.settings import IndexSettings
from retrieval.store import PassageStore


def build_with_progress(
    corpus: str,
    out: Path,
    *,
    embedder: str,
    settings: IndexSettings,
    dense_weight: float | None,
    device: str | None,
    overwrite: bool,
) -> None:
    """Build an index with progress bars, and say what was skipped. A `dense_weight` of None takes the embedder's."""
    ready = embedder_from_identity(embedder, device=device)
    weight = ready.dense_weight if dense_weight is None else dense_weight
    settings = replace(settings, search=replace(settings.search, dense_weight=weight))
    if corpus in ("starter", "starter:train"):
        settings = replace(STARTER_INDEX, chroma=settings.chroma)
    parts = named_corpus(corpus)
    _aloud(out, lambda show: build_index(out, parts, ready, settings=settings, overwrite=overwrite, progress=show))


def add_with_progress(corpus: str, index: Path, *, device: str | None) -> None:
    """Add a corpus to an index with progress bars, and say what was skipped."""
    ready = embedder_from_identity(Manifest.read(index).embedder, device=device)
    parts = named_corpus(corpus)
    _aloud(index, lambda show: add_to_index(index, parts, ready, progress=show))


def _aloud(folder: Path, work: Callable[[Show], Manifest]) -> None:
    with index_bars() as show:
        manifest = work(show)
    console = Console(highlight=False)
    console.print(f"Index {folder}: {manifest.num_passages:,} passages, embedder {manifest.embedder}.", soft_wrap=True)
    with closing(PassageStore(folder, manifest.dimension)) as store:
        counts, skipped, number = store.counts(), store.skipped(limit=10), store.num_skipped()
    if counts["duplicates"]:
        console.print(f"{counts['duplicates']:,} passages had the same words as another one and were dropped.")
    if counts["ids told apart"]:
        console.print(f"{counts['ids told apart']:,} ids named two texts; the second got a suffix (~).")
    if skipped:
        console.print(f"Skipped {number:,} (medagent index stats {folder} --json lists more):", soft_wrap=True)
        for where, reason in skipped:
            console.print(f"  {where} {reason}", markup=False, soft_wrap=True)
