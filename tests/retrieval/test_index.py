from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from medagent.retrieval.corpora import file_corpus, memory_corpus
from medagent.retrieval.embedders import HashedNgramEmbedder
from medagent.retrieval.errors import CorpusError, IndexBusyError, IndexMismatchError
from medagent.retrieval.index import add_to_index, build_index, open_vectors, sync_index
from medagent.retrieval.maintenance import index_stats, rebuild_index, remove_from_index, restore_in_index, show_stats
from medagent.retrieval.manifest import Manifest
from medagent.retrieval.search import HybridRetriever
from medagent.retrieval.settings import Chunking, IndexSettings
from medagent.retrieval.store import PassageStore
from tests.retrieval.libraries import rows
from tests.retrieval.support import JATS, MEDLINE, PASSAGES, SMALL, CountingEmbedder, fingerprint, problems, write_pdf


def test_build_is_idempotent_and_refuses_to_replace(tmp_path: Path) -> None:
    embedder = CountingEmbedder()
    manifest = build_index(PASSAGES, tmp_path, embedder)
    assert manifest.complete
    assert build_index(PASSAGES, tmp_path, embedder) == manifest
    assert embedder.embedded == 40
    with pytest.raises(IndexMismatchError, match="--overwrite"):
        build_index(PASSAGES[:-1], tmp_path, embedder)
    with pytest.raises(IndexMismatchError, match="--overwrite"):
        build_index(PASSAGES, tmp_path, HashedNgramEmbedder(128))
    with pytest.raises(IndexMismatchError, match="settings differ"):
        build_index(PASSAGES, tmp_path, embedder, settings=IndexSettings(analyser="words"))
    assert build_index(PASSAGES[:-1], tmp_path, embedder, overwrite=True).num_passages == 39
    assert not problems(tmp_path)
    assert len(HybridRetriever(str(tmp_path))) == 39


def test_an_interrupted_build_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("medagent.retrieval.ingest.BATCH", 8)
    broken = CountingEmbedder(fail_after=24)
    with pytest.raises(KeyboardInterrupt):
        build_index(PASSAGES, tmp_path, broken)
    with pytest.raises(IndexMismatchError, match="interrupted"):
        open_vectors(tmp_path, Manifest.read(tmp_path))
    with (tmp_path / "embeddings.f32").open("ab") as file:
        file.write(b"torn")  # as a kill in the middle of a write leaves it
    with pytest.raises(IndexMismatchError, match="interrupted build"):
        build_index(PASSAGES[::-1], tmp_path, CountingEmbedder())
    steps: list[tuple[str, int, int, int]] = []
    rest = CountingEmbedder()
    build_index(PASSAGES, tmp_path, rest, progress=lambda *step: steps.append(step))
    assert rest.embedded == 16
    assert ("reading", 40, 40, 40) in steps
    assert steps[-1] == ("words", 40, 40, 40)
    build_index(PASSAGES, tmp_path / "whole", CountingEmbedder())
    assert fingerprint(tmp_path) == fingerprint(tmp_path / "whole")
    assert not problems(tmp_path)


KILLED = """
import sys
from medagent.retrieval import Chunking, IndexSettings, build_index, ingest, vectors
ingest.BATCH = vectors.BATCH = 16
print("ready", flush=True)
build_index(sys.argv[1], sys.argv[2], "hashed-ngrams:64:3-5", settings=IndexSettings(Chunking(40, 8)))
"""


