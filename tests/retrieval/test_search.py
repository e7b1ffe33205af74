from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from medagent.cli.main import main
from medagent.retrieval.bibliography import Bibliography
from medagent.retrieval.controls import NoRetriever, UnrelatedRetriever, UnreliableRetriever
from medagent.retrieval.embedders import HashedNgramEmbedder
from medagent.retrieval.errors import NoIndexError, RetrievalError, RetrieverUnavailableError
from medagent.retrieval.filters import Filter
from medagent.retrieval.fusion import drop_duplicates, evidence_level, fuse, nearest_rows
from medagent.retrieval.index import build_index
from medagent.retrieval.maintenance import rebuild_index
from medagent.retrieval.manifest import Manifest
from medagent.retrieval.passages import Passage
from medagent.retrieval.search import HybridRetriever
from medagent.retrieval.settings import IndexSettings, SearchSettings
from medagent.retrieval.store import PassageStore
from medagent.retrieval.vectors import exact_nearest
from medagent.starter.index import build_starter_index
from medagent.starter.world import World
from tests.retrieval.support import PASSAGES


def built(folder: Path, passages: list[Passage] = PASSAGES, **settings: float) -> HybridRetriever:
    build_index(passages, folder, HashedNgramEmbedder())
    return HybridRetriever(str(folder), settings=SearchSettings(**settings) if settings else None)


def test_a_passage_survives_json() -> None:
    for passage in [*PASSAGES, Passage("i", "t", "x", "s", "sec", 2020, "CC BY", "doc")]:
        assert Passage.from_json(json.loads(json.dumps(passage.to_json()))) == passage


def test_search_finds_and_repeats(tmp_path: Path) -> None:
    retriever = built(tmp_path)
    first = retriever.search(["condition 7", "agent21", ""], top_k=3)
    assert first[0][0].passage.title == "condition 7"
    assert "agent21" in first[1][0].passage.text
    assert all(len(hits) == 3 for hits in first[:2])
    assert [hit.score for hit in first[0]] == sorted((hit.score for hit in first[0]), reverse=True)
    assert retriever.search(["agent21"], top_k=3)[0] == first[1]
    assert HybridRetriever(str(tmp_path)).search(["condition 7"], top_k=3)[0] == first[0]
    assert len(retriever) == 40
    assert retriever.search([], top_k=3) == []
    assert retriever.passage(first[0][0].passage.id) == first[0][0].passage
    assert retriever.passage("unknown") is None
    retriever.close()
    rebuild_index(tmp_path)
    assert HybridRetriever(str(tmp_path)).search(["condition 7"], top_k=3)[0] == first[0]


def test_the_dense_side_is_exact_and_leaves_split_ties_out(world: World, tmp_path: Path) -> None:
    build_starter_index(tmp_path, world.passages())
    retriever = HybridRetriever(str(tmp_path))
    store = PassageStore(tmp_path, Manifest.read(tmp_path).dimension)
    vectors = store.vectors()
    queries = [f"{condition.name} cause" for condition in world.conditions[:100]] + ["q", "zzz"]
    distances = 1 - HashedNgramEmbedder().embed_queries(queries) @ vectors.T
    dense, _ = retriever.rankings(queries, num_candidates=20)
    for ranking, exact in zip(dense, distances, strict=True):
        first_out = np.sort(exact)[20]  # the nearest of those that do not fit
        surely_in = np.flatnonzero(exact < first_out - 1e-5)
        assert set(surely_in) <= set(ranking)
        assert np.all(np.diff(exact[ranking]) > -1e-5)
        if len(surely_in):
            assert exact[ranking].max() < first_out + 1e-5
    assert nearest_rows([(0.2, 7), (0.2, 3), (0.1, 5)], 20) == [5, 3, 7]
    assert nearest_rows([(0.0, 0), *((0.5, row) for row in range(1, 21))], 20) == [0]
    assert nearest_rows([(0.5, row) for row in range(21)], 20) == list(range(20)), "where all are tied, some must do"
    store.close()


def test_reciprocal_rank_fusion_by_hand() -> None:
    assert fuse([3, 1], [1, 5], SearchSettings(dense_weight=2.0, rrf_k=60)) == [
        (1, pytest.approx(2 / 62 + 1 / 61)),
        (3, pytest.approx(2 / 61)),
        (5, pytest.approx(1 / 62)),
    ]
    assert [row for row, _ in fuse([3, 1], [1, 5], SearchSettings(dense_weight=0))] == [1, 5]


def test_wrong_search_settings_are_refused() -> None:
    wrong = [{"num_candidates": 0}, {"rrf_k": -1}, {"collapse": 2}, {"dense_weight": -1}, {"floor": 1.5}]
    wrong += [{"dense_weight": 0, "lexical_weight": 0}, *({"evidence_weight": value} for value in (-0.1, 11, np.nan))]
    for settings in wrong:
        with pytest.raises(RetrievalError, match="search settings"):
            SearchSettings(**settings)  # type: ignore[arg-type]


