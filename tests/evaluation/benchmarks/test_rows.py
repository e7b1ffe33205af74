"""Every way in which a file can be broken is named by file and line; what a format allows is put right and counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from medagent.errors import InputError
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
)
from tests.evaluation.benchmarks.support import BIOASQ, MEDMCQA, MEDQA, MEDXPERT, OPEN, PUBMEDQA, lines, without

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
def test_unreadable_rows_are_input_errors(
    tmp_path: Path, kind: type[FileBenchmark], name: str, text: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        kind(raw(tmp_path / name, text)).questions()


def test_wrong_questions_of_your_own_are_explained(tmp_path: Path) -> None:
    for row, message in (
        ({"options": 4, "answer": "A"}, "line 1: found options 4"),
        ({"options": ["x", None], "answer": "x"}, "wanted texts"),
        ({"options": ["x", "y"], "answer": "A", "answer_idx": "B"}, "they differ"),
        ({"options": ["x", "y"], "answer_idx": "x"}, "neither an option's letter"),
        ({"options": ["x", "y"], "answer": ["A", "z"]}, "neither"),
        ({"answer": "x", "form": "select_all"}, "select_all, which needs them"),
        ({"answer": "A", "form": "number", "options": ["1", "2"]}, "with options only select_all"),
        ({"answer": "five", "form": "number"}, "wanted one number"),
        ({"answer": "5 tablets", "form": "number"}, "Leave another unit out"),
        ({"answer": "5 to 10 mg", "form": "number"}, "wanted one number"),
        ({"answer": "5", "form": "number", "lower": 6}, "around one answer"),
        ({"answer": "5", "form": "number", "tolerance": "wide"}, "around one answer"),
        ({"answer": "5", "form": "number", "tolerance": 1, "upper": 9}, "around one answer"),
        ({"answer": ["5", "6"], "form": "number", "tolerance": 1}, "around one answer"),
        ({"answer": "5", "lower": 4}, "wanted the form 'number'"),
        ({"options": ["x", "x"], "answer": "x"}, "several of them"),
        ({"options": ["x"], "answer": "z"}, "neither"),
        ({"options": list("abcdefghijk"), "answer": "a"}, "at most 10"),
        ({"options": {"B": "x", "C": "y"}, "answer": "B"}, "without a gap"),
        ({}, "answer"),
    ):
        with pytest.raises(InputError, match=message):
            JsonlBenchmark(lines(tmp_path / "o.jsonl", {"question": "q", **row})).questions()
    for text, message in (
        ('{"question": "q", "question": "r", "answer": "x"}', "line 1: .* 'question' occurs twice"),
        ("nonsense", "line 1"),
        ("", "no question"),
    ):
        with pytest.raises(InputError, match=message):
            JsonlBenchmark(raw(tmp_path / "o.jsonl", text)).questions()
    with pytest.raises(InputError, match="cannot be read"):
        JsonlBenchmark(str(tmp_path / "missing.jsonl")).questions()


def test_an_answer_may_be_a_letter_or_a_text(tmp_path: Path) -> None:
    rows = [
        {"question": "q1", "options": {"B": "y", "A": "x"}, "answer": "B"},
        {"question": "q2", "options": ["x", "y"], "answer": "y", "id": "two", "kind": "k"},
        {"question": "q3", "options": ["x", 4], "answer": 4},
        {"question": "q4", "answer": "free text"},
    ]
    questions = JsonlBenchmark(lines(tmp_path / "q.jsonl", *rows)).questions()
    assert [q.answer for q in questions] == ["B", "B", "B", "free text"]
    assert (questions[0].options, questions[1].id) == (("x", "y"), "two")
    assert [q.kind for q in questions] == ["all", "k", "all", "all"]


def test_lines_are_found_in_a_large_file(tmp_path: Path) -> None:
    rows = [{**BIOASQ, "id": f"b{i}"} for i in range(2_000)] + [{**BIOASQ, "id": "bad", "exact_answer": "perhaps"}]
    text = json.dumps({"questions": rows}, indent=1)
    line = text[: text.index('"bad"')].count("\n") + 1
    with pytest.raises(InputError, match=rf"line {line}, entry 2001 \(bad\)"):
        BioASQBenchmark(raw(tmp_path / "b.json", text)).questions()


def test_allowed_irregularities_are_repaired_and_counted(tmp_path: Path) -> None:
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


def test_broken_items_are_named_and_counted(tmp_path: Path) -> None:
    twice = {**MEDMCQA, "opa": "Angiogram", "opb": "x", "opc": "angiogram ", "opd": "y", "cop": 1}
    wrong = {**MEDMCQA, "id": "w", "opa": "a", "opb": "x", "opc": "x", "opd": "y", "cop": 1}
    again = {**wrong, "id": "again", "opa": "x", "opb": "a", "cop": 2}
    benchmark = MedMCQABenchmark(lines(tmp_path / "m.json", twice, wrong, again))
    assert len(benchmark.questions()) == 3
    assert sorted(benchmark.notes.items()) == [
        ("questions with a wrong option twice, kept", 2),
        ("questions with the right option twice, where one of its letters counts as wrong", 1),
        ("questions with the words and options of an earlier one, kept", 1),
        ("questions, none with a cop of 0, so cop is counted from 1 (from 0: --cop_from zero)", 3),
    ]


def test_a_long_cell_is_read(tmp_path: Path) -> None:
    path = raw(tmp_path / "anatomy_test.csv", f'"{"x" * 140_000}",a,b,c,d,A\n')
    (question,) = MMLUBenchmark(path).questions()
    assert len(question.text) == 140_000
