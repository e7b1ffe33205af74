"""`medagent acceptance`: a team's own questions, asked again after an update."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from medagent.cli.main import main
from medagent.evaluation.acceptance import Acceptance, AcceptanceResult, read_acceptance
from medagent.retrieval.index import build_index
from medagent.retrieval.passages import Passage

DRUG = Passage.make("gout", "Gout is treated with allopurinol.", "gout.md", id="gout:drug")
CAUSE = Passage.make("scurvy", "Scurvy is caused by too little vitamin C.", "scurvy.md", id="scurvy:cause")
ASKED = (
    {"id": "drug", "question": "Which drug treats gout?", "sources": ["gout.md"]},
    {"id": "cause", "question": "What causes scurvy?", "sources": ["scurvy:cause"], "sentences": ["by too little vit"]},
    {"id": "none", "question": "What causes velmar disease?"},
    {
        "id": "then",
        "earlier": ["Which drug treats gout?"],
        "question": "And scurvy, what causes it?",
        "sources": ["scurvy"],
    },
)


def accepted(tmp_path: Path, passages: list[Passage], out: str, *more: str) -> int:
    build_index(passages, tmp_path / out / "index")
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps(row) + "\n" for row in ASKED), encoding="utf-8")
    arguments = [str(questions), "--agent", "none", "--index", str(tmp_path / out / "index")]
    return main(["acceptance", *arguments, "--out", str(tmp_path / f"{out}.jsonl"), *more])


def test_an_update_that_loses_a_source_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert accepted(tmp_path, [DRUG, CAUSE], "before", "--min_found", "0.9") == 0
    assert "an expected sentence is shown         100.0%" in capsys.readouterr().out
    before = str(tmp_path / "before.jsonl")
    assert accepted(tmp_path, [CAUSE], "after", "--min_found", "0.9", "--before", before) == 1
    told = capsys.readouterr()
    assert "Which drug treats gout?  drug newly wrong" in told.out
    assert "not accepted: an expected source is shown for 66.7%, wanted 90.0%" in told.err


def test_an_interrupted_run_asks_only_the_rest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    accepted(tmp_path, [DRUG, CAUSE], "first")
    out = tmp_path / "first.jsonl"
    lines = out.read_text().splitlines(keepends=True)
    out.write_text("".join([lines[0].replace("allopurinol", "kept"), *lines[1:3], lines[3][:20]]))
    assert accepted(tmp_path, [DRUG, CAUSE], "first") == 0
    again = out.read_text().splitlines(keepends=True)
    assert ("kept" in again[0], again[1:]) == (True, lines[1:])
    assert accepted(tmp_path, [DRUG, CAUSE], "first") == 1
    assert "has a result for each question already" in capsys.readouterr().err


def test_results_of_another_index_are_not_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    accepted(tmp_path, [DRUG, CAUSE], "first")
    (tmp_path / "second.jsonl").write_text((tmp_path / "first.jsonl").read_text().splitlines(keepends=True)[0])
    assert accepted(tmp_path, [CAUSE], "second") == 1
    assert "has results of another agent or index already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"question": ""}', "line 1: found question: ''"),
        ('{"question": "a", "sources": "b"}', "line 1: found sources: 'b'"),
        ('{"question": "a", "source": ["b"]}', "line 1: found source: ['b']"),
        ("[]", "wanted a JSON object"),
        ("{", "wanted a JSON object"),
        ('{"question": "a", "id": "x"}\n{"question": "b", "id": "x"}', "line 2: found the id 'x' a second time"),
        ("", "found no question"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(
    tmp_path: Path, line: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(line)
    assert main(["acceptance", str(path), "--agent", "none", "--out", str(tmp_path / "out.jsonl")]) == 1
    assert told in capsys.readouterr().err


def _result(id: str, *, kind: str = "stated", found: bool) -> AcceptanceResult:
    return AcceptanceResult(id, id, True, kind, f"{kind} {found}", (), found, found)


def test_what_is_stated_on_another_source_stops_the_update() -> None:
    results = [_result("a", found=True), _result("b", found=False)]
    found = Acceptance.of(results, {}, min_found=0.0, max_wrong_stated=0.4)
    assert (found.wrong_stated.accuracy, len(found.stops)) == (0.5, 1)


def test_many_newly_wrong_answers_stop_the_update_and_few_do_not() -> None:
    def compared(worse: int) -> Acceptance:
        before = {str(n): _result(str(n), kind="partly", found=True) for n in range(20)}
        now = [_result(str(n), kind="partly", found=n >= worse) for n in range(20)]
        return Acceptance.of(now, before, min_found=0.0, max_wrong_stated=0.0)

    assert compared(5).stops == ()  # McNemar's exact p is .0625
    assert compared(6).stops == ("6 questions are newly wrong and 0 newly right",)


@pytest.mark.parametrize("name", ["starter", "starter_held_out", "medquad", "medquad_held_out"])
def test_the_natural_questions_can_be_asked(name: str) -> None:
    questions = read_acceptance(Path("benchmarks/natural_questions") / f"{name}.jsonl")
    assert len(questions) >= 60
    assert all(bool(asked.sources) == bool(asked.sentences) for asked in questions)
