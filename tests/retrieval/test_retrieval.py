from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from medagent.starter.world import World
from retrieval.corpora import read_corpus
from retrieval.embedders import HashedNgramEmbedder, SentenceTransformerEmbedder, embedder_from_identity
from retrieval.errors import CorpusError, IndexMismatchError, RetrievalError, RetrieverUnavailableError
from retrieval.index import Manifest, build_index, load_embeddings, open_client, open_collection, rebuild_index
from retrieval.passages import Passage, read_passages, write_passages
from retrieval.search import HybridRetriever, UnrelatedRetriever, UnreliableRetriever

PASSAGES = [Passage.make(f"condition {i}", f"The first-line drug is agent{i}.", "test") for i in range(40)]


class CountingEmbedder(HashedNgramEmbedder):
    """Counts what it embeds, and may fail part of the way."""

    def __init__(self, fail_after: int | None = None) -> None:
        super().__init__(64)
        self.embedded = 0
        self.fail_after = fail_after

    def embed_passages(self, texts):
        if self.fail_after is not None and self.embedded >= self.fail_after:
            raise KeyboardInterrupt
        self.embedded += len(texts)
        return super().embed_passages(texts)


def test_ids_follow_from_content() -> None:
    a, b = Passage.make("t", "x"), Passage.make("t", "x", "elsewhere")
    assert a.id == b.id != Passage.make("t", "y").id
    assert Passage.make("t", "x", id="mine").id == "mine"


def test_passages_survive_the_disk(tmp_path: Path) -> None:
    write_passages(tmp_path / "p.jsonl", PASSAGES)
    assert list(read_passages(tmp_path / "p.jsonl")) == PASSAGES


@pytest.mark.parametrize("line", ["not json", '{"title": "no text"}', '{"text": "  "}', "[1]"])
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(CorpusError, match="line 2"):
        list(read_passages(path))


