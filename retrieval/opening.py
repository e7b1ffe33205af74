"""An index by its name: the folder of one, or the address of one that is served."""

from pathlib import Path

from medagent.retrieval.errors import RetrievalError
from medagent.retrieval.remote import RemoteRetriever
from medagent.retrieval.search import HybridRetriever

URL = ("http://", "https://")


def open_index(index: str, *, where: str = "") -> HybridRetriever | RemoteRetriever:
    """The retriever of an index folder or an address; the filter `where` holds for each search.

    Raises:
        RetrievalError: several folders are named.
    """
    if index.startswith(URL):
        return RemoteRetriever(index, where=where)
    return HybridRetriever(index_folder(index), where=where)


def index_folder(index: str) -> str:
    """The name of a folder; an error where it lists several."""
    if "," in index and not Path(index).exists():
        first, *others = (name.strip() for name in index.split(","))
        raise RetrievalError(
            f"index {index!r}: found {len(others) + 1} names, wanted one folder. Put the corpora into one index: "
            f"`medagent index add {first} CORPUS` for each; `index sync` follows each of them by itself."
        )
    return index
