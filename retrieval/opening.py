"""A retriever by the name of its index: a folder, or the address of a served one."""

from __future__ import annotations

from retrieval.remote import RemoteRetriever
from retrieval.search import HybridRetriever

URL = ("http://", "https://")


def open_retriever(index: str, *, where: str = "") -> HybridRetriever | RemoteRetriever:
    """The retriever of an index folder with the index's own settings, or of an index served at an address.

    `where` is a filter (`retrieval.filters`) that holds for every search.
    """
    return RemoteRetriever(index, where=where) if index.startswith(URL) else HybridRetriever(index, where=where)