@pytest.mark.long
def test_killed_at_random_moments_an_index_comes_out_the_same(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    rng = random.Random(0)
    words = [f"word{i}" for i in range(400)]
    for number in range(12):
        sentences = [" ".join(rng.choices(words, k=9)).capitalize() + "." for _ in range(60)]
        (corpus / f"{number:02d}.txt").write_text("\n\n".join(sentences))
    (corpus / "broken.pdf").write_text("no PDF")

    def run(out: str, kill_after_s: float | None = None) -> int:
        command = [sys.executable, "-c", KILLED, str(corpus), str(tmp_path / out)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            if kill_after_s is not None:
                time.sleep(kill_after_s)
                process.kill()
            return process.wait()

    begun = time.monotonic()
    assert run("whole") == 0
    took = time.monotonic() - begun
    for _ in range(2):
        run("killed", rng.uniform(0.05, 0.9) * took)
    assert run("killed") == 0
    assert fingerprint(tmp_path / "killed") == fingerprint(tmp_path / "whole")
    assert not problems(tmp_path / "killed")
    stats = index_stats(tmp_path / "killed")
    assert (stats["skipped"], stats["passages"]) == (1, index_stats(tmp_path / "whole")["passages"])


def test_a_mixed_folder_is_read_and_what_is_skipped_is_counted(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    (corpus / "sub").mkdir(parents=True)
    (corpus / "a.xml").write_text(MEDLINE)
    (corpus / "sub" / "b.nxml.gz").write_bytes(gzip.compress(JATS.encode()))
    write_pdf(corpus / "c.pdf", "Sepsis needs antibiotics.")
    (corpus / "d.md").write_text("# Fever\n\nDrink enough.")
    (corpus / "e.jsonl").write_text(
        '{"id": "x", "text": "One."}\n{"id": "x", "text": "Two."}\nbroken\n{"id": "y", "text": "One."}\n'
    )
    (corpus / "f.png").write_bytes(b"\x89PNG")
    (corpus / ".hidden").write_text("no")
    out = tmp_path / "index"
    manifest = build_index(file_corpus(corpus), out, SMALL)
    stats = index_stats(out)
    retriever = HybridRetriever(str(out))
    ids = {passage.id for passage in retriever.passages}
    assert {"pmid:101", "pmid:102", "pmc:42#1", "pmc:42#5", "x", "y"} <= ids, "two documents may say the same"
    assert len([id_ for id_ in ids if id_.startswith("x~")]) == 1
    assert stats["passages"] == manifest.num_passages == len(ids)
    assert (stats["duplicates_dropped"], stats["ids_told_apart"], stats["skipped"]) == (0, 1, 5)
    assert any(line.startswith("f.png is of a kind that is not read") for line in stats["skipped_documents"])
    assert stats["years"][0] == 1998
    assert stats["sources"]["Open Renal"] == 6
    assert "licences: (none)" in show_stats(stats, as_json=False)
    assert json.loads(show_stats(stats, as_json=True))["passages"] == len(ids)
    found = retriever.passage("pmc:42#4")
    assert found is not None
    assert (found.section, found.document, found.year) == ("Methods > Dose", "pmc:42", 2021)
    assert not problems(out)


def test_add_and_remove(tmp_path: Path) -> None:
    out = tmp_path / "index"
    build_index(PASSAGES[:30], out, SMALL)
    more = tmp_path / "more.jsonl"
    rows(more, *({"id": f"n{i}", "text": f"New note {i} on heart failure."} for i in range(5)))
    manifest = add_to_index(out, file_corpus(more), SMALL)
    assert manifest.num_passages == 35
    assert add_to_index(out, file_corpus(more), SMALL).content_sha256 == manifest.content_sha256
    retriever = HybridRetriever(str(out))
    assert retriever.search(["heart failure note 3"], top_k=1)[0][0].passage.id == "n3"
    with pytest.raises(IndexBusyError, match=f"open in process {os.getpid()}"):
        remove_from_index(out, ["n3"])
    retriever.close()
    with pytest.raises(IndexMismatchError, match="nothing was removed"):
        remove_from_index(out, ["n3", "nothing"])
    manifest, removed = remove_from_index(out, ["n3", PASSAGES[7].id])
    assert (removed, manifest.num_passages) == (2, 33)
    assert not problems(out)
    raw = b"".join(path.read_bytes() for path in out.glob("passages.sqlite*"))
    assert b"New note 4" in raw
    assert b"New note 3" not in raw, "what is removed is not to be found on disk"
    assert not np.any(np.fromfile(out / "embeddings.f32", dtype=np.float32).reshape(-1, 64)[33])
    retriever = HybridRetriever(str(out))
    assert all(hit.passage.id != "n3" for hit in retriever.search(["heart failure note 3"], top_k=33)[0])
    retriever.close()
    assert add_to_index(out, file_corpus(more), SMALL).num_passages == 33, "what was removed stays removed"
    more.write_text(more.read_text() + '{"id": "n9", "text": "A ninth note."}\n')
    assert add_to_index(out, file_corpus(more), SMALL).num_passages == 34, "though its file changes and is read again"
    restore_in_index(out, ["n3"])
    assert add_to_index(out, file_corpus(more), SMALL).num_passages == 35, "unless it is restored by its name"
    assert rebuild_index(out).num_passages == 35
    assert not problems(out)
    graphs = [path for path in (out / "chroma").iterdir() if path.is_dir()]
    assert len(graphs) == 1, "no graph of a deleted collection stays"
    with pytest.raises(IndexMismatchError, match="all its passages"):
        remove_from_index(out, [passage.id for passage in PassageStore(out, 64).fetch(range(40)).values()])


def test_empty_corpora_leave_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no passage"):
        build_index([], tmp_path / "a", SMALL)
    for name in ("scan.pdf", "a.png"):
        (tmp_path / name).write_text("no PDF")
    (tmp_path / "empty").mkdir()
    wrong = {"scan.pdf": "Skipped: scan.pdf is no readable PDF", "nowhere": "not found", "empty": "no file"}
    for name, said in (wrong | {"a.png": r"found a \.png"}).items():
        with pytest.raises(CorpusError, match=said):
            build_index(tmp_path / name, tmp_path / "a", SMALL)
    assert build_index(PASSAGES, tmp_path / "a", SMALL).num_passages == 40


def test_the_hub_layout_of_medrag(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    from medagent.retrieval.corpora import hub_corpus

    facts = [{"id": f"S_{i}", "title": "Gout", "content": f"Fact {i}.", "contents": "Gout."} for i in range(7)]
    (tmp_path / "hub").mkdir()
    datasets.Dataset.from_list(facts).to_parquet(tmp_path / "hub" / "train.parquet")
    build_index(f"hub:{tmp_path / 'hub'}", tmp_path / "index", SMALL)
    found = [(passage.id, passage.text) for passage in HybridRetriever(str(tmp_path / "index")).passages]
    assert found == [(fact["id"], fact["content"]) for fact in facts]
    with pytest.raises(CorpusError, match="cannot be loaded"):
        next(hub_corpus(str(tmp_path / "nothing")).parts[0].read())


def test_chunking_settings_are_kept_for_additions(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One two three four five six. " * 10)
    (tmp_path / "b.txt").write_text("Seven eight nine ten eleven twelve. " * 10)
    settings = IndexSettings(Chunking(max_tokens=24, overlap_tokens=0))
    build_index(file_corpus(tmp_path / "a.txt"), tmp_path / "index", SMALL, settings=settings)
    before = Manifest.read(tmp_path / "index").num_passages
    after = add_to_index(tmp_path / "index", file_corpus(tmp_path / "b.txt"), SMALL).num_passages
    assert after == 2 * before
    assert memory_corpus(PASSAGES).identity != memory_corpus(PASSAGES[1:]).identity


def test_several_paths_are_one_corpus_known_by_the_folder_that_holds_them(tmp_path: Path) -> None:
    (tmp_path / "notes" / "deep").mkdir(parents=True)
    for name, text in (("a.txt", "Gout."), ("b.md", "Rest."), ("notes/a.txt", "Pain."), ("notes/deep/c.txt", "Sleep.")):
        (tmp_path / name).write_text(text)
    sources = [tmp_path / "b.md", tmp_path / "a.txt", tmp_path / "notes"]
    built = build_index(sources, tmp_path / "index")
    assert (built.num_passages, built.embedder, built.corpus) == (4, "hashed-ngrams:1024:3-5", str(tmp_path))
    assert build_index(sources[::-1], tmp_path / "index") == built, "in whatever order they are named"
    (tmp_path / "notes" / "a.txt").unlink()
    assert sync_index(tmp_path / "index", sources).num_passages == 3
    with pytest.raises(CorpusError, match="passages and paths"):
        build_index([*PASSAGES, tmp_path / "a.txt"], tmp_path / "other")
