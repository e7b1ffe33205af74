"""The output of `medagent index` and `medagent search`: progress, changes, and passages for people or programs."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from medagent.cli.progress import index_bars
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
