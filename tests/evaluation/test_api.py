"""`medagent.evaluation` from Python: lazy names, typed results, open agents and files of questions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import medagent
from medagent.errors import ConfigError, InputError
from medagent.evaluation import BenchmarkSource, compare, evaluate
from medagent.evaluation.benchmarks.source import source_named
from tests.evaluation.support import QUESTIONS, lookup, scripted


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, medagent.evaluation as e; assert 'evaluate' in dir(e); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_open_agent_is_measured_on_a_file_of_questions(tmp_path: Path) -> None:
    asked = QUESTIONS[:4]
    path = tmp_path / "mine.jsonl"
    rows = [{"id": q.id, "question": q.text, "options": list(q.options), "answer": q.answer} for q in asked]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    better = evaluate(scripted(lookup(asked, set())), path)
    worse = evaluate(scripted(lookup(asked, {asked[0].id})), str(path), out=tmp_path / "worse")
    assert (better.accuracy.accuracy, worse.accuracy.accuracy, better.accuracy.n) == (1.0, 0.75, 4)
    assert compare(better, tmp_path / "worse").only_a == 1
    assert json.loads((tmp_path / "worse" / "report.json").read_text())["accuracy"] == 0.75
    with pytest.raises(ConfigError, match="overwrite"):  # another open agent may differ
        evaluate(scripted(lookup(asked, set())), path, out=tmp_path / "worse")


def test_a_loaded_agent_is_measured_and_still_answers(index_folder: Path) -> None:
    with medagent.load_agent("starter", index=index_folder) as agent:
        found = evaluate(agent, BenchmarkSource("starter", limit=2), modes=["search", "closed_book"])
        assert [report.summary.overall.n for report in found.reports.values()] == [2, 2]
        assert found.settings["agent"] == "loaded agent"
        assert agent.answer("What treats trachoma?").searches is not None


def test_questions_in_place_of_a_benchmark_are_refused() -> None:
    with pytest.raises(InputError, match=r"benchmark: .* \.jsonl"):
        source_named([])  # type: ignore[arg-type]


def test_a_misspelt_mode_and_a_bare_figure_are_refused() -> None:
    with pytest.raises(InputError, match=r"mode: found 'closedbook', wanted one of search, .*closed_book"):
        evaluate(scripted(lookup(QUESTIONS[:1], set())), BenchmarkSource("starter", limit=1), modes=["closedbook"])
    with pytest.raises(InputError, match="found a float, wanted an Evaluation"):
        compare(0.5, 0.7)  # type: ignore[arg-type]
