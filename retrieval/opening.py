"""A retriever by the name of its index: a folder, several with commas between them, or the address of a served one."""

from __future__ import annotations

from pathlib import Path

from medagent.retrieval.errors import RetrievalError
from medagent.retrieval.remote import RemoteRetriever
from medagent.retrieval.search import HybridRetriever
from medagent.retrieval.sharded import ShardedRetriever

URL = ("http://", "https://")


def open_index(index: str, *, where: str = "") -> HybridRetriever | RemoteRetriever | ShardedRetriever:
    """The retriever of an index folder with the index's own settings, or of an index served at an address.

    Several folders are searched as one: "indexes/a,indexes/b". `where` is a filter (`medagent.retrieval.filters`) that
    holds for every search.

    Raises:
        RetrievalError: an address among several names.
    """
    if index.startswith(URL) and "," not in index:
        return RemoteRetriever(index, where=where)
    folders = index_folders(index)
    if len(folders) > 1:
        return ShardedRetriever(folders, where=where)
    return HybridRetriever(folders[0], where=where)


def index_folders(index: str) -> list[str]:
    """The folders of a name; a folder whose own name has a comma is one.

    Raises:
        RetrievalError: an address among several names.
    """
    if "," not in index or Path(index).exists():
        return [index]
    names = [name.strip() for name in index.split(",")]
    if any(name.startswith(URL) for name in names):
        raise RetrievalError(
            f"index {index!r}: found an address among several names, wanted folders. Serve each of them, and give one "
            "address; or give folders of this machine."
        )
    return names
