"""Makes of an index afresh what its passages give."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from medagent.retrieval.embedders import Embedder
from medagent.retrieval.errors import IndexMismatchError
from medagent.retrieval.index import chroma, make_search_structures, no_progress
from medagent.retrieval.index_checks import check_read_whole
from medagent.retrieval.locking import writing
from medagent.retrieval.manifest import Manifest, check_embedder
from medagent.retrieval.store import PassageStore, Progress


def repair_index(folder: Path, embedder: Embedder, *, progress: Progress = no_progress) -> Manifest:
    """Make afresh the vectors where these are damaged, and Chroma and BM25.

    Raises:
        IndexMismatchError: the passages themselves are damaged, or half read.
    """
    manifest = Manifest.read(folder)
    check_embedder(folder, manifest, embedder)
    with writing(folder), closing(PassageStore(folder, manifest.dimension)) as store:
        if manifest.complete and store.content_sha256() != manifest.content_sha256:
            raise IndexMismatchError(
                f"index {folder}: its passages are not those it was built with, and nothing else holds them. Restore "
                "passages.sqlite from a backup, or build the index again with --overwrite."
            )
        check_read_whole(folder, store)
        if manifest.complete and store.embeddings_sha256() != manifest.embeddings_sha256:
            store.embed_again(embedder, progress)
        chroma(folder, manifest).drop()
        return make_search_structures(folder, store, manifest, progress)