def test_text_and_markdown_folders(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "gout.md").write_text(
        "# Gout\n\nIt hurts.\n\n## Treatment\nColchicine helps.\n\n" + "word " * 450
    )
    (tmp_path / "notes.txt").write_text("Plain text.")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    passages = list(read_corpus(tmp_path, max_words=200))
    assert [(p.title, p.source) for p in passages][0] == ("notes", "notes.txt")
    assert {p.title for p in passages} == {"notes", "Gout", "Treatment"}
    assert max(len(p.text.split()) for p in passages) <= 200
    assert sum(p.text.split().count("word") for p in passages) == 450
    with pytest.raises(CorpusError, match="not found"):
        list(read_corpus(tmp_path / "missing"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorpusError, match="no file"):
        list(read_corpus(tmp_path / "empty"))


def test_embedders_are_deterministic_unit_vectors_with_an_identity() -> None:
    embedder = HashedNgramEmbedder(128)
    vectors = embedder.embed_passages(["gout", "erythema migrans"])
    assert vectors.shape == (2, 128)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
    again = embedder_from_identity(embedder.identity)
    np.testing.assert_array_equal(again.embed_queries(["gout"]), vectors[:1])
    assert again.dimension == 128
    with pytest.raises(RetrievalError, match="unknown"):
        embedder_from_identity("word2vec")


def test_sentence_transformers_prefixes_and_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    class Model:
        def __init__(self, name, device=None):
            self.name = name

        def get_sentence_embedding_dimension(self):
            return 2

        def encode(self, texts, **kwargs):
            assert kwargs["normalize_embeddings"] is True
            seen.append(texts)
            return np.array([[1.0, 0.0]] * len(texts))

    module = types.ModuleType("sentence_transformers")
    module.SentenceTransformer = Model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    embedder = embedder_from_identity("sentence-transformers|org/e5|query: |passage: ")
    assert isinstance(embedder, SentenceTransformerEmbedder)
    assert embedder.dimension == 2
    embedder.embed_queries(["q"])
    embedder.embed_passages(["p"])
    assert seen == [["query: q"], ["passage: p"]]
    assert embedder_from_identity(embedder.identity).identity == embedder.identity
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(RetrievalError, match="pip install"):
        SentenceTransformerEmbedder("org/e5")


def test_search_finds_and_repeats(tmp_path: Path) -> None:
    build_index(tmp_path, PASSAGES, HashedNgramEmbedder())
    retriever = HybridRetriever(str(tmp_path))
    first = retriever.search(["condition 7", "agent21", ""], top_k=3)
    assert first[0][0].passage.title == "condition 7"
    assert "agent21" in first[1][0].passage.text
    assert all(len(hits) == 3 for hits in first[:2])
    assert [hit.score for hit in first[0]] == sorted((hit.score for hit in first[0]), reverse=True)
    assert retriever.search(["agent21"], top_k=3)[0] == first[1]
    assert HybridRetriever(str(tmp_path)).search(["condition 7"], top_k=3)[0] == first[0]
    assert len(retriever) == 40


def test_the_dense_side_is_exact_and_leaves_split_ties_out(world: World, tmp_path: Path) -> None:
    build_index(tmp_path, world.passages(), HashedNgramEmbedder())
    retriever = HybridRetriever(str(tmp_path))
    vectors = load_embeddings(tmp_path, Manifest.read(tmp_path))
    queries = [f"{condition.name} cause" for condition in world.conditions[:100]] + ["q", "zzz"]
    distances = 1 - HashedNgramEmbedder().embed_queries(queries) @ vectors.T
    for ranking, exact in zip(retriever._dense(queries), distances, strict=True):
        first_out = np.sort(exact)[20]  # the nearest of those that do not fit
        surely_in = np.flatnonzero(exact < first_out - 1e-5)
        assert set(surely_in) <= set(ranking)
        assert np.all(np.diff(exact[ranking]) > -1e-5)
        if len(surely_in):
            assert exact[ranking].max() < first_out + 1e-5
    assert retriever._ranked([retriever.passages[row].id for row in (7, 3, 5)], [0.2, 0.2, 0.1]) == [5, 3, 7]
    ids = [passage.id for passage in retriever.passages[:21]]
    assert retriever._ranked(ids, [0.0, *[0.5] * 20]) == [0]
    assert retriever._ranked(ids, [0.5] * 21) == list(range(20)), "where all are tied, some must do"


def test_reciprocal_rank_fusion_by_hand(tmp_path: Path) -> None:
    build_index(tmp_path, PASSAGES, HashedNgramEmbedder())
    retriever = HybridRetriever(str(tmp_path), dense_weight=2.0)
    hits = retriever._fuse([3, 1], [1, 5], 3)
    assert [retriever.passages.index(hit.passage) for hit in hits] == [1, 3, 5]
    assert [hit.score for hit in hits] == pytest.approx([2 / 62 + 1 / 61, 2 / 61, 1 / 62])


def test_the_cache_is_bounded_and_serves_repeats(tmp_path: Path) -> None:
    build_index(tmp_path, PASSAGES, HashedNgramEmbedder())
    retriever = HybridRetriever(str(tmp_path), cache_size=2)
    retriever.search(["a1", "b2", "c3", "a1"], top_k=1)
    assert len(retriever._cache) == 2


def test_build_is_idempotent_and_refuses_to_replace(tmp_path: Path) -> None:
    embedder = CountingEmbedder()
    manifest = build_index(tmp_path, PASSAGES, embedder)
    assert manifest.complete
    assert build_index(tmp_path, PASSAGES, embedder) == manifest
    assert embedder.embedded == 40
    with pytest.raises(IndexMismatchError, match="--overwrite"):
        build_index(tmp_path, PASSAGES[:-1], embedder)
    with pytest.raises(IndexMismatchError, match="--overwrite"):
        build_index(tmp_path, PASSAGES, HashedNgramEmbedder(128))
    assert open_collection(tmp_path, Manifest.read(tmp_path)).count() == 40
    assert build_index(tmp_path, PASSAGES[:-1], embedder, overwrite=True).num_passages == 39
    assert len(HybridRetriever(str(tmp_path), embedder=HashedNgramEmbedder(64))) == 39


def test_an_interrupted_build_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrieval.index.BATCH", 8)
    broken = CountingEmbedder(fail_after=24)
    with pytest.raises(KeyboardInterrupt):
        build_index(tmp_path, PASSAGES, broken)
    with pytest.raises(IndexMismatchError, match="interrupted"):
        open_collection(tmp_path, Manifest.read(tmp_path))
    with (tmp_path / "embeddings.f32").open("ab") as file:
        file.write(b"torn")  # as a kill in the middle of a write leaves it
    with pytest.raises(IndexMismatchError, match="go on"):
        load_embeddings(tmp_path, Manifest.read(tmp_path))
    steps: list[tuple[str, int, int]] = []
    rest = CountingEmbedder()
    build_index(tmp_path, PASSAGES, rest, progress=lambda *step: steps.append(step))
    assert rest.embedded == 16
    assert ("embedding", 40, 40) in steps
    whole = CountingEmbedder()
    build_index(tmp_path / "whole", PASSAGES, whole)
    assert (tmp_path / "embeddings.f32").read_bytes() == (tmp_path / "whole" / "embeddings.f32").read_bytes()


def test_the_index_can_be_rebuilt_from_its_files(tmp_path: Path) -> None:
    build_index(tmp_path, PASSAGES, HashedNgramEmbedder())
    before = HybridRetriever(str(tmp_path)).search(["agent3", "condition 9"], top_k=4)
    rebuild_index(tmp_path)
    assert HybridRetriever(str(tmp_path)).search(["agent3", "condition 9"], top_k=4) == before


def test_another_embedder_or_a_missing_index_is_refused(tmp_path: Path) -> None:
    build_index(tmp_path, PASSAGES, HashedNgramEmbedder(128))
    with pytest.raises(IndexMismatchError, match="hashed-ngrams:128"):
        HybridRetriever(str(tmp_path))
    with pytest.raises(IndexMismatchError, match="medagent index build"):
        HybridRetriever(str(tmp_path / "nowhere"))
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "format": 0}))
    with pytest.raises(IndexMismatchError, match="format 0"):
        Manifest.read(tmp_path)


