"""Several indexes give the hits and scores of one index over all their passages.

The shards are consecutive parts of the corpus, so the order by index and then by row is the order of the one's rows.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from medagent.agent_folder import open_spec, retriever_spec
from medagent.agent_spec import RetrieverSpec
from medagent.cli.index import print_search
from medagent.evaluation.fingerprints import index_fingerprint
from medagent.retrieval.controls import UnrelatedRetriever
from medagent.retrieval.corpora import file_corpus
from medagent.retrieval.embedders import HashedNgramEmbedder
from medagent.retrieval.errors import IndexMismatchError, RetrievalError
from medagent.retrieval.filters import NO_FILTER, Filter
from medagent.retrieval.index import build_index
from medagent.retrieval.lexical import LENGTHS
from medagent.retrieval.maintenance import rebuild_index, remove_from_index, restore_in_index
from medagent.retrieval.passages import Hit, Passage
from medagent.retrieval.search import HybridRetriever
from medagent.retrieval.settings import Chunking, IndexSettings, SearchSettings
from medagent.retrieval.sharded import ShardedRetriever, open_index
from medagent.starter.world import World
from tests.retrieval.libraries import add, notice, pubmed, record
from tests.retrieval.support import PASSAGES, SMALL, problems

SOURCES = ("PubMed: Gut", "PubMed: Heart", "WHO")
SETTINGS = IndexSettings(search=SearchSettings(dense_weight=0.25))


@pytest.fixture(scope="module")
def corpus(world: World) -> list[Passage]:
    """300 passages of sources, years and lengths that vary."""
    found = []
    for i, passage in enumerate(world.passages()[:300]):
        text = " ".join([passage.text] * (1 + i % 3)) + f" Seen in {i % 7} of {i % 11} trials."
        found.append(replace(passage, text=text, source=SOURCES[i % 3], year=1990 + i % 30))
    return found


@pytest.fixture(scope="module")
def queries(corpus: list[Passage]) -> list[str]:
    """Words of passages, a word asked twice, and one that no passage has."""
    rng = random.Random(0)
    texts = [" ".join(rng.sample(passage.indexed_text.split(), 5)) for passage in rng.sample(corpus, 48)]
    return [*texts, "trials trials seen", "zzyzx"]


@pytest.fixture(scope="module")
def shards(corpus: list[Passage], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders: the whole, its thirds a, b and c, and its last two thirds."""
    parts = {"whole": corpus, "a": corpus[:90], "b": corpus[90:200], "c": corpus[200:], "bc": corpus[90:]}
    folder = tmp_path_factory.mktemp("shards")
    for name, passages in parts.items():
        build_index(passages, folder / name, HashedNgramEmbedder(), settings=SETTINGS)
    return {name: str(folder / name) for name in parts}


@pytest.fixture(scope="module")
def whole(shards: dict[str, str]) -> Iterator[HybridRetriever]:
    retriever = HybridRetriever(shards["whole"])
    yield retriever
    retriever.close()


def opened(shards: dict[str, str], names: str, **given: object) -> ShardedRetriever:
    return ShardedRetriever([shards[name] for name in names.split()], **given)  # type: ignore[arg-type]


def told(found: list[list[Hit]]) -> list[list[tuple[str, float]]]:
    return [[(hit.passage.id, hit.score) for hit in hits] for hits in found]


@pytest.mark.parametrize("where", ["", "source=PubMed* year>=2000", "year<=1994"])
def test_the_results_are_those_of_one_index(
    shards: dict[str, str], whole: HybridRetriever, queries: list[str], where: str
) -> None:
    asked = Filter.parse(where)
    wanted = [whole.search_where(queries, top_k=top_k, where=asked) for top_k in (5, 80)]
    assert sum(map(len, wanted[0])) > 200
    for names in ("a bc", "a b c", "whole"):
        retriever = opened(shards, names)
        assert len(retriever) == len(whole) == 300
        found = [retriever.search_where(queries, top_k=top_k, where=asked) for top_k in (5, 80)]
        assert list(map(told, found)) == list(map(told, wanted))
        ours, theirs = (each.rankings(queries, num_candidates=60, where=asked) for each in (retriever, whole))
        assert ours == theirs
        retriever.close()


