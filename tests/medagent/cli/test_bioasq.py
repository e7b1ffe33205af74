"""BioASQ from the command line: golden files become an index, questions and a report with the challenge's measures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from medagent.cli.main import main

PUBMED = "http://www.ncbi.nlm.nih.gov/pubmed/"
ROWS = [
    (
        "f",
        "factoid",
        "Which organ does hemochromatosis harm?",
        [["liver", "the liver"]],
        "Hemochromatosis harms the liver.",
    ),
    ("l", "list", "Which drugs treat gout?", [["colchicine"], ["allopurinol"]], "Gout: colchicine and allopurinol."),
    ("y", "yesno", "Is zinc a metal?", "yes", "Zinc is a metal."),
    ("s", "summary", "What is sepsis?", None, "Sepsis is a response to infection."),
]


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    questions = [
        {
            "id": name,
            "type": kind,
            "body": body,
            "exact_answer": exact,
            "snippets": [{"text": text, "document": f"{PUBMED}{number}", "beginSection": "abstract"}],
        }
        for number, (name, kind, body, exact, text) in enumerate(ROWS, start=1)
    ]
    path = tmp_path / "7B1_golden.json"
    path.write_text(json.dumps({"questions": questions}), encoding="utf-8")
    return path


def test_files_become_an_index_and_a_report(
    golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    index, out = str(tmp_path / "index"), tmp_path / "out"
    assert main(["index", "build", f"bioasq:{tmp_path / '7B*.json'}", "--out", index]) == 0
    assert "4 passages" in capsys.readouterr().out
    assert main(["search", "metal zinc", "--index", index, "--json", "--top_k", "1"]) == 0
    hit = json.loads(capsys.readouterr().out)
    assert (hit["document"], hit["source"], hit["text"]) == ("pubmed:3", f"{PUBMED}3", "Zinc is a metal.")
    asked = ["evaluate", "--agent", "starter", "--index", index, "--benchmark", "bioasq", "--path", str(golden)]
    assert main([*asked, "--modes", "[single_shot, closed_book]", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    for row in ("factoid: mean reciprocal rank (n = 1)", "list: mean F1 (n = 1)", "yes/no: macro F1 (n = 1)"):
        assert row in said
    assert "gold passages, recall at k (n = 3)" in said
    report = json.loads((out / "report.json").read_text())
    assert report["modes"]["single_shot"]["search_recall"]["passages"]["n"] == 3
    assert report["modes"]["single_shot"]["search_recall"]["passages_gain"]["value"] == 0, "it is the question's query"
    assert report["modes"]["single_shot"]["search_recall"]["documents"]["value"] > 0
    assert report["modes"]["closed_book"]["search_recall"] is None
    assert set(report["by_type"]) == {"factoid", "list", "yes_no"}
    assert "Evidence shown by the searches" in (out / "report.html").read_text()
    assert "Open and yes/no answers" in (out / "report.md").read_text()
    rows = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert {row["question_id"]: row.get("form") for row in rows} == {
        "bioasq:f": "ranked",
        "bioasq:l": "list",
        "bioasq:y": None,
    }


def test_gold_passages_are_shown_in_their_mode(golden: Path, tmp_path: Path) -> None:
    asked = ["evaluate", "--agent", "starter", "--benchmark", "bioasq_list", "--path", str(golden), "--modes", "gold"]
    assert main([*asked, "--out", str(tmp_path / "out")]) == 0
    (row,) = [json.loads(line) for line in (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()]
    assert [passage["text"] for passage in row["turns"][0]["passages"]] == ["Gout: colchicine and allopurinol."]
    assert row["items"] == [["colchicine"], ["allopurinol"]]


def test_a_pattern_without_files_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", "build", f"bioasq:{tmp_path / '9B*.json'}", "--out", str(tmp_path / "index")]) == 1
    assert "no file has a name of this pattern. Check the path." in capsys.readouterr().err