def test_the_cache_is_bounded_and_serves_repeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_index(PASSAGES, tmp_path, HashedNgramEmbedder())
    retriever = HybridRetriever(str(tmp_path), cache_size=2)
    first = retriever.search(["a1", "b2", "c3", "a1"], top_k=1)
    assert first[0] == first[3]
    assert len(retriever._cache) == 2
    asked: list[str] = []
    search = retriever._search
    monkeypatch.setattr(retriever, "_search", lambda queries, *rest: asked.extend(queries) or search(queries, *rest))
    assert retriever.search(["c3", "b2"], top_k=1) == [first[2], first[1]]
    assert not asked
    retriever.search(["c3"], top_k=2)
    retriever.search_where(["c3"], top_k=1, where=Filter.of(year_from=1))
    assert asked == ["c3", "c3"], "another depth or filter is another search"
    uncached = HybridRetriever(str(tmp_path), cache_size=0)
    uncached.search(["a1"], top_k=1)
    assert len(uncached._cache) == 0


def test_filtered_dense_search_is_exact_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("medagent.retrieval.vectors._BLOCK", 7)
    rng = np.random.default_rng(0)
    vectors, queries = rng.normal(size=(50, 8)).astype(np.float32), rng.normal(size=(3, 8)).astype(np.float32)
    rows = np.arange(0, 50, 2)
    units = [each / np.linalg.norm(each, axis=1)[:, None] for each in (queries, vectors)]
    for space, distances in (("ip", 1 - queries @ vectors.T), ("cosine", 1 - units[0] @ units[1].T)):
        found = exact_nearest(queries, vectors, rows, space=space, top_k=5)  # type: ignore[arg-type]
        for pairs, line in zip(found, distances, strict=True):
            assert [row for _, row in pairs] == sorted(rows.tolist(), key=lambda row: line[row])[:5]
            assert [distance for distance, _ in pairs] == pytest.approx(sorted(line[rows])[:5], abs=1e-5)


