"""An index is one folder: the source of truth (`medagent.retrieval.store`), and Chroma and BM25 made from it.

manifest.json                      embedder, settings, counts and digests; `complete` is set last
passages.sqlite, embeddings.f32    source of truth
chroma/, bm25/                     search structures
"""

import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from medagent.retrieval.access import LOCKS, check_writable, writing
from medagent.retrieval.analysis import Analyser
from medagent.retrieval.corpora import Corpus, Sources, as_corpus, with_ocr
from medagent.retrieval.embedders import DEFAULT_EMBEDDER, Embedder, embedder_from_identity
from medagent.retrieval.errors import EmptyCorpusError, IndexMismatchError
from medagent.retrieval.ingest import Ingest, chunk_part
from medagent.retrieval.ingest_policy import Changes, ChunkedDocument
from medagent.retrieval.lexical import LexicalIndex
from medagent.retrieval.manifest import Manifest, check_embedder, embedder_of, probe
from medagent.retrieval.query_match import SYNONYMS_FILE
from medagent.retrieval.settings import IndexSettings, SearchSettings
from medagent.retrieval.store import PassageStore, Progress
from medagent.retrieval.vectors import ChromaVectors

FILES = ("passages.sqlite", "embeddings.f32")


def no_progress(stage: str, done: int, total: int, passages: int) -> None:
    """Report nothing."""


def build_index(
    sources: Sources,
    out: str | Path,
    embedder: Embedder | str = DEFAULT_EMBEDDER,
    *,
    settings: IndexSettings | None = None,
    overwrite: bool = False,
    progress: Progress = no_progress,
    changes: Changes | None = None,
) -> Manifest:
    """Build an index in the folder `out`, or go on with an interrupted build; `medagent index build` calls this.

    `sources` are a path, several, a "hub:DATASET", passages, or a corpus. A complete index of the same content is
    kept. An index of other content, another embedder or other settings is replaced only with `overwrite`. Without
    `settings`, passages have at most 200 tokens, and the dense ranking has the weight that suits the embedder.
    `changes` collects what became of each document.

    >>> build_index(["a.pdf", "b.docx", "folder/"], "indexes/mine")            # doctest: +SKIP

    Raises:
        CorpusError: a source cannot be read, or holds no passage.
        IndexMismatchError: `out` holds something else.
    """
    folder = Path(out)
    embedder = embedder_from_identity(embedder) if isinstance(embedder, str) else embedder
    settings = settings or IndexSettings(search=SearchSettings(dense_weight=embedder.dense_weight))
    corpus = with_ocr(as_corpus(sources), settings.ocr, progress)
    if not folder.exists():
        check_writable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    others = [path.name for path in folder.iterdir() if path.name not in (*LOCKS, "manifest.json.part", "chroma")]
    if others and "manifest.json" not in others:
        raise IndexMismatchError(
            f"index {folder}: the folder holds other files ({', '.join(sorted(others)[:3])}) and no index. Choose an "
            "empty folder."
        )
    mapping = (embedder.identity, embedder.dimension, embedder.space)
    wanted = Manifest(*mapping, settings, probe(embedder), uuid4().hex, corpus.identity)
    if "manifest.json" in others and not overwrite:
        found = Manifest.read(folder)
        if found.complete and _same(folder, found, wanted, corpus):
            return found
        if not found.complete and found.embedder == wanted.embedder:
            check_embedder(folder, found, embedder)
        wanted = replace(wanted, id=found.id, probe=found.probe)
        blank = replace(
            found, num_passages=0, content_sha256="", embeddings_sha256="", complete=False, synonyms_sha256=""
        )
        if found.complete or blank != wanted:
            kind = f"{found.num_passages:,} passages" if found.complete else "an interrupted build"
            raise IndexMismatchError(
                f"index {folder}: holds {kind} of {found.corpus!r} with the embedder {found.embedder!r}; wanted one "
                f"of {corpus.identity!r} with {embedder.identity!r}, and the corpus, the embedder or the settings "
                "differ. Choose another folder, or pass --overwrite to replace it."
            )
    with writing(folder):
        if overwrite and "manifest.json" in others:
            units = (unit for part in corpus.parts for unit, _ in chunk_part(part, embedder, settings.chunking))
            if not any(isinstance(unit, ChunkedDocument) for unit in units):
                raise EmptyCorpusError(
                    f"corpus {corpus.identity}: holds no passage; the index {folder} was left as it is."
                )
            _wipe(folder)
        wanted.write(folder)
        try:
            return _fill(folder, corpus, embedder, wanted, progress, changes)
        except EmptyCorpusError:
            _wipe(folder)
            (folder / "manifest.json").unlink()
            raise


def add_to_index(
    index: str | Path,
    sources: Sources,
    embedder: Embedder | None = None,
    *,
    progress: Progress = no_progress,
    changes: Changes | None = None,
    prune: bool = False,
) -> Manifest:
    """Add sources to an index, with its own settings; after a kill the same call goes on. See `build_index`.

    With `prune` it loses what the sources have no more.
    """
    folder = Path(index)
    check_writable(folder)
    manifest = Manifest.read(folder)
    corpus = with_ocr(as_corpus(sources), manifest.settings.ocr, progress)
    embedder = embedder_of(folder, manifest, embedder)
    with writing(folder):
        check_undamaged(folder, manifest)
        replace(manifest, complete=False).write(folder)
        return _fill(folder, corpus, embedder, manifest, progress, changes, changed_again=True, prune=prune)


