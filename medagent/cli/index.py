"""The output of `medagent index` and `medagent search`: progress, changes, and passages for people or programs."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from medagent.cli.safe_text import escape
from medagent.errors import InputError
from medagent.retrieval.chunking import kind_line
from medagent.retrieval.filters import Filter
from medagent.retrieval.ingest_policy import Changes
from medagent.retrieval.manifest import Manifest
from medagent.retrieval.query_match import operators_note
from medagent.retrieval.remote import URL, RemoteRetriever, index_folder, open_index
from medagent.retrieval.rerank import reranker_named
from medagent.retrieval.search import HybridRetriever

Show = Callable[[str, int, int, int], None]  # (stage, done, total, passages so far)
STAGES = {"reading": "reading, embedding", "indexing": "vectors to Chroma", "words": "words to BM25"}
RECOGNIZING = "text recognition"  # counted in pages, and of how many is not known
MAX_SHOWN = 10  # changes on the screen; the file has all


@contextmanager
def index_bars() -> Iterator[Show]:
    """A bar for each stage of an index's work, with rate and time left, while the block runs."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:18s}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%  {task.fields[count]}, {task.fields[rate]:,.1f}/s"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as bars:
        tasks: dict[str, tuple[int, float, int]] = {}

        def show(stage: str, done: int, total: int, passages: int) -> None:
            so_far = passages if stage == "reading" else done
            count = f"{so_far:,} {'pages' if stage == RECOGNIZING else 'passages'}"
            if stage not in tasks:
                task = bars.add_task(STAGES.get(stage, stage), total=total or None, count=count, rate=0.0)
                tasks[stage] = (int(task), time.monotonic(), so_far)
            number, begun, first = tasks[stage]
            rate = (so_far - first) / max(time.monotonic() - begun, 1e-3)
            bars.update(bars.task_ids[number], completed=done, count=count, rate=rate)

        yield show


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


def print_search(
    query: str,
    index: str,
    *,
    top_k: int,
    where: Filter,
    changed: Mapping[str, Any],
    reranker: str | None,
    as_json: bool,
) -> None:
    """Print what a search finds, with `changed` in place of the index's own settings of these names.

    Raises:
        InputError: the query is empty, or a served index is asked with settings of its own.
    """
    if not query.strip():
        raise InputError("the query is empty. Give words to search for, in quotes.")
    retriever = _opened(index, changed, reranker)
    hits = retriever.search_where([query], top_k=top_k, where=where)[0]
    console = Console(highlight=False)
    if note := operators_note(query):
        print(note, file=sys.stderr if as_json else sys.stdout)
    if not as_json and not isinstance(retriever, RemoteRetriever):
        for word, near in retriever.replaced(query).items():
            console.print(f"[dim]No passage has {escape(word)!r}. Searched for: {escape(', '.join(near))}.[/dim]")
    if not hits and not as_json:
        console.print("Nothing found." if where.empty else f"Nothing found. The filter was: {escape(str(where))}")
    for number, hit in enumerate(hits, start=1):
        passage = hit.passage
        if as_json:
            print(json.dumps({**passage.to_json(), "score": hit.score}, ensure_ascii=False))
            continue
        about = passage.about
        kind = kind_line(about.kind, about.grade)
        known = (passage.source, passage.year, kind, passage.licence, about.link, *about.notices)
        origin = ", ".join(str(part) for part in known if part)
        console.print(
            f"[bold]{number}. {escape(passage.heading)}[/bold] [dim]{escape(passage.id)}  {hit.score:.4f}[/dim]"
        )
        console.print(f"   {escape(passage.text)}  [dim]{escape(origin)}[/dim]")


def _opened(index: str, changed: Mapping[str, Any], reranker: str | None) -> HybridRetriever | RemoteRetriever:
    if not changed and reranker is None:
        return open_index(index)
    if index.startswith(URL):
        raise InputError(
            f"index {index}: is served, with a floor, evidence_weight and reranker of its own. Give a folder to set "
            "them."
        )
    second = reranker_named(reranker) if reranker else None
    settings = replace(Manifest.read(Path(index_folder(index))).settings.search, **changed)
    return HybridRetriever(index, settings=settings, reranker=second)
