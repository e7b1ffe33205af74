"""Whether an index may be changed: it is what it was made as, and nothing of it is half read."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from medagent.retrieval.errors import IndexMismatchError
from medagent.retrieval.manifest import Manifest
from medagent.retrieval.store import PassageStore


def check_undamaged(folder: Path, manifest: Manifest) -> None:
    """Refuse a complete index whose passages or vectors are not those that its manifest names.

    Damage is never made the truth.
    """
    if not manifest.complete:
        return
    with closing(PassageStore(folder, manifest.dimension)) as store:
        found = (store.content_sha256(), store.embeddings_sha256())
    if found != (manifest.content_sha256, manifest.embeddings_sha256):
        raise IndexMismatchError(
            f"index {folder}: its passages or vectors are not those it was built with (medagent index verify "
            f"{folder} says which). Restore both files from a backup, or build the index again with --overwrite."
        )


def check_read_whole(folder: Path, store: PassageStore) -> None:
    """Refuse while a part of a corpus is half read: only the command that began it knows what is missing."""
    half = [name for name, state in store.parts().items() if not state.complete]
    if half:
        raise IndexMismatchError(
            f"index {folder}: {half[0]} was read by half when a build or an addition was interrupted. Run that "
            "command again to go on."
        )
