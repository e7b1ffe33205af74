"""A retriever by the name of its index: a folder, several with commas between them, or the address of a served one."""

from __future__ import annotations

from pathlib import Path

from medagent.retrieval.errors import RetrievalError
from medagent.retrieval.remote import RemoteRetriever
from medagent.retrieval.search import HybridRetriever
from medagent.retrieval.sharded import ShardedRetriever

URL = ("http://", "https://")


def open_index(index: str, *, where: str = "") -> HybridRetriever | RemoteRetriever | ShardedRetriever:
    """The retriever of an index folder, several ("indexes/a,indexes/b") or an address; `where` filters each search."""
    if index.startswith(URL) and "," not in index:
        return RemoteRetriever(index, where=where)
    folders = index_folders(index)
    if len(folders) > 1:
        return ShardedRetriever(folders, where=where)
    return HybridRetriever(folders[0], where=where)


def index_folders(index: str) -> list[str]:
    """The folders of a name; a folder whose own name has a comma is one. An address among several is an error."""
    if "," not in index or Path(index).exists():
        return [index]
    names = [name.strip() for name in index.split(",")]
    if any(name.startswith(URL) for name in names):
        raise RetrievalError(
            f"index {index!r}: found an address among several names, wanted folders. Serve each of them, and give one "
            "address; or give folders of this machine."
        )
    return names