def test_scores_of_words_are_equal_to_the_last_bit(
    shards: dict[str, str], whole: HybridRetriever, queries: list[str]
) -> None:
    retriever, lexical = opened(shards, "a b c"), whole.lexical
    for query in queries:
        tokens = lexical.analyser.tokens(query)
        wanted = lexical._scores.get_scores_from_ids(lexical._scores.get_tokens_ids(tokens))
        of_all = [shard.words.statistics(set(tokens)) for shard in retriever._shards]
        found = [
            (score, first + row)
            for shard, first in zip(retriever._shards, retriever._firsts, strict=True)
            for score, row in shard.words.best([tokens], of_all[0] + of_all[1] + of_all[2], top_k=300, allowed=None)
        ]
        scores = np.zeros(300, dtype=np.float32)
        for score, row in found:
            scores[row] = score
        assert scores.tobytes() == wanted.tobytes()
    retriever.close()


@pytest.mark.parametrize(("k1", "b"), [(0.0, 0.4), (1.5, 1.0), (2.0, 0.0)])
def test_other_constants_of_bm25(corpus: list[Passage], tmp_path: Path, k1: float, b: float) -> None:
    settings = replace(SETTINGS, bm25_k1=k1, bm25_b=b, search=SearchSettings(dense_weight=0))
    for name, part in (("whole", corpus[:60]), ("a", corpus[:20]), ("b", corpus[20:60])):
        build_index(part, tmp_path / name, SMALL, settings=settings)
    queries = [passage.title for passage in corpus[:60:6]]
    found = ShardedRetriever([str(tmp_path / "a"), str(tmp_path / "b")]).search(queries, top_k=20)
    assert told(found) == told(HybridRetriever(str(tmp_path / "whole")).search(queries, top_k=20))


def test_an_index_may_hold_nothing_that_is_asked_for(shards: dict[str, str], tmp_path: Path) -> None:
    strangers = [Passage.make("quokka", f"Quokkas {what}.", "test") for what in ("smile", "hop", "eat")]
    build_index(strangers, tmp_path, HashedNgramEmbedder(), settings=SETTINGS)
    retriever = ShardedRetriever([str(tmp_path), shards["b"]])
    lonely = retriever.search_where(["Seen in trials"], top_k=5, where=Filter.of(sources=("test",)))[0]
    assert {hit.passage.source for hit in lonely} == {"test"}
    assert len(retriever.search_where(["quokkas that hop"], top_k=5, where=Filter.of(sources=("WHO",)))[0]) == 5
    assert retriever.search_where(["quokkas that hop"], top_k=5, where=Filter.of(sources=("nobody",))) == [[]]
    assert retriever.rankings(["quokkas that hop"], num_candidates=5)[1] == [[1, 0, 2]]
    assert retriever.rankings(["zzyzx"], num_candidates=5)[1] == [[]]
    assert retriever.rankings([], num_candidates=5) == ([], [])
    retriever.close()


