"""Digests of what is measured, so that a folder of answers is only continued with the same agent and index."""

from hashlib import file_digest, sha256
from pathlib import Path

from medagent.agent_folder import full_name
from medagent.models.base_models import STARTER, base_sha256, is_gguf, model_path
from medagent.retrieval.controls import corpus_of
from medagent.retrieval.remote import RemoteRetriever
from medagent.retrieval.retriever import Retriever
from medagent.retrieval.search import HybridRetriever

LARGE = 64 * 2**20  # bytes; larger files are compared by size and time


def agent_fingerprint(agent: str) -> str:
    """A digest of an agent's own files, or of a local model's files. Empty where there is none to read."""
    named = full_name(agent)
    name = named.removeprefix("hf:")
    is_base = name != named or name == STARTER  # an agent's folder may be called as a base is
    if is_base and is_gguf(name):
        return base_sha256(name)
    folder = Path(model_path(name) if is_base else name)
    total = sha256()
    for file in sorted(file for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else []:
        total.update(str(file.relative_to(folder)).encode() + b"\0")
        stat = file.stat()
        if stat.st_size > LARGE:
            total.update(f"{stat.st_size} {stat.st_mtime_ns}".encode())
            continue
        with file.open("rb") as opened:
            total.update(file_digest(opened, "sha256").digest())
    return total.hexdigest() if folder.is_dir() else ""


def index_fingerprint(retriever: Retriever) -> str:
    """A digest of an index's manifest, with the passages' digests. Empty where there is none."""
    retriever = corpus_of(retriever)
    if isinstance(retriever, RemoteRetriever):
        return retriever.version
    if not isinstance(retriever, HybridRetriever):
        return ""
    return sha256((retriever.folder / "manifest.json").read_bytes()).hexdigest()
