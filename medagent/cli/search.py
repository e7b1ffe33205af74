"""`medagent search`: passages for people, or JSON lines for programs."""

from __future__ import annotations

import json

from rich.console import Console

from medagent.cli.safe_text import escape
from medagent.errors import InputError
from retrieval.filters import Filter
from retrieval.opening import folders_named, open_retriever
from retrieval.remote import RemoteRetriever
from retrieval.rerank import CrossEncoderReranker
from retrieval.search import HybridRetriever
from retrieval.sharded import ShardedRetriever


def print_search(query: str, index: str, *, top_k: int, where: Filter, reranker: str | None, as_json: bool) -> None:
    """Print what a search finds.

    Raises:
        InputError: the query is empty.
    """
    if not query.strip():
        raise InputError("the query is empty. Give words to search for, in quotes.")
    retriever: HybridRetriever | RemoteRetriever | ShardedRetriever
    if reranker:
        second, folders = CrossEncoderReranker(reranker), folders_named(index)
        retriever = (
            HybridRetriever(folders[0], reranker=second)
            if len(folders) == 1
            else ShardedRetriever(folders, reranker=second)
        )
    else:
        retriever = open_retriever(index)
    hits = retriever.search_where([query], top_k=top_k, where=where)[0]
    console = Console(highlight=False)
    if not hits and not as_json:
        console.print("Nothing found." if where.empty else f"Nothing found. The filter was: {escape(str(where))}")
    for number, hit in enumerate(hits, start=1):
        passage = hit.passage
        if as_json:
            print(json.dumps({**passage.to_json(), "score": hit.score}, ensure_ascii=False))
            continue
        known = (passage.source, passage.year, passage.licence, passage.about.link, *passage.about.notices)
        origin = ", ".join(str(part) for part in known if part)
        console.print(
            f"[bold]{number}. {escape(passage.heading)}[/bold] [dim]{escape(passage.id)}  {hit.score:.4f}[/dim]"
        )
        console.print(f"   {escape(passage.text)}  [dim]{escape(origin)}[/dim]")
