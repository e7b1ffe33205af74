"""Every published format: its fields, from a file and from the hub's rows, and every way in which a file can be broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest

from evaluation.benchmarks import (
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
    bioasq_passages,
)
from medagent.errors import ConfigError, InputError

DATA = Path(__file__).parents[3] / "shared" / "data"
MEDQA = {
    "question": "Which drug?",
    "answer": "zinc",
    "options": {"A": "iron", "B": "zinc", "C": "lead", "D": "tin"},
    "meta_info": "step1",
    "answer_idx": "B",
    "metamap_phrases": [],
}
MEDMCQA = {
    "question": "Which?",
    "exp": "because",
    "cop": 2,
    "opa": "a1",
    "opb": "b1",
    "opc": "c1",
    "opd": "d1",
    "subject_name": "Anatomy",
    "topic_name": None,
    "id": "x1",
    "choice_type": "single",
}
PUBMEDQA = {"QUESTION": "Does it?", "CONTEXTS": ["One.", "Two."], "LONG_ANSWER": "SECRET", "final_decision": "no"}
BIOASQ = {
    "body": "Is it?",
    "type": "yesno",
    "exact_answer": "Yes",
    "id": "b1",
    "snippets": [{"text": "It is.", "document": "http://www.ncbi.nlm.nih.gov/pubmed/77"}],
    "documents": ["http://www.ncbi.nlm.nih.gov/pubmed/77", "http://www.ncbi.nlm.nih.gov/pubmed/78"],
}
MEDXPERT = {
    "id": "Text-1",
    "question": "A man has a fever. What is it?\nAnswer Choices: (A) flu (B) gout",
    "options": {"A": "flu", "B": "gout"},
    "label": "B",
    "medical_task": "Diagnosis",
    "body_system": "Joints",
    "question_type": "Reasoning",
}
OPEN = {"id": "test_0", "question": "who?", "golden_answers": ["Osler", "William Osler"]}


def lines(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


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


def test_bioasq_yes_no_in_any_case_with_its_documents(tmp_path: Path) -> None:
    other = {**BIOASQ, "id": "b2", "exact_answer": ["no"]}
    factoid = {**BIOASQ, "id": "b3", "type": "factoid", "exact_answer": [["x"]]}
    path = tmp_path / "7B1_golden.json"
    path.write_text(json.dumps({"questions": [BIOASQ, other, factoid]}, indent=1))
    questions = BioASQBenchmark(str(tmp_path)).questions()
    assert [(q.id, q.answer, q.gold_passage_ids) for q in questions] == [
        ("bioasq:b1", "A", ("pubmed:77",)),
        ("bioasq:b2", "B", ("pubmed:77",)),
    ]
    assert [(p.id, p.text) for p in bioasq_passages(tmp_path)] == [("pubmed:77", "It is.")]
    path.write_text(json.dumps({"questions": [{**BIOASQ, "exact_answer": "perhaps"}]}, indent=1))
    with pytest.raises(InputError, match=r"line \d+, entry 1 \(b1\): found the exact answer 'perhaps'"):
        BioASQBenchmark(str(path)).questions()


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


def test_a_dataset_that_is_not_there_is_explained(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be loaded"):
        MedQABenchmark(hub=str(tmp_path / "nothing")).questions()
    with pytest.raises(ConfigError, match="exactly one"):
        MedQABenchmark()


def without(row: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != name}


MALFORMED: list[tuple[type[FileBenchmark], Callable[[], list[object]], str]] = [
    (MedQABenchmark, lambda: [MEDQA, without(MEDQA, "question")], "line 2: found the fields"),
    (MedQABenchmark, lambda: [without(MEDQA, "options")], "line 1: found no options"),
    (MedQABenchmark, lambda: [{**MEDQA, "answer_idx": "F"}], "line 1: found the answer 'F'"),
    (MedQABenchmark, lambda: [{**MEDQA, "options": {"A": "x", "C": "y"}}], "without a gap"),
    (
        MedQABenchmark,
        lambda: [{**MEDQA, "options": {"A": "", "B": "", "C": "", "D": ""}, "answer": ""}],
        "wanted a text for the right one",
    ),
    (
        MedQABenchmark,
        lambda: [{**MEDQA, "id": "same"}, {**MEDQA, "id": "same"}],
        "line 2: the id 'same' occurs twice, first in .*line 1",
    ),
    (MedMCQABenchmark, lambda: [without(MEDMCQA, "opc")], "line 1: found no 'opc'"),
    (MedMCQABenchmark, lambda: [MEDMCQA, {**MEDMCQA, "id": "y", "cop": 5}], "line 2: found cop 5"),
    (MedMCQABenchmark, lambda: [MEDMCQA, MEDMCQA], "line 2: the id 'x1' occurs twice"),
    (MedXpertQABenchmark, lambda: [{**MEDXPERT, "label": "C"}], "line 1: found the answer 'C'"),
    (OpenQABenchmark, lambda: [{**OPEN, "golden_answers": []}], "line 1: found golden_answers"),
    (OpenQABenchmark, lambda: [OPEN, [1]], "line 2: found a list"),
    (JsonlBenchmark, lambda: [{"question": "q", "answer": "a", "meta": 3}], "line 1: found gold_passage_ids"),
]


@pytest.mark.parametrize(("kind", "rows", "message"), MALFORMED)
def test_a_malformed_row_is_named_by_file_and_line(
    tmp_path: Path, kind: type[FileBenchmark], rows: Callable[[], list[object]], message: str
) -> None:
    path = lines(tmp_path / "bad.jsonl", *rows())
    with pytest.raises(InputError, match=message) as error:
        kind(path).questions()
    assert path in str(error.value)


def test_a_file_that_is_cut_off_is_named_by_its_last_line(tmp_path: Path) -> None:
    path = Path(lines(tmp_path / "cut.jsonl", MEDQA, MEDQA))
    path.write_text(path.read_text()[:-30])
    with pytest.raises(InputError, match=r"cut\.jsonl, line 2: .*cut off"):
        MedQABenchmark(str(path)).questions()
    whole = tmp_path / "p.json"
    whole.write_text(json.dumps({"11": PUBMEDQA}, indent=1)[:-20])
    with pytest.raises(InputError, match=r"p\.json, line \d+: .*cut off"):
        PubMedQABenchmark(str(whole)).questions()
    table = tmp_path / "anatomy_test.csv"
    table.write_text("q,a,b,c,d,A\nq2,a,b")
    with pytest.raises(InputError, match=r"anatomy_test\.csv, line 2: found 3 cells"):
        MMLUBenchmark(str(table)).questions()


def test_a_repeated_pmid_and_a_strange_byte_are_named(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    row = json.dumps(PUBMEDQA)
    path.write_text(f'{{\n"11": {row},\n"11": {row}\n}}')
    with pytest.raises(InputError, match=r"p\.json, line 2: the name '11' occurs twice"):
        PubMedQABenchmark(str(path)).questions()
    path.write_bytes(b'{\n"11": \xff')
    with pytest.raises(InputError, match=r"line 2: found the byte 0xff"):
        PubMedQABenchmark(str(path)).questions()


def raw(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("kind", "name", "text", "message"),
    [
        (
            BioASQBenchmark,
            "b.json",
            json.dumps({"questions": [{**BIOASQ, "snippets": ["x"]}]}),
            "line 1, entry 1 .b1.: found snippets",
        ),
        (
            PubMedQABenchmark,
            "p.json",
            json.dumps({"1": {**without(PUBMEDQA, "CONTEXTS"), "context": "text"}}),
            "wanted PubMedQA",
        ),
        (PubMedQABenchmark, "p.json", json.dumps({"1": {**PUBMEDQA, "CONTEXTS": [""]}}), "wanted PubMedQA"),
        (PubMedQABenchmark, "p.json", "3", "found a int"),
        (
            JsonlBenchmark,
            "o.jsonl",
            json.dumps({"question": "q", "answer": "A", "options": 4}),
            "line 1: found options 4",
        ),
        (
            JsonlBenchmark,
            "o.jsonl",
            json.dumps({"question": "q", "answer": "x", "options": ["x", None]}),
            "wanted texts",
        ),
        (
            JsonlBenchmark,
            "o.jsonl",
            json.dumps({"question": "q", "answer": "A", "options": ["B", "A", "AB"]}),
            "a letter and the text of option B",
        ),
        (
            JsonlBenchmark,
            "o.jsonl",
            json.dumps({"question": "q", "answer": ["A", "B"], "options": ["x", "y"]}),
            "wanted one",
        ),
        (
            JsonlBenchmark,
            "o.jsonl",
            json.dumps({"question": "q", "answer": "x", "options": ["x", "x"]}),
            "several of them",
        ),
        (
            JsonlBenchmark,
            "o.jsonl",
            '{"question": "q", "question": "r", "answer": "x"}',
            "line 1: .* 'question' occurs twice",
        ),
        (JsonlBenchmark, "o.jsonl", "[" * 100_000, "line 1"),
        (JsonlBenchmark, "o.jsonl", '{"question": ' + "9" * 5_000 + "}", "line 1"),
        (OpenQABenchmark, "o.jsonl", json.dumps({**OPEN, "golden_answers": [None]}), "line 1: found golden_answers"),
        (
            MMLUBenchmark,
            "anatomy_test.csv",
            'q,a,b,c,d,A\n"open quote,a,b,c,d,B\nq,a,b,c,d,C\n',
            "line 2: .*not closed",
        ),
    ],
)
def test_what_no_reader_should_choke_on(
    tmp_path: Path, kind: type[FileBenchmark], name: str, text: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        kind(raw(tmp_path / name, text)).questions()


def test_an_answer_may_be_a_letter_or_a_text(tmp_path: Path) -> None:
    rows = [{"question": "q", "answer": answer, "options": {"A": "x", "B": "y"}} for answer in ("B", "y")]
    assert [q.answer for q in JsonlBenchmark(lines(tmp_path / "q.jsonl", *rows)).questions()] == ["B", "B"]


def test_lines_are_found_in_a_large_file(tmp_path: Path) -> None:
    rows = [{**BIOASQ, "id": f"b{i}"} for i in range(2_000)] + [{**BIOASQ, "id": "bad", "exact_answer": "perhaps"}]
    text = json.dumps({"questions": rows}, indent=1)
    line = text[: text.index('"bad"')].count("\n") + 1
    with pytest.raises(InputError, match=rf"line {line}, entry 2001 \(bad\)"):
        BioASQBenchmark(raw(tmp_path / "b.json", text)).questions()


def test_what_a_format_allows_is_put_right_and_counted(tmp_path: Path) -> None:
    entity = {**MEDQA, "question": "Is pO&lt;sub&gt;2&lt;/sub&gt; &amp; pH low?"}
    empty = {**MEDQA, "options": {**MEDQA["options"], "D": ""}}
    text = "".join(json.dumps(row) + "\r\n" for row in (entity, empty))
    path = tmp_path / "windows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    benchmark = MedQABenchmark(str(path))
    first, second = benchmark.questions()
    assert first.text == "Is pO<sub>2</sub> & pH low?"
    assert second.options[3] == ""
    assert sorted(benchmark.notes.items()) == [
        ("files with CRLF line ends, accepted", 1),
        ("files with a byte order mark, ignored", 1),
        ("questions with an empty wrong option, kept", 1),
        ("texts with HTML entities, resolved", 1),
    ]


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
@pytest.mark.skipif(not DATA.exists(), reason="the real benchmark files are not there")
def test_the_real_files_load_with_the_right_counts() -> None:
    counts = {
        "medqa": len(MedQABenchmark(str(DATA / "medqa" / "us_4options_dev.jsonl")).questions()),
        "medqa train": len(MedQABenchmark(str(DATA / "medqa" / "train_sample_1000.jsonl")).questions()),
        "mediq": len(MedQABenchmark(str(DATA / "medqa" / "us_4options_mediq_dev.jsonl")).questions()),
        "medmcqa": len(MedMCQABenchmark(str(DATA / "medmcqa" / "dev_half.json")).questions()),
        "multi": len(MedMCQABenchmark(str(DATA / "medmcqa" / "dev_half.json"), choice_type="multi").questions()),
        "pubmedqa": len(PubMedQABenchmark(str(DATA / "pubmedqa" / "pqal_train500.json")).questions()),
        "yes_no": len(PubMedQABenchmark(str(DATA / "pubmedqa" / "pqal_train500.json"), task="yes_no").questions()),
        "mmlu": len(MMLUBenchmark(str(DATA / "mmlu")).questions()),
        "bioasq": len(BioASQBenchmark(str(DATA / "bioasq")).questions()),
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
        "bioasq": 488,
    }
