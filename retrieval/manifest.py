"""The record of an index's settings and content, and the check of its embedder."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from medagent.retrieval.access import check_readable
from medagent.retrieval.embedders import Embedder, Space, embedder_from_identity
from medagent.retrieval.errors import IndexMismatchError
from medagent.retrieval.settings import IndexSettings

FORMAT = 3
PROBE = "Which drug is given first for acute gout?"


@dataclass(frozen=True)
class Manifest:
    """The settings and content of an index; `probe` begins the vector of a fixed query, which tells a changed model."""

    embedder: str
    dimension: int
    space: Space
    settings: IndexSettings
    probe: tuple[float, ...]
    id: str
    corpus: str = ""
    num_passages: int = 0
    content_sha256: str = ""
    embeddings_sha256: str = ""
    complete: bool = False
    format: int = FORMAT
    synonyms_sha256: str = ""

    @staticmethod
    def read(folder: Path) -> "Manifest":
        """The manifest of an index folder, checked for its format."""
        path = folder / "manifest.json"
        check_readable(folder)
        if not path.exists():
            raise IndexMismatchError(
                f"index {folder}: no manifest.json found there. Build one with: "
                f"medagent index build CORPUS --out {folder}"
            )
        try:
            row = json.loads(path.read_text(encoding="utf-8"))
            if row.get("format") != FORMAT:
                raise IndexMismatchError(
                    f"index {folder}: format {row.get('format')} found, {FORMAT} wanted. Build it again from its "
                    "documents, in another folder or with --overwrite."
                )
            settings = IndexSettings.from_json(row["settings"])
            return Manifest(**{**row, "settings": settings, "probe": tuple(row["probe"])})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise IndexMismatchError(
                f"index {folder}: manifest.json is damaged ({error!r}). Restore it from a backup, or build the index "
                "again."
            ) from error

    def write(self, folder: Path) -> None:
        """Write atomically: a killed build leaves the old manifest or the new one."""
        part = folder / "manifest.json.part"
        part.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        os.replace(part, folder / "manifest.json")

    @property
    def version(self) -> str:
        """Changes with everything that can change a search's result."""
        row = {name: value for name, value in asdict(self).items() if name not in ("id", "corpus", "complete")}
        if not self.synonyms_sha256:
            del row["synonyms_sha256"]
        if not self.settings.ocr:
            del row["settings"]["ocr"]
        return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:16]


def probe(embedder: Embedder) -> tuple[float, ...]:
    """The first 16 numbers of a fixed query's vector, rounded to 5 digits."""
    return tuple(round(float(value), 5) for value in embedder.embed_queries([PROBE])[0][:16])


def check_embedder(folder: Path, manifest: Manifest, embedder: Embedder) -> None:
    """An error unless the embedder is the one the index was built with, down to the vectors it gives."""
    if manifest.embedder != embedder.identity:
        raise IndexMismatchError(
            f"index {folder}: was built with the embedder {manifest.embedder!r}, and would be searched with "
            f"{embedder.identity!r}. Configure the embedder it was built with, or rebuild the index."
        )
    same_length = embedder.dimension == manifest.dimension
    if not same_length or not np.allclose(probe(embedder), manifest.probe, atol=0.01 * max(map(abs, manifest.probe))):
        raise IndexMismatchError(
            f"index {folder}: the embedder {embedder.identity!r} no longer gives the vectors it gave when the index "
            "was built; its model changed. Restore the model, or build the index again with --overwrite."
        )


def embedder_of(folder: Path, manifest: Manifest, embedder: Embedder | None = None) -> Embedder:
    """The given embedder, or else the manifest's; an error unless the index was built with it."""
    embedder = embedder_from_identity(manifest.embedder) if embedder is None else embedder
    check_embedder(folder, manifest, embedder)
    return embedder


def embedder_of_index(folder: Path, device: str | None = None) -> Embedder:
    """The embedder that an index was built with, on a device."""
    return embedder_from_identity(Manifest.read(folder).embedder, device=device)
