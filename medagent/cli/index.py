"""Work on an index, with progress bars and a report of what it changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from medagent.cli.progress import index_bars
from medagent.cli.safe_text import escape
from medagent.retrieval.ingest_policy import Changes
from medagent.retrieval.manifest import Manifest

MAX_SHOWN = 10  # changes on the screen; the file has all


def report_changes(folder: Path, work: Callable[..., Manifest], *, dry_run: bool = False) -> None:
    """Call `work(progress=..., changes=...)`, and print what it changed in the index, or would change."""
    changes = Changes()
    with index_bars() as show:
        manifest = work(progress=show, changes=changes)
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
