"""BioASQ's files as questions and as a corpus: shapes of exact answers, types, patterns of names, snippets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from medagent.errors import ConfigError, InputError
from medagent.evaluation.benchmarks import BioASQBenchmark, bioasq_passages
from medagent.evaluation.benchmarks.source import BenchmarkSource
from medagent.evaluation.corpora import named_corpus
from medagent.evaluation.grading.grade import grade
from medagent.types import Question, Rollout, StopReason, Turn
from tests.support import SHARED_DATA

PUBMED = "http://www.ncbi.nlm.nih.gov/pubmed/"


def snippet(text: str, pmid: str = "7", section: str = "abstract", at: int = 0) -> dict[str, Any]:
    return {
        "text": text,
        "document": PUBMED + pmid,
        "beginSection": section,
        "endSection": section,
        "offsetInBeginSection": at,
    }


def entry(id_: str, kind: str, exact: object, *snippets: dict[str, Any]) -> dict[str, Any]:
    return {"id": id_, "body": f"Question {id_}?", "type": kind, "exact_answer": exact, "snippets": list(snippets)}


def golden(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"questions": list(rows)}, indent=1), encoding="utf-8")
    return path


def asked(path: Path, **settings: Any) -> list[Question]:
    return BioASQBenchmark(str(path), **settings).questions()


def test_a_factoid_takes_any_synonym_in_any_shape(tmp_path: Path) -> None:
    for exact, golds in (
        ([["XIa", "factor XIa"]], ("XIa", "factor XIa")),
        (["XIa", "factor XIa"], ("XIa", "factor XIa")),
        ([["XIa"], ["factor XIa", "XIa"]], ("XIa", "factor XIa")),
        (["XIa", ["factor XIa"]], ("XIa", "factor XIa")),
        ("XIa", ("XIa",)),
        ([[" factor \n XIa ", "", " "]], ("factor XIa",)),
        (11, ("11",)),
        ([["TNF-α"]], ("TNF-α",)),
    ):
        (question,) = asked(golden(tmp_path / "x.json", entry("a", "factoid", exact)))
        assert (question.golds, question.form, question.kind, question.items) == (golds, "ranked", "factoid", ())


def test_a_list_takes_every_entry_by_any_synonym(tmp_path: Path) -> None:
    for exact, items, answer in (
        ([["a", "alpha"], ["b"]], (("a", "alpha"), ("b",)), "a; b"),
        (["a", "b"], (("a",), ("b",)), "a; b"),
        ([["a", "alpha"], "b"], (("a", "alpha"), ("b",)), "a; b"),
        ("a", (("a",),), "a"),
        ([["one; two"], ["b"], []], (("one; two",), ("b",)), "one; two\nb"),
    ):
        (question,) = asked(golden(tmp_path / "x.json", entry("a", "list", exact)))
        assert (question.items, question.answer, question.form, question.kind) == (items, answer, "list", "list")


def test_an_exact_answer_of_another_shape_is_named(tmp_path: Path) -> None:
    for kind in ("factoid", "list"):
        for exact in ([[None]], [{"a": 1}], [[["deep"]]], [True], {"a": 1}):
            path = golden(tmp_path / "x.json", entry("a", kind, exact))
            with pytest.raises(InputError, match=r"line \d+, entry 1 \(a\): found the exact answer .*, wanted a text"):
                asked(path)


def test_what_has_no_exact_answer_is_left_out_and_counted(tmp_path: Path) -> None:
    path = golden(
        tmp_path / "x.json",
        entry("a", "factoid", None),
        entry("b", "list", []),
        entry("c", "factoid", [[""]]),
        entry("d", "summary", None),
        entry("e", "yesno", "Yes."),
        entry("f", "yesno", ["no"]),
    )
    benchmark = BioASQBenchmark(str(path))
    assert [(q.id, q.options, q.answer, q.kind) for q in benchmark.questions()] == [
        ("bioasq:e", ("yes", "no"), "A", "yes_no"),
        ("bioasq:f", ("yes", "no"), "B", "yes_no"),
    ]
    assert benchmark.notes == {"questions without an exact answer, left out": 3}


THREE = [
    entry("f", "factoid", [["one two three", "one two"]]),
    entry("l", "list", [["one"], ["one two three"]]),
    entry("y", "yesno", "no"),
]


def test_types_and_names_choose_the_questions(tmp_path: Path) -> None:
    path = golden(tmp_path / "x.json", *THREE)
    for name, kinds in (
        ("bioasq", ["factoid", "list", "yes_no"]),
        ("bioasq_factoid", ["factoid"]),
        ("bioasq_list", ["list"]),
        ("bioasq_yes_no", ["yes_no"]),
    ):
        assert [q.kind for q in BenchmarkSource(name, path=str(path)).questions()[0]] == kinds
    assert [q.kind for q in asked(path, types=["yes_no", "list"])] == ["list", "yes_no"]
    with pytest.raises(ConfigError, match=r"types: found \['yesno'\], wanted some of factoid, list, yes_no"):
        asked(path, types=["yesno"])
    with pytest.raises(ConfigError, match="types"):
        asked(path, types=[])


def test_most_words_leaves_out_what_has_only_longer_answers(tmp_path: Path) -> None:
    path = golden(tmp_path / "x.json", *THREE)
    kept = {most: [q.kind for q in asked(path, most_words=most)] for most in (1, 2, 3)}
    assert kept == {1: ["list", "yes_no"], 2: ["factoid", "list", "yes_no"], 3: ["factoid", "list", "yes_no"]}
    with pytest.raises(ConfigError, match="most_words: found 0, wanted 1 or more"):
        asked(path, most_words=0)


def test_a_pattern_of_names_reads_its_files_and_takes_a_repeated_question_once(tmp_path: Path) -> None:
    golden(tmp_path / "7B1_golden.json", entry("a", "yesno", "yes"))
    golden(tmp_path / "8B1_golden.json", entry("a", "yesno", "yes"), entry("b", "yesno", "no"))
    golden(tmp_path / "10B1_golden.json", entry("c", "yesno", "no"))
    benchmark = BioASQBenchmark(str(tmp_path / "[78]B*.json"))
    assert [q.id for q in benchmark.questions()] == ["bioasq:a", "bioasq:b"]
    assert benchmark.notes == {"questions that occur again, taken once": 1}
    assert [q.id for q in asked(tmp_path)] == ["bioasq:c", "bioasq:a", "bioasq:b"]
    with pytest.raises(InputError, match="no file has a name of this pattern"):
        asked(tmp_path / "9B*.json")
    golden(tmp_path / "8B2_golden.json", entry("a", "yesno", "no"))
    with pytest.raises(InputError, match="'bioasq:a' occurs twice, first in .*7B1_golden"):
        asked(tmp_path / "[78]B*.json")


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path: Path) -> None:
    assert len(asked(golden(tmp_path / "[78]B.json", entry("a", "yesno", "yes")))) == 1


SNIPPETS = [
    entry(
        "a",
        "factoid",
        [["x"]],
        snippet("A title.", section="title"),
        snippet("Some  finding\nof note.", at=30),
        snippet("Some finding of note."),  # the same text with other white space
        {"text": "No PubMed.", "document": "http://example.org/x"},
        snippet(" "),
    ),
    entry("b", "summary", None, snippet("Some finding of note.", pmid="8"), snippet("β-cells ﬁne \ud800")),
    entry("c", "summary", None, snippet("title", pmid="9", section="title", at=4), snippet("Of nine.", pmid="9")),
]
# The first 16 hex digits of SHA-256 of "A title." and of "Some finding of note."
TITLE_HASH, NOTE_HASH = "106874a27b615235", "3c6fa8cb49d1b0c4"


def test_snippets_become_passages_and_gold(tmp_path: Path) -> None:
    path = golden(tmp_path / "7B1_golden.json", *SNIPPETS)
    (question,) = asked(path)
    assert question.gold_passage_ids == (f"pubmed:7#{TITLE_HASH}", f"pubmed:7#{NOTE_HASH}")
    passages = bioasq_passages(str(path))
    assert [(p.title, p.text, p.document) for p in passages] == [
        ("", "A title.", "pubmed:7"),  # a title needs none above it
        ("A title.", "Some finding of note.", "pubmed:7"),  # once, though another document has the same words
        ("A title.", "β-cells ﬁne ?", "pubmed:7"),
        ("", "title", "pubmed:9"),  # the end of a title is not known to be one
        ("", "Of nine.", "pubmed:9"),
    ]
    assert passages[0].id == question.gold_passage_ids[0]
    assert passages[0].source == PUBMED + "7"
    held = {passage.id for passage in BioASQBenchmark(str(path)).passages()}
    assert set(question.gold_passage_ids) <= held
    assert f"pubmed:8#{NOTE_HASH}" in held, "the benchmark carries the snippets of every document"


def test_the_corpus_of_files_is_whole_passages(tmp_path: Path) -> None:
    golden(tmp_path / "7B1_golden.json", SNIPPETS[0])
    golden(tmp_path / "8B1_golden.json", SNIPPETS[2])
    corpus = named_corpus(f"bioasq:{tmp_path / '*B1_golden.json'}")
    assert sum(part.size for part in corpus.parts) == 4
    assert named_corpus(f"bioasq:{tmp_path}").identity == corpus.identity


@pytest.mark.real_data
@pytest.mark.skipif(not (SHARED_DATA / "bioasq").exists(), reason="the real BioASQ files are not there")
def test_the_real_files_give_the_known_counts_and_answers() -> None:
    folder = SHARED_DATA / "bioasq"
    few = {"types": ["factoid"], "most_words": 7}
    assert len(asked(folder / "[789]B*.json", **few)) == 375
    assert len(asked(folder / "10B*.json", **few)) == 154
    questions = asked(folder)
    kinds = [question.kind for question in questions]
    assert {kind: kinds.count(kind) for kind in kinds} == {"factoid": 578, "list": 308, "yes_no": 488}
    wrong = [
        question.answer
        for question in questions
        if not question.options
        and not grade(Rollout(question, (), (Turn((), (), "", answer=question.answer),), StopReason.ANSWERED)).correct
    ]
    assert not wrong, "every gold answer is right, G1P[8] too, whose [8] is no citation"
    passages = bioasq_passages(str(folder))
    assert len(passages) == len({passage.id for passage in passages}) == 15_136
    held = {passage.id for passage in BioASQBenchmark(str(folder)).passages()}
    assert all(set(question.gold_passage_ids) <= held for question in questions)