def test_repeats_are_collapsed_but_another_dose_is_not() -> None:
    text = " ".join(f"word{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(80))
    whole = Passage.make("Dose", f"Give 10 mg daily. {text}")
    again = Passage.make("Dose", f"Give 10 mg daily. {text} also")
    other = Passage.make("Dose", f"Give 100 mg daily. {text}")
    half = Passage.make("Dose", f"Give 10 mg daily. {text[:300]}")
    ranked = [(whole, 4.0), (again, 3.0), (other, 2.0), (half, 1.0), (whole, 0.5)]
    assert [score for _, score in drop_duplicates(ranked, 0.9)] == [4.0, 2.0, 1.0]
    assert [score for _, score in drop_duplicates(ranked, 1.0)] == [4.0, 3.0, 2.0, 1.0]
    assert [score for _, score in drop_duplicates(ranked, 0.0)] == [4.0, 3.0, 2.0, 1.0, 0.5]
    short = [(Passage.make("", "aspirin"), 2.0), (Passage.make("", "heparin"), 1.0)]
    assert len(list(drop_duplicates(short, 0.9))) == 2


def test_collapsed_hits_make_room_for_others(tmp_path: Path) -> None:
    text = "Colchicine relieves the pain of acute gout when it is early " + "and the joint is rested and cooled " * 5
    passages = [Passage.make("gout", f"{text} {end}") for end in ("well", "indeed", "truly")] + PASSAGES
    retriever = built(tmp_path, passages, num_candidates=20, collapse=0.8)
    titles = [hit.passage.title for hit in retriever.search(["colchicine for acute gout"], top_k=3)[0]]
    assert titles.count("gout") == 1
    assert len(titles) == 3


def test_a_failing_store_is_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    retriever = built(tmp_path)

    class Broken:
        def query(self, **kwargs):
            raise OSError("disk is gone")

    monkeypatch.setattr(retriever._vectors, "_collection", Broken())
    with pytest.raises(RetrieverUnavailableError, match="disk is gone"):
        retriever.search(["x"], top_k=1)


def test_an_unreliable_retriever_fails_its_share_repeatably(tmp_path: Path) -> None:
    good = built(tmp_path)
    queries = [f"condition {i} first-line drug" for i in range(40)]
    bad = UnreliableRetriever(good, share=0.3, seed=1)
    found = bad.search(queries, top_k=2)
    assert found == bad.search(queries, top_k=2)
    assert found[::-1] == bad.search(queries[::-1], top_k=2)
    failed = sum(a != b for a, b in zip(found, good.search(queries, top_k=2), strict=True))
    assert 4 <= failed <= 20
    assert UnreliableRetriever(good, share=0.0).search(queries, top_k=2) == good.search(queries, top_k=2)
    other = UnreliableRetriever(good, share=0.3, seed=2).search(queries, top_k=2)
    assert bad.reseeded(2).search(queries, top_k=2) == other != found


def test_unrelated_results_are_repeatable_and_unrelated() -> None:
    retriever = UnrelatedRetriever(PASSAGES, seed=1)
    hits = retriever.search(["condition 3 first-line drug"] * 2, top_k=2)
    assert hits[0] == hits[1]
    assert len(hits[0]) == 2
    assert all(hit.passage.title != "condition 3" for hit in hits[0])
    untitled = UnrelatedRetriever([Passage.make("", f"text {i}") for i in range(9)])
    assert len(untitled.search(["anything"], top_k=3)[0]) == 3
    with pytest.raises(NoIndexError):
        NoRetriever().search(["x"], top_k=1)


def test_search_leaves_the_memory_of_a_gpu_to_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """bm25s imports JAX where it is installed, and JAX takes 75% of a GPU's memory unless it is told otherwise."""
    jax, seen = tmp_path / "jax", tmp_path / "seen"
    jax.mkdir()
    write = f"pathlib.Path({str(seen)!r}).write_text(os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'])"
    (jax / "__init__.py").write_text(f"import os, pathlib\n{write}\nraise ImportError")
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import medagent.retrieval.lexical"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    assert seen.read_text() == "false"


def test_a_text_in_place_of_queries_is_refused(retriever) -> None:
    with pytest.raises(TypeError, match=r"queries: .* Give \[query\]"):
        retriever.search("gout", top_k=1)


TYPES = {"letter": "Letter", "trial": "Randomized Controlled Trial", "guideline": "Practice Guideline"}


def passages() -> list[Passage]:
    """Three on one subject, of which the weakest type fits the words best."""
    texts = {
        "letter": "Metformin for gestational diabetes: metformin or insulin.",
        "trial": "Metformin and insulin were compared in gestational diabetes in this trial.",
        "guideline": "Offer metformin in gestational diabetes where diet alone is not enough for the target.",
        "other": "Wash hands before dressing a wound.",
    }
    made = [replace(Passage.make("", text, "made up"), id=name) for name, text in texts.items()]
    return [replace(each, about=Bibliography(types=(TYPES[each.id],) if each.id in TYPES else ())) for each in made]


def scores(folder: Path, weight: float) -> dict[str, float]:
    """The scores by passage, best first."""
    retriever = HybridRetriever(str(folder), settings=SearchSettings(evidence_weight=weight))
    hits = retriever.search(["metformin for gestational diabetes"], top_k=4)[0]
    return {hit.passage.id: hit.score for hit in hits}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("types") / "index"
    build_index(passages(), out, HashedNgramEmbedder(), settings=IndexSettings())
    return out


def test_a_stronger_type_comes_first_where_it_weighs(folder: Path) -> None:
    plain, weighed = scores(folder, 0.0), scores(folder, 0.5)
    assert next(iter(plain)) == "letter"
    assert list(scores(folder, 10.0)) == ["guideline", "trial", "letter", "other"], "the rest keeps its order"
    assert weighed["letter"] == plain["letter"], "a score is multiplied by one plus the weight times the level"
    assert weighed["trial"] == pytest.approx(1.35 * plain["trial"])
    assert weighed["guideline"] == pytest.approx(1.5 * plain["guideline"])


def test_the_command_line_sets_it(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["search", "metformin for gestational diabetes", "--index", str(folder), "--json", "true"]
    for weight, first in (([], "letter"), (["--evidence_weight", "10"], "guideline")):
        main([*asked, *weight])
        assert json.loads(capsys.readouterr().out.splitlines()[0])["id"] == first
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(each.to_json()) + "\n" for each in passages()))
    main(["index", "build", str(corpus), "--out", str(tmp_path / "own"), "--evidence_weight", "10"])
    capsys.readouterr()
    main(["search", "metformin for gestational diabetes", "--index", str(tmp_path / "own"), "--json", "true"])
    assert json.loads(capsys.readouterr().out.splitlines()[0])["id"] == "guideline"


def test_levels() -> None:
    levels = {"Journal Article;Meta-Analysis": 0.9, "guideline": 1.0, "Case Reports;Review": 0.3, "Editorial": 0.0}
    levels |= {"Randomised  controlled trial": 0.7, "Network Meta-Analysis;Review": 0.9, "": 0.0}
    for types, level in (levels | {"Clinical Trial, Phase III": 0.5, "Consensus Statement": 1.0}).items():
        assert evidence_level(types.split(";")) == level
