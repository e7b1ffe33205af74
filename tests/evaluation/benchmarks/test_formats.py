"""Every published format: its fields, from a file and from the hub's rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from medagent.errors import ConfigError, InputError
from medagent.evaluation.benchmarks import (
    BioASQBenchmark,
    FileBenchmark,
    JsonlBenchmark,
    MedMCQABenchmark,
    MedQABenchmark,
    MedXpertQABenchmark,
    MMLUBenchmark,
    OpenQABenchmark,
    PubMedQABenchmark,
    StarterBenchmark,
)
from medagent.evaluation.benchmarks.source import BenchmarkSource
from medagent.evaluation.corpora import corpus_passages
from tests.evaluation.benchmarks.support import MEDMCQA, MEDQA, MEDXPERT, OPEN, PUBMEDQA, lines
from tests.support import SHARED_DATA


def test_medqa_with_four_and_five_options(tmp_path: Path) -> None:
    five = {**MEDQA, "options": {**MEDQA["options"], "E": "gold"}, "answer_idx": "E", "answer": "gold"}
    four, other = MedQABenchmark(lines(tmp_path / "q.jsonl", MEDQA, five)).questions()
    assert (four.answer, four.options[1], four.kind, four.meta["num_options"]) == ("B", "zinc", "step1", "4")
    assert (other.answer, other.meta["num_options"], other.id) == ("E", "5", "medqa:q:2")
    with pytest.raises(InputError, match=r"line 1: the answer 'tin' is not the text of option B"):
        MedQABenchmark(lines(tmp_path / "q.jsonl", {**MEDQA, "answer": "tin"})).questions()


def test_medmcqa_counts_from_one_in_files_and_from_zero_on_the_hub(tmp_path: Path) -> None:
    multi = {**MEDMCQA, "id": "x2", "choice_type": "multi", "cop": 4}
    path = lines(tmp_path / "dev.json", MEDMCQA, multi)
    single, other = MedMCQABenchmark(path).questions()
    assert (single.answer, single.kind, other.answer) == ("B", "Anatomy", "D")
    assert other.meta["choice_type"] == "multi"
    assert [q.id for q in MedMCQABenchmark(path, choice_type="multi").questions()] == ["x2"]
    assert "because" not in single.text
    with pytest.raises(InputError, match=r"line 2.*found cop 4, wanted a number from 0 to 3"):
        MedMCQABenchmark(path, cop_from="zero").questions()
    with pytest.raises(InputError, match="found cop 0, wanted a number from 1 to 4"):
        MedMCQABenchmark(lines(tmp_path / "zero.json", {**MEDMCQA, "cop": 0})).questions()


def test_a_medmcqa_file_without_any_zero_is_said_to_count_from_one(tmp_path: Path) -> None:
    path = str(lines(tmp_path / "dev.json", MEDMCQA))
    found, _, notes = BenchmarkSource("medmcqa", path).questions()
    assert (found[0].answer, [note for note in notes if "counted from 1" in note]) == ("B", [*notes])
    found, _, notes = BenchmarkSource("medmcqa", path, cop_from="zero").questions()
    assert (found[0].answer, [note for note in notes if "counted from 0" in note]) == ("C", [*notes])
    assert BenchmarkSource("medmcqa", path, cop_from="one").questions()[2] == {}
    zero = str(lines(tmp_path / "zero.json", {**MEDMCQA, "cop": 0}))
    assert BenchmarkSource("medmcqa", zero, cop_from="zero").questions()[2] == {}
    with pytest.raises(InputError, match="line 1: found cop 0.*Give --cop_from zero or one"):
        BenchmarkSource("medmcqa", zero).questions()
    with pytest.raises(InputError, match="--cop_from one: found benchmark 'medqa', wanted medmcqa"):
        BenchmarkSource("medqa", path, cop_from="one").open()


def test_pubmedqa_is_three_tasks(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"11": PUBMEDQA, "12": {**PUBMEDQA, "final_decision": "maybe"}}))
    search = PubMedQABenchmark(str(path)).questions()
    given = PubMedQABenchmark(str(path), task="with_abstract").questions()
    decided = PubMedQABenchmark(str(path), task="yes_no").questions()
    assert [q.answer for q in search] == ["B", "C"]
    assert search[0].gold_passage_ids == ("pubmed:11",)
    assert given[0].text == "One. Two. Does it?"
    assert given[0].gold_passage_ids == ()
    assert [(q.id, q.options) for q in decided] == [("pubmedqa:11", ("yes", "no"))]
    assert len({q.meta["benchmark"] for q in (search[0], given[0], decided[0])}) == 3
    assert not any("SECRET" in q.text for q in (*search, *given))


def test_mmlu_files_and_folders(tmp_path: Path) -> None:
    for subject in ("anatomy", "astronomy"):
        (tmp_path / f"{subject}_test.csv").write_text('"Where, exactly?",a1,"b, 1",c1,d1,B\nNext?,a,b,c,d,D\n')
    questions = MMLUBenchmark(str(tmp_path)).questions()
    assert [(q.id, q.kind, q.answer) for q in questions] == [
        ("mmlu:anatomy:1", "anatomy", "B"),
        ("mmlu:anatomy:2", "anatomy", "D"),
    ]
    assert questions[0].options[1] == "b, 1"
    assert len(MMLUBenchmark(str(tmp_path / "astronomy_test.csv")).questions()) == 2


def test_medxpertqa_shows_its_options_once(tmp_path: Path) -> None:
    listed = {
        **MEDXPERT,
        "id": "Text-2",
        "options": [{"letter": "A", "content": "flu"}, {"letter": "B", "content": "gout"}],
    }
    padded = {**MEDXPERT, "id": "MM-1", "options": {"A": "flu", "B": "gout", "C": None}}
    for question in MedXpertQABenchmark(lines(tmp_path / "m.jsonl", MEDXPERT, listed, padded)).questions():
        assert question.text == "A man has a fever. What is it?"
        assert (question.options, question.answer, question.kind) == (("flu", "gout"), "B", "Diagnosis")


def test_open_questions_have_several_right_answers(tmp_path: Path) -> None:
    question = OpenQABenchmark(lines(tmp_path / "o.jsonl", OPEN)).questions()[0]
    assert (question.answer, question.aliases, question.options) == ("Osler", ("William Osler",), ())
    own = JsonlBenchmark(lines(tmp_path / "own.jsonl", {"question": "who?", "answer": ["a", "b"]})).questions()[0]
    assert (own.answer, own.aliases, own.id) == ("a", ("b",), "own:1")


HUB: list[tuple[type[FileBenchmark], dict[str, Any], Any, str]] = [
    (MedQABenchmark, MEDQA, None, "B"),
    (
        MedQABenchmark,
        {
            "sent1": "x",
            "question": "Which?",
            "answer_idx": "A",
            "answer": "a",
            "options": [{"key": "A", "value": "a"}, {"key": "B", "value": "b"}],
        },
        None,
        "A",
    ),
    (MedMCQABenchmark, {**MEDMCQA, "cop": 1}, datasets.ClassLabel(names=["a", "b", "c", "d"]), "B"),
    (
        PubMedQABenchmark,
        {
            "pubid": 11,
            "question": "Does it?",
            "context": {"contexts": ["One."], "labels": ["R"], "meshes": ["M"]},
            "long_answer": "S",
            "final_decision": "yes",
        },
        None,
        "A",
    ),
    (
        MMLUBenchmark,
        {"question": "Where?", "subject": "anatomy", "choices": ["a", "b", "c", "d"], "answer": 2},
        None,
        "C",
    ),
    (MedXpertQABenchmark, MEDXPERT, None, "B"),
    (OpenQABenchmark, {**OPEN, "metadata": {"type": "x"}}, None, "Osler"),
]


@pytest.mark.parametrize(("kind", "row", "cop", "answer"), HUB, ids=lambda value: getattr(value, "__name__", ""))
def test_the_hubs_rows_are_the_same_questions(
    tmp_path: Path, kind: type[FileBenchmark], row: dict[str, Any], cop: Any, answer: str
) -> None:
    data = datasets.Dataset.from_list([row])
    if cop is not None:
        data = data.cast_column("cop", cop)
    data.to_parquet(str(tmp_path / "test-00000-of-00001.parquet"))
    benchmark = kind(
        hub=str(tmp_path), subset=None, split="test"
    )  # a folder of parquet files loads as the hub's datasets do
    (question,) = benchmark.questions()
    assert question.answer == answer
    assert question.text in ("Which drug?", "Which?", "Does it?", "Where?", "A man has a fever. What is it?", "who?")


def test_pubmedqas_abstracts_come_from_the_hub_as_from_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "hub"
    (folder / "pqa_labeled").mkdir(parents=True)
    row = {"pubid": 11, "question": "Does it?", "context": {"contexts": ["One.", "Two."]}, "final_decision": "no"}
    datasets.Dataset.from_list([row]).to_parquet(str(folder / "pqa_labeled" / "train-00000-of-00001.parquet"))
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: pqa_labeled\n  data_files:\n"
        "  - split: train\n    path: pqa_labeled/train-*\n---\n"
    )
    published = {"11": {"QUESTION": "Does it?", "CONTEXTS": ["One.", "Two."], "final_decision": "no"}}
    (tmp_path / "pqal.json").write_text(json.dumps(published))
    from_hub, from_file = (
        corpus_passages(f"pubmedqa:{source}") for source in (f"hub:{folder}", tmp_path / "pqal.json")
    )
    assert from_hub == from_file
    assert [passage.id for passage in from_hub] == ["pubmed:11"]
    (question,) = PubMedQABenchmark(hub=str(folder)).questions()
    assert question.gold_passage_ids == ("pubmed:11",)


def test_a_dataset_that_is_not_there_is_explained(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be loaded"):
        MedQABenchmark(hub=str(tmp_path / "nothing")).questions()
    with pytest.raises(ConfigError, match="exactly one"):
        MedQABenchmark()


def test_ranges_and_seeded_samples(tmp_path: Path) -> None:
    path = lines(tmp_path / "q.jsonl", *({**MEDQA, "question": f"q{i}"} for i in range(50)))
    texts = [q.text for q in MedQABenchmark(path, start=10, stop=40, limit=7, limit_seed=3).questions()]
    assert len(texts) == 7
    assert texts == [q.text for q in MedQABenchmark(path, start=10, stop=40, limit=7, limit_seed=3).questions()]
    assert texts != [q.text for q in MedQABenchmark(path, start=10, stop=40, limit=7, limit_seed=4).questions()]
    assert texts == sorted(texts, key=lambda text: int(text[1:]))
    assert all(10 <= int(text[1:]) < 40 for text in texts)
    with pytest.raises(ConfigError, match="range 60"):
        MedQABenchmark(path, start=60).questions()
    with pytest.raises(ConfigError, match="limit 0"):
        MedQABenchmark(path, limit=0).questions()
    with pytest.raises(InputError, match="without a"):
        BioASQBenchmark(str(tmp_path)).questions()


def test_the_starter_world_carries_its_evidence() -> None:
    evidence = {passage.id for passage in StarterBenchmark().passages()}
    assert all(set(question.gold_passage_ids) <= evidence for question in StarterBenchmark().questions())


@pytest.mark.real_data
@pytest.mark.skipif(not SHARED_DATA.exists(), reason="the real benchmark files are not there")
def test_the_real_files_load_with_the_right_counts() -> None:
    counts = {
        "medqa": len(MedQABenchmark(str(SHARED_DATA / "medqa" / "us_4options_dev.jsonl")).questions()),
        "medqa train": len(MedQABenchmark(str(SHARED_DATA / "medqa" / "train_sample_1000.jsonl")).questions()),
        "mediq": len(MedQABenchmark(str(SHARED_DATA / "medqa" / "us_4options_mediq_dev.jsonl")).questions()),
        "medmcqa": len(MedMCQABenchmark(str(SHARED_DATA / "medmcqa" / "dev_half.json")).questions()),
        "multi": len(MedMCQABenchmark(str(SHARED_DATA / "medmcqa" / "dev_half.json"), choice_type="multi").questions()),
        "pubmedqa": len(PubMedQABenchmark(str(SHARED_DATA / "pubmedqa" / "pqal_train500.json")).questions()),
        "yes_no": len(
            PubMedQABenchmark(str(SHARED_DATA / "pubmedqa" / "pqal_train500.json"), task="yes_no").questions()
        ),
        "mmlu": len(MMLUBenchmark(str(SHARED_DATA / "mmlu")).questions()),
        "bioasq": len(BioASQBenchmark(str(SHARED_DATA / "bioasq")).questions()),
        "bioasq yes/no": len(BioASQBenchmark(str(SHARED_DATA / "bioasq"), types=["yes_no"]).questions()),
    }
    assert counts == {
        "medqa": 636,
        "medqa train": 1000,
        "mediq": 1272,
        "medmcqa": 2091,
        "multi": 675,
        "pubmedqa": 500,
        "yes_no": 445,
        "mmlu": 500,
        "bioasq": 1374,
        "bioasq yes/no": 488,
    }