def test_of_an_id_in_two_indexes_the_first_stays(
    corpus: list[Passage], queries: list[str], whole: HybridRetriever, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    overlapping = {"a": corpus[:150], "b": [*(replace(passage, text="Other words.") for passage in corpus[90:150])]}
    overlapping["b"] += corpus[150:]
    for name, passages in overlapping.items():
        build_index(passages, tmp_path / name, HashedNgramEmbedder(), settings=SETTINGS)
    with caplog.at_level(logging.WARNING):
        retriever = ShardedRetriever([str(tmp_path / "a"), str(tmp_path / "b")])
    assert "60 of its 210 passages are left out" in caplog.text
    assert len(retriever) == len(retriever.passages) == 300
    assert list(retriever.passages) == retriever.passages[:] == corpus
    twice = corpus[100]
    assert retriever.passage(twice.id) == twice
    assert retriever.passage(corpus[299].id) == corpus[299]
    assert retriever.passage("unknown") is None
    for where in (NO_FILTER, Filter.of(sources=("WHO",))):
        asked = [*queries, "Other words."]
        ours, theirs = (each.search_where(asked, top_k=20, where=where) for each in (retriever, whole))
        assert told(ours) == told(theirs)
    drawn = UnrelatedRetriever(retriever.passages).search(["anything"], top_k=3)[0]
    assert {hit.passage.id for hit in drawn} <= {passage.id for passage in corpus}
    retriever.close()


def test_another_version_of_a_document_is_left_out_whole(tmp_path: Path) -> None:
    settings = IndexSettings(chunking=Chunking(max_tokens=40, overlap_tokens=0))
    for name, drug, sentences in (("a", "colchicine", 9), ("b", "ibuprofen", 30)):
        (tmp_path / f"from-{name}").mkdir()
        text = " ".join(f"Visit {i} of the patient with gout ended with {drug} again." for i in range(sentences))
        (tmp_path / f"from-{name}" / "gout.txt").write_text(text)
        (tmp_path / f"from-{name}" / f"{name}.txt").write_text(f"Only in {name}.")
        build_index(file_corpus(tmp_path / f"from-{name}"), tmp_path / name, SMALL, settings=settings)
    retriever = ShardedRetriever([str(tmp_path / "a"), str(tmp_path / "b")])
    held = [passage.text for passage in retriever.passages]
    assert len(retriever) == len(held) > 4
    assert sum("Only in" in text for text in held) == 2
    assert any("colchicine" in text for text in held)
    assert not any("ibuprofen" in text for text in held)
    assert {hit.passage.text for hit in retriever.search(["gout"], top_k=99)[0]} <= set(held)
    later = [passage.id for passage in HybridRetriever(str(tmp_path / "b")).passages if "ibuprofen" in passage.text]
    assert len(later) > len(held), "so the earlier index has no passage of the last id"
    assert retriever.passage(later[-1]) is None
    retriever.close()


def test_a_notice_of_retraction_counts_in_every_index(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    add(tmp_path / "a", pubmed(tmp_path / "from-a", 1, record(1, "Wrong."), record(2, "Right.")))
    add(tmp_path / "b", pubmed(tmp_path / "from-b", 2, notice(1), record(3, "Fine.")))
    for names in ("a b", "b a"):
        with caplog.at_level(logging.WARNING):
            retriever = ShardedRetriever([str(tmp_path / name) for name in names.split()])
        assert {passage.text for passage in retriever.passages} == {"Right.", "Fine."}
        assert {hit.passage.text for hit in retriever.search(["wrong"], top_k=5)[0]} == {"Right.", "Fine."}
        assert retriever.passage("pmid:1") is None
        retriever.close()
    assert caplog.text.count("1 of its 2 passages are left out: another says they are retracted") == 2
    add(tmp_path / "a", pubmed(tmp_path / "from-a", 3, notice(1)))
    restore_in_index(tmp_path / "a", ["pmid:1"])
    add(tmp_path / "a", pubmed(tmp_path / "from-a", 4, record(1, "Wrong.")))
    let_in = ShardedRetriever([str(tmp_path / "a"), str(tmp_path / "b")])
    assert let_in.passage("pmid:1") is not None, "what was let back in by name stays"
    let_in.close()


def test_rows_that_were_removed_leave_gaps(corpus: list[Passage], tmp_path: Path) -> None:
    for name, part in (("a", corpus[:40]), ("b", corpus[40:80])):
        build_index(part, tmp_path / name, SMALL, settings=SETTINGS)
    remove_from_index(tmp_path / "a", [corpus[39].id, corpus[3].id])
    left = [passage for i, passage in enumerate(corpus[:80]) if i not in (3, 39)]
    build_index(left, tmp_path / "whole", SMALL, settings=SETTINGS)
    queries = [passage.title for passage in corpus[:80:8]]
    found = ShardedRetriever([str(tmp_path / "a"), str(tmp_path / "b")]).search(queries, top_k=9)
    assert told(found) == told(HybridRetriever(str(tmp_path / "whole")).search(queries, top_k=9))


def test_indexes_that_differ_are_refused(shards: dict[str, str], tmp_path: Path) -> None:
    def refused(*indexes: str, **given: object) -> str:
        with pytest.raises(IndexMismatchError) as error:
            ShardedRetriever(list(indexes), **given)  # type: ignore[arg-type]
        return str(error.value)

    other = str(tmp_path / "other")
    build_index(PASSAGES, tmp_path / "other", SMALL, settings=SETTINGS)
    assert "embedder 'hashed-ngrams:64" in refused(shards["a"], other)
    assert shards["a"] in refused(shards["a"], other)
    analyser = tmp_path / "analyser"
    build_index(PASSAGES, analyser, HashedNgramEmbedder(), settings=replace(SETTINGS, analyser="words"))
    assert "found analyser 'words', wanted 'medical'" in refused(shards["a"], str(analyser))
    fusion = tmp_path / "fusion"
    build_index(PASSAGES, fusion, HashedNgramEmbedder(), settings=replace(SETTINGS, search=SearchSettings()))
    assert "found search" in refused(shards["a"], str(fusion))
    given = ShardedRetriever([shards["a"], str(fusion)], settings=SearchSettings())
    assert given.settings == SearchSettings(), "settings that are given count for all"
    given.close()
    assert "each once" in refused(shards["a"], shards["a"])
    assert "one folder or more" in refused()
    assert "no manifest.json" in refused(shards["a"], str(tmp_path / "nowhere"))
    assert "would be searched with" in refused(shards["a"], shards["b"], embedder=SMALL)
    remove_from_index(fusion, [PASSAGES[0].id])  # nothing that was refused is still open


def test_an_index_without_lengths_is_refused_and_can_be_made_again(tmp_path: Path) -> None:
    for name, part in (("a", PASSAGES[:20]), ("b", PASSAGES[20:])):
        build_index(part, tmp_path / name, SMALL)
    both = [str(tmp_path / "a"), str(tmp_path / "b")]
    (tmp_path / "b" / "bm25" / LENGTHS).unlink()
    assert not problems(tmp_path / "b"), "alone it is whole"
    with pytest.raises(IndexMismatchError, match="medagent index rebuild"):
        ShardedRetriever(both)
    rebuild_index(tmp_path / "b")
    ShardedRetriever(both).close()
    np.save(tmp_path / "b" / "bm25" / LENGTHS, np.ones(3, dtype=np.int64))
    assert problems(tmp_path / "b")
    with pytest.raises(IndexMismatchError, match="holds 3 lengths, wanted 20"):
        ShardedRetriever(both)


def test_results_are_remembered_and_a_reranker_decides(shards: dict[str, str], whole: HybridRetriever) -> None:
    class Backwards:
        num_candidates = 4

        def scores(self, query: str, passages: Sequence[Passage]) -> list[float]:
            return [float(i) for i in range(len(passages))]

    retriever = opened(shards, "a bc", reranker=Backwards())
    plain = whole.search(["seen in trials"], top_k=4)[0]
    found = retriever.search(["seen in trials"], top_k=4)
    assert [hit.passage for hit in found[0]] == [hit.passage for hit in plain][::-1]
    assert retriever.search(["seen in trials"], top_k=4) == found
    assert len(retriever._cache) == 1
    retriever.close()


def test_names_with_commas_open_several(
    shards: dict[str, str], whole: HybridRetriever, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    both = f"{shards['a']}, {shards['bc']}"
    retriever = open_index(both)
    assert isinstance(retriever, ShardedRetriever)
    spec = retriever_spec(retriever)
    assert spec is not None
    assert spec.index == ",".join(str(Path(shards[name]).resolve()) for name in ("a", "bc"))
    again = RetrieverSpec.from_json(json.loads(json.dumps(spec.__dict__ | {"search": spec.search.__dict__})))
    reopened = open_spec(again, beside=tmp_path)
    assert reopened.search(["seen in trials"], top_k=5) == retriever.search(["seen in trials"], top_k=5)
    assert index_fingerprint(retriever) == index_fingerprint(reopened) != index_fingerprint(whole)
    print_search("seen in trials", both, top_k=5, where=NO_FILTER, changed={}, reranker=None, as_json=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["id"] for line in lines] == [hit.passage.id for hit in whole.search(["seen in trials"], top_k=5)[0]]
    with pytest.raises(RetrievalError, match="address among several"):
        open_index(f"http://localhost:8001,{shards['a']}")
    with_comma = tmp_path / "a,b"
    build_index(PASSAGES, with_comma, SMALL)
    alone = open_index(str(with_comma))
    assert isinstance(alone, HybridRetriever)
