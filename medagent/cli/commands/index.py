"""The commands about indexes: `medagent index ...` and `medagent search`."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from medagent.retrieval.formats import NAMES
from medagent.retrieval.settings import AnalyserName


def _with_formats(command: Callable[..., None]) -> Callable[..., None]:
    """Name the formats of files in the help of a command."""
    command.__doc__ = (command.__doc__ or "").replace("{formats}", f"{', '.join(NAMES[:-1])} or {NAMES[-1]}")
    return command


@_with_formats
def index_build(
    corpus: str,
    out: str = "indexes/default",
    embedder: str = "hashed-ngrams:1024:3-5",
    max_tokens: int = 200,
    overlap_tokens: int = 30,
    analyser: AnalyserName = "medical",
    dense_weight: float | None = None,
    floor: float = 0.0,
    evidence_weight: float = 0.0,
    chroma: str = "",
    ocr: str = "",
    device: str | None = None,
    overwrite: bool = False,
) -> None:
    """Build an index from a corpus, with progress. After an interruption the same command goes on.

    Args:
        corpus: A file or folder of {formats}, also as .gz. Or
            hub:DATASET[:SPLIT] with the columns id, title, content. Or pubmedqa:FILE, or bioasq:FILES, whose snippets
            become passages (a golden file, a folder, or a pattern such as "data/bioasq/[789]B*.json"). Or the packaged
            starter and starter:train, which have settings of their own. starter:train lacks the test conditions.
        out: Folder of the index.
        embedder: "hashed-ngrams:DIM:MIN-MAX", "medcpt", the name or folder of a sentence-transformers model (with a
            "/"), "sentence-transformers|MODEL|QUERY_PREFIX|PASSAGE_PREFIX", or "openai|URL|MODEL" for a service with
            OpenAI's API of embeddings, whose key is read from MEDAGENT_RETRIEVAL_KEY.
        max_tokens: Longest passage, title included, in the embedder's tokens; 0 splits no document.
        overlap_tokens: How many tokens of a passage the next one may repeat.
        analyser: How words are compared. "medical" stems them and knows variants of spelling, "biomedical" stems
            alone, "biomedical-unstemmed" does not, and "words" takes them as they are.
        dense_weight: Weight of the vectors' ranking; BM25's is 1. By default it is what suits the embedder.
        floor: Share of a query's words, weighted by how rare they are, that a passage must have to be shown, from 0
            to 1, so that a search may find nothing. 0 shows what is nearest.
        evidence_weight: How much stronger types of publication count: a guideline's score is multiplied by 1 plus this,
            a trial's by less. 0 ignores types.
        chroma: Address of a Chroma server that holds the vectors, instead of the folder.
        ocr: Languages in which Tesseract recognizes pages of PDFs without text, such as eng or deu+eng. `add` and
            `sync` do likewise.
        device: Device to embed on, such as cuda or cpu. By default it is a GPU where there is one.
        overwrite: Replace an index of other content there.
    """
    from medagent.cli.index import report_changes
    from medagent.evaluation.corpora import named_corpus
    from medagent.retrieval.embedders import embedder_from_identity
    from medagent.retrieval.index import build_index
    from medagent.retrieval.settings import Chunking, IndexSettings, SearchSettings
    from medagent.starter.index import STARTER_INDEX

    chunking, ready = Chunking(max_tokens, overlap_tokens), embedder_from_identity(embedder, device=device)
    weight = ready.dense_weight if dense_weight is None else dense_weight
    search = SearchSettings(dense_weight=weight, floor=floor, evidence_weight=evidence_weight)
    settings = IndexSettings(chunking, analyser, chroma=chroma, search=search, ocr=ocr)
    if corpus in ("starter", "starter:train"):
        settings = replace(STARTER_INDEX, chroma=chroma)
    build = partial(build_index, named_corpus(corpus), out, ready, settings=settings, overwrite=overwrite)
    report_changes(Path(out), build)


def index_add(index: str, corpus: str, device: str | None = None) -> None:
    """Add a corpus to an index, with the index's settings. After an interruption the same command goes on.

    Args:
        index: Folder of the index.
        corpus: As for `medagent index build`.
        device: Device to embed on.
    """
    from medagent.cli.index import report_changes
    from medagent.evaluation.corpora import named_corpus
    from medagent.retrieval.access import check_writable
    from medagent.retrieval.index import add_to_index
    from medagent.retrieval.manifest import embedder_of_index

    check_writable(Path(index))  # before the embedder is loaded
    ready = embedder_of_index(Path(index), device)
    report_changes(Path(index), partial(add_to_index, index, named_corpus(corpus), ready))


def index_sync(index: str, corpus: str, dry_run: bool = False, device: str | None = None) -> None:
    """Make an index equal to its source: add, replace and remove documents. Those of other sources stay.

    Args:
        index: Folder of the index.
        corpus: As for `medagent index build`, named as it was when it was added.
        dry_run: Print what would change, and change nothing.
        device: Device to embed on.
    """
    from medagent.cli.index import report_changes
    from medagent.evaluation.corpora import named_corpus
    from medagent.retrieval.access import check_writable
    from medagent.retrieval.index import sync_index
    from medagent.retrieval.manifest import embedder_of_index

    if not dry_run:
        check_writable(Path(index))
    ready = embedder_of_index(Path(index), device)
    sync = partial(sync_index, index, named_corpus(corpus), ready, dry_run=dry_run)
    report_changes(Path(index), sync, dry_run=dry_run)


def index_restore(index: str, names: list[str]) -> None:
    """Let documents come back that were removed or retracted, with the next `add` or `sync` of their source.

    Args:
        index: Folder of the index.
        names: The ids that they were removed by, e.g. pmid:12345 pmid:678.
    """
    from medagent.retrieval.maintenance import restore_in_index

    number = restore_in_index(Path(index), names)
    print(f"{number:,} may come back into {index}: add or synchronise their source again.")


def index_remove(index: str, ids: list[str]) -> None:
    """Remove passages or whole documents by id. Their text is overwritten on disk, and they stay out.

    Args:
        index: Folder of the index.
        ids: Ids of passages or documents, e.g. pmid:12345 'pmid:678#2'.
    """
    from medagent.cli.index import index_bars
    from medagent.retrieval.maintenance import remove_from_index

    with index_bars() as show:
        manifest, removed = remove_from_index(Path(index), ids, progress=show)
    print(f"Removed {removed:,} passages from {index}; it holds {manifest.num_passages:,}.")


def index_rebuild(index: str) -> None:
    """Make an index's search structures again from its passage and embedding files.

    Args:
        index: Folder of the index.
    """
    from medagent.cli.index import index_bars
    from medagent.retrieval.maintenance import rebuild_index

    with index_bars() as show:
        manifest = rebuild_index(Path(index), progress=show)
    print(f"Rebuilt {index}: {manifest.num_passages:,} passages.")


def index_synonyms(index: str, file: str) -> None:
    """Give an index terms of one meaning, so that a query with one of them also finds what has another.

    They replace earlier ones, and need no rebuilding.

    Args:
        index: Folder of the index.
        file: MeSH's descriptors (d2026.bin or desc2026.xml), also as .gz, or lines such as
            "heart attack|myocardial infarction".
    """
    from medagent.retrieval.query_match import set_synonyms

    groups, left_out = set_synonyms(Path(index), Path(file))
    print(f"{groups:,} groups of terms in {index}; {left_out:,} terms left out (no word, too long, or said twice).")


def index_verify(index: str, repair: bool = False) -> None:
    """Compare an index with its source of truth: digests, Chroma's vectors, BM25. Exit status 1 where any differs.

    Vectors are compared one by one, and BM25 is computed again.

    Args:
        index: Folder of the index.
        repair: First rebuild damaged vectors, Chroma and BM25 from the passages.
    """
    from medagent.cli.index import index_bars
    from medagent.retrieval.errors import IndexMismatchError
    from medagent.retrieval.maintenance import rebuild_index, verify_index
    from medagent.retrieval.manifest import Manifest, embedder_of_index

    folder, embedder = Path(index), embedder_of_index(Path(index))
    with index_bars() as show:
        if repair:
            rebuild_index(folder, embedder, progress=show)
        checks = verify_index(folder, embedder, progress=show)
    for check in checks:
        print(
            f"{'PROBLEM' if check.problem else 'ok     '}  {check.name}{': ' if check.problem else ''}{check.problem}"
        )
    if any(check.problem for check in checks):
        raise IndexMismatchError(
            f"index {index}: differs from its source of truth. If its passages do not, run "
            f"medagent index verify {index} --repair. Otherwise restore it from a backup, or build it again with "
            "--overwrite."
        )
    manifest = Manifest.read(folder)
    print(f"Version {manifest.version}, content {manifest.content_sha256[:16]}: {manifest.num_passages:,} passages.")


def index_stats(index: str, json: bool = False) -> None:
    """Print what an index holds: counts, sources, years, lengths, skipped records with reasons, and its size on disk.

    Args:
        index: Folder of the index.
        json: Print JSON.
    """
    from medagent.retrieval.maintenance import index_stats as stats
    from medagent.retrieval.maintenance import show_stats

    found = stats(Path(index))
    print(show_stats(found, as_json=json))


def index_serve(
    index: str,
    host: str = "127.0.0.1",
    port: int = 8001,
    max_batch: int = 256,
    reranker: str | None = None,
    device: str | None = None,
) -> None:
    """Serve an index over HTTP to trainers and agents: POST /search, and Search-R1's POST /retrieve.

    Args:
        index: Folder of the index.
        host: Address to listen on; with 0.0.0.0 other machines reach it.
        port: Port to listen on.
        max_batch: Most queries searched at once.
        reranker: A cross-encoder by hub name or folder, or a service as tei|URL or cohere|URL|MODEL, to reorder the
            best candidates.
        device: Device to embed on.
    """
    from medagent.retrieval.serving import serve

    serve(Path(index), host=host, port=port, max_batch=max_batch, reranker=reranker, device=device)


def index_mcp(index: str, device: str | None = None) -> None:
    """Offer an index to assistants over the Model Context Protocol, on standard input and output.

    Args:
        index: Folder of the index.
        device: Device to embed on.
    """
    from medagent.retrieval.mcp_server import run_mcp

    run_mcp(Path(index), device=device)


def search(
    query: str,
    index: str = "runs/demo/index",
    top_k: int = 5,
    where: str = "",
    source: list[str] | None = None,
    year_from: int | None = None,
    year_to: int | None = None,
    floor: float | None = None,
    evidence_weight: float | None = None,
    reranker: str | None = None,
    json: bool = False,
) -> None:
    """Search an index and print the passages.

    Args:
        query: What to search for.
        index: Folder of the index, or the address of a served one, such as http://localhost:8001.
        top_k: How many passages.
        where: Only passages that fit these conditions, as --where 'year>=2020 type=guideline language=en source=GARD'.
            docs/retrieval.md lists the fields.
        source: Only passages of this source, or of these, e.g. 'PubMed*,WHO' (* stands for anything).
        year_from: Only passages of this year or later.
        year_to: Only passages of this year or earlier.
        floor: Share of the query's words, weighted by how rare they are, that a passage must have to be shown, from 0
            to 1. By default the index's own.
        evidence_weight: How much stronger types of publication count. By default as the index was built.
        reranker: A cross-encoder by hub name or folder, or a service as tei|URL or cohere|URL|MODEL, to reorder the
            best candidates.
        json: Print JSON lines.
    """
    from medagent.cli.index import print_search
    from medagent.retrieval.filters import Filter

    wanted = Filter.parse(where) & Filter.of(source or (), year_from, year_to)
    own = {"floor": floor, "evidence_weight": evidence_weight}
    changed = {name: value for name, value in own.items() if value is not None}
    print_search(query, index, top_k=top_k, where=wanted, changed=changed, reranker=reranker, as_json=json)


INDEX_COMMANDS: dict[str, Any] = {
    "_help": "Build, change, check and serve indexes.",
    "build": index_build,
    "add": index_add,
    "sync": index_sync,
    "remove": index_remove,
    "restore": index_restore,
    "rebuild": index_rebuild,
    "synonyms": index_synonyms,
    "verify": index_verify,
    "stats": index_stats,
    "serve": index_serve,
    "mcp": index_mcp,
}