def test_repeats_are_dropped_and_conflicts_refused(tmp_path: Path) -> None:
    assert build_index(tmp_path, PASSAGES + PASSAGES, HashedNgramEmbedder(64)).num_passages == 40
    with pytest.raises(CorpusError, match="different content"):
        build_index(tmp_path / "b", [Passage("x", "t", "one"), Passage("x", "t", "two")], HashedNgramEmbedder(64))
    with pytest.raises(CorpusError, match="no passage"):
        build_index(tmp_path / "c", [], HashedNgramEmbedder(64))


def test_a_failing_store_is_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_index(tmp_path, PASSAGES, HashedNgramEmbedder())
    retriever = HybridRetriever(str(tmp_path))

    class Broken:
        def query(self, **kwargs):
            raise OSError("disk is gone")

    monkeypatch.setattr(retriever, "_collection", Broken())
    with pytest.raises(RetrieverUnavailableError, match="disk is gone"):
        retriever.search(["x"], top_k=1)


def test_a_folder_of_other_files_is_never_an_index(tmp_path: Path) -> None:
    (tmp_path / "passages.jsonl").write_text('{"text": "mine", "url": "x"}')
    with pytest.raises(IndexMismatchError, match="other files"):
        build_index(tmp_path, PASSAGES, HashedNgramEmbedder(64))
    assert "url" in (tmp_path / "passages.jsonl").read_text()


def test_an_index_inside_a_corpus_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    build_index(tmp_path / "index", PASSAGES, HashedNgramEmbedder(64))
    assert len(list(read_corpus(tmp_path))) == 1
    (tmp_path / "b.txt").write_bytes("Gefäß".encode("latin-1"))
    with pytest.raises(CorpusError, match="not UTF-8"):
        list(read_corpus(tmp_path))


def test_a_lost_collection_is_explained(tmp_path: Path) -> None:
    build_index(tmp_path, PASSAGES, HashedNgramEmbedder(64))
    open_client(tmp_path).delete_collection("passages")
    with pytest.raises(IndexMismatchError, match="index rebuild"):
        open_collection(tmp_path, Manifest.read(tmp_path))


def test_an_unreliable_retriever_fails_its_share_repeatably(tmp_path: Path) -> None:
    build_index(tmp_path, PASSAGES, HashedNgramEmbedder())
    good = HybridRetriever(str(tmp_path))
    queries = [f"condition {i} first-line drug" for i in range(40)]
    bad = UnreliableRetriever(good, share=0.3, seed=1)
    found = bad.search(queries, top_k=2)
    assert found == bad.search(queries, top_k=2)
    assert found[::-1] == bad.search(queries[::-1], top_k=2)
    failed = sum(a != b for a, b in zip(found, good.search(queries, top_k=2), strict=True))
    assert 4 <= failed <= 20
    assert UnreliableRetriever(good, share=0.0).search(queries, top_k=2) == good.search(queries, top_k=2)


def test_unrelated_results_are_repeatable_and_unrelated() -> None:
    retriever = UnrelatedRetriever(PASSAGES, seed=1)
    hits = retriever.search(["condition 3 first-line drug"] * 2, top_k=2)
    assert hits[0] == hits[1]
    assert len(hits[0]) == 2
    assert all(hit.passage.title != "condition 3" for hit in hits[0])
