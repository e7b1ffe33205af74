"""A ranking may prefer stronger types of publication, and never shows what the plain one would not reach."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from medagent.cli.main import main
from medagent.retrieval.bibliography import Bibliography
from medagent.retrieval.embedders import HashedNgramEmbedder
from medagent.retrieval.errors import RetrievalError
from medagent.retrieval.fusion import evidence_level
from medagent.retrieval.index import build_index
from medagent.retrieval.passages import Passage
from medagent.retrieval.search import HybridRetriever
from medagent.retrieval.settings import IndexSettings, SearchSettings

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


def found(folder: Path, weight: float, top_k: int = 4) -> list[str]:
    retriever = HybridRetriever(str(folder), settings=SearchSettings(evidence_weight=weight))
    return [hit.passage.id for hit in retriever.search(["metformin for gestational diabetes"], top_k=top_k)[0]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("types") / "index"
    build_index(passages(), out, HashedNgramEmbedder(), settings=IndexSettings())
    return out


def test_a_stronger_type_comes_first_where_it_weighs(folder: Path) -> None:
    assert found(folder, 0.0)[0] == "letter"
    assert found(folder, 10.0)[:2] == ["guideline", "trial"]
    assert found(folder, 10.0)[2:] == [*found(folder, 0.0)[:1], "other"], "the rest keeps its order"
    assert set(found(folder, 10.0)) == set(found(folder, 0.0))


def test_scores_are_the_fused_ones_times_one_plus_weight_times_level(folder: Path) -> None:
    def scores(weight: float) -> dict[str, float]:
        retriever = HybridRetriever(str(folder), settings=SearchSettings(evidence_weight=weight))
        (hits,) = retriever.search(["metformin for gestational diabetes"], top_k=4)
        return {hit.passage.id: hit.score for hit in hits}

    plain, weighed = scores(0.0), scores(0.5)
    assert weighed["letter"] == plain["letter"]
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


@pytest.mark.parametrize("weight", [-0.1, 11.0, float("nan")])
def test_a_weight_out_of_range_is_refused(weight: float) -> None:
    with pytest.raises(RetrievalError, match="evidence_weight .* found, wanted a number from 0 to 10"):
        SearchSettings(evidence_weight=weight)
