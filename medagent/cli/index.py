"""Builds, extends and syncs an index with progress bars."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from medagent.cli.progress import Show, index_bars
from medagent.cli.safe_text import escape
from medagent.evaluation.corpora import named_corpus
from medagent.retrieval.embedders import embedder_from_identity
from medagent.retrieval.index import add_to_index, build_index, sync_index
from medagent.retrieval.ingest_policy import Changes
from medagent.retrieval.manifest import Manifest
from medagent.retrieval.settings import IndexSettings
from medagent.starter.index import STARTER_INDEX

MAX_SHOWN = 10  # changes on the screen; the file has all


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
    """Build an index with progress bars, and print what was skipped. A `dense_weight` of None takes the embedder's."""
    ready = embedder_from_identity(embedder, device=device)
    weight = ready.dense_weight if dense_weight is None else dense_weight
    settings = replace(settings, search=replace(settings.search, dense_weight=weight))
    if corpus in ("starter", "starter:train"):
        settings = replace(STARTER_INDEX, chroma=settings.chroma)
    parts = named_corpus(corpus)

    def build(show: Show, changes: Changes) -> Manifest:
        return build_index(parts, out, ready, settings=settings, overwrite=overwrite, progress=show, changes=changes)

    _with_progress(out, build)


def update_with_progress(
    corpus: str, index: Path, *, device: str | None, sync: bool = False, dry_run: bool = False
) -> None:
    """Add a corpus to an index, or sync them, with progress bars, and print what that changed or would change."""
    ready = embedder_from_identity(Manifest.read(index).embedder, device=device)
    parts = named_corpus(corpus)

    def update(show: Show, changes: Changes) -> Manifest:
        if sync:
            return sync_index(index, parts, ready, dry_run=dry_run, progress=show, changes=changes)
        return add_to_index(index, parts, ready, progress=show, changes=changes)

    _with_progress(index, update, dry_run=dry_run)


def _with_progress(folder: Path, work: Callable[[Show, Changes], Manifest], *, dry_run: bool = False) -> None:
    changes = Changes()
    with index_bars() as show:
        manifest = work(show, changes)
    console = Console(highlight=False)
    if dry_run:
        console.print(f"Index {folder} would change: {changes.summary()}.", soft_wrap=True)
    else:
        told = f"{manifest.num_passages:,} passages, embedder {manifest.embedder}"
        console.print(f"Index {folder}: {told}. Documents: {changes.summary()}.", soft_wrap=True)
    notable = [row for row in changes.rows if row[0] not in ("added", "unchanged")]
    for what, which, why in notable[:MAX_SHOWN]:
        console.print(escape(f"  {what}: {which}{f' ({why})' if why else ''}"), soft_wrap=True)
    if changes.rows and not dry_run:
        more = f" All {len(changes.rows):,}" if len(notable) > MAX_SHOWN else " All of them"
        console.print(f"{more} are in {changes.write(folder)}.".strip(), soft_wrap=True)