def sync_index(
    index: str | Path,
    sources: Sources,
    embedder: Embedder | None = None,
    *,
    dry_run: bool = False,
    progress: Progress = no_progress,
    changes: Changes | None = None,
) -> Manifest:
    """Make an index equal to its sources: add, replace, remove. With `dry_run` only `changes` is filled."""
    if not dry_run:
        return add_to_index(index, sources, embedder, progress=progress, changes=changes, prune=True)
    folder = Path(index)
    manifest = Manifest.read(folder)
    embedder = embedder_of(folder, manifest, embedder)
    with closing(PassageStore(folder, manifest.dimension)) as store:
        corpus = with_ocr(as_corpus(sources), manifest.settings.ocr, progress)
        Ingest(store, corpus, embedder, manifest.settings.chunking, changes).preview()
    return manifest


def open_chroma(folder: Path, manifest: Manifest) -> ChromaVectors:
    """The Chroma collection of an index; on a server it is named after the index's id."""
    if not manifest.settings.chroma:
        return ChromaVectors.local(folder)
    return ChromaVectors.remote(manifest.settings.chroma, f"medagent-{manifest.id}")


def open_vectors(folder: Path, manifest: Manifest) -> ChromaVectors:
    """The collection of a complete index, checked against its manifest."""
    if not manifest.complete:
        raise IndexMismatchError(
            f"index {folder}: a build, an addition or a removal was interrupted. Run the same command again to go on "
            f"(after a removal that is done: medagent index rebuild {folder})."
        )
    vectors = open_chroma(folder, manifest)
    remedy = f"Rebuild it from its files with: medagent index rebuild {folder}"
    if not vectors.open():
        raise IndexMismatchError(f"index {folder}: Chroma holds no collection. {remedy}")
    if len(vectors) != manifest.num_passages:
        raise IndexMismatchError(
            f"index {folder}: Chroma holds {len(vectors):,} vectors, the manifest {manifest.num_passages:,}. {remedy}"
        )
    return vectors


def _same(folder: Path, found: Manifest, wanted: Manifest, corpus: Corpus) -> bool:
    """Whether a complete index is what a build would make; equal fingerprints count as equal content."""
    if (found.embedder, found.settings, found.corpus) != (wanted.embedder, wanted.settings, wanted.corpus):
        return False
    with closing(PassageStore(folder, found.dimension)) as store:
        read = store.parts()
    return {corpus.key(part): (part.fingerprint, True) for part in corpus.parts} == {
        name: (state.fingerprint, state.complete) for name, state in read.items()
    }


def _fill(
    folder: Path,
    corpus: Corpus,
    embedder: Embedder,
    manifest: Manifest,
    progress: Progress,
    changes: Changes | None,
    *,
    changed_again: bool = False,
    prune: bool = False,
) -> Manifest:
    with closing(PassageStore(folder, embedder.dimension)) as store:
        ingest = Ingest(store, corpus, embedder, manifest.settings.chunking, changes)
        ingest.read(progress, changed_again=changed_again)
        if prune and ingest.remove_lost():
            ingest.read(progress, changed_again=True)
        if not len(store):
            reasons = "; ".join(f"{where} {reason}" for where, reason in store.skipped(limit=3))
            raise EmptyCorpusError(
                f"corpus {corpus.identity}: holds no passage. Check its path and format."
                + (f" Skipped: {reasons}." if reasons else "")
            )
        check_read_whole(folder, store)
        return make_search_structures(folder, store, manifest, progress)


def make_search_structures(folder: Path, store: PassageStore, manifest: Manifest, progress: Progress) -> Manifest:
    """Chroma and BM25 for what the store holds, then the manifest that says so."""
    store.blank_gaps()
    rows = store.rows()
    open_chroma(folder, manifest).hold(
        store, rows, space=manifest.space, progress=lambda done: progress("indexing", done, len(rows), len(rows))
    )
    settings = manifest.settings
    LexicalIndex.build(
        folder,
        _indexed_texts(store, len(rows), progress),
        Analyser(settings.analyser),
        k1=settings.bm25_k1,
        b=settings.bm25_b,
    )
    done = replace(
        manifest,
        num_passages=len(rows),
        content_sha256=store.content_sha256(),
        embeddings_sha256=store.embeddings_sha256(),
        complete=True,
    )
    done.write(folder)
    return done


def _indexed_texts(store: PassageStore, total: int, progress: Progress) -> Iterator[tuple[int, str]]:
    for done, (row, passage) in enumerate(store.stream(), start=1):
        if done % 1000 == 0 or done == total:
            progress("words", done, total, total)
        yield row, passage.indexed_text


def _wipe(folder: Path) -> None:
    """Delete everything of an index but its manifest and its lock."""
    try:
        elsewhere = Manifest.read(folder)
    except IndexMismatchError:  # of another format, or damaged: what it kept on a server cannot be known
        elsewhere = None
    if elsewhere is not None and elsewhere.settings.chroma:
        open_chroma(folder, elsewhere).drop()
    elif (folder / "chroma").exists():
        ChromaVectors.local(folder).drop()  # through the client: Chroma caches open databases by path
    for name in (*FILES, SYNONYMS_FILE, *(f"{FILES[0]}{suffix}" for suffix in ("-wal", "-shm"))):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "bm25", ignore_errors=True)


def check_undamaged(folder: Path, manifest: Manifest) -> None:
    """Refuse a complete index whose passages or vectors are not those that its manifest names."""
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
