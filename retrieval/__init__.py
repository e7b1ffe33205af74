"""Documents to passages, passages to an index, an index to search; names are imported when they are first used."""

import os
from typing import TYPE_CHECKING

from medagent.lazy import homes_in, lazy

# bm25s computes with JAX while it is imported, where JAX is installed. JAX would take 75% of a GPU's memory then.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

if TYPE_CHECKING:
    from medagent.retrieval.errors import RetrievalError
    from medagent.retrieval.filters import Filter
    from medagent.retrieval.index import add_to_index, build_index, sync_index
    from medagent.retrieval.passages import Hit, Passage
    from medagent.retrieval.readers import read_documents
    from medagent.retrieval.remote import RemoteRetriever, open_index
    from medagent.retrieval.search import HybridRetriever
    from medagent.retrieval.settings import Chunking, IndexSettings, SearchSettings

__all__ = [
    "Chunking",
    "Filter",
    "Hit",
    "HybridRetriever",
    "IndexSettings",
    "Passage",
    "RemoteRetriever",
    "RetrievalError",
    "SearchSettings",
    "add_to_index",
    "build_index",
    "open_index",
    "read_documents",
    "sync_index",
]

__getattr__, __dir__ = lazy(__name__, homes_in(__name__, __file__))
