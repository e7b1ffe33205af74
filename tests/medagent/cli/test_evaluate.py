"""`medagent evaluate` and `compare`: what they print and write, and what they refuse before any work."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from medagent.cli.evaluate import comparison_text
from medagent.cli.main import main
from medagent.errors import ConfigError, InputError
from medagent.evaluation.benchmarks.source import KNOWN, BenchmarkSource
from medagent.evaluation.comparison import compare
from medagent.evaluation.evaluator import evaluate
from medagent.evaluation.fingerprints import agent_fingerprint, index_fingerprint
from medagent.evaluation.modes import Mode
from medagent.evaluation.names import ModeName
from medagent.evaluation.run import Plan, run_plan
from medagent.retrieval.controls import NoRetriever
from medagent.retrieval.search import HybridRetriever
from tests.evaluation.support import QUESTIONS, lookup, scripted


def test_the_command_line_names_every_benchmark_and_mode() -> None:
    for name in KNOWN:
        BenchmarkSource(name, path=None if name == "starter" else "somewhere").open()
    assert set(get_args(ModeName)) == {mode.value for mode in Mode}


def test_evaluate_compare_and_resume_from_the_command_line(
    index_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    few = ["--limit", "6", "--split", "validation"]
    arguments = ["evaluate", "--agent", "starter", "--index", str(index_folder), *few]
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert main([*arguments, "--out", a, "--modes", '["search", "unrelated"]']) == 0
    assert main([*arguments, "--out", b, "--modes", '["forced_search"]']) == 0
    report = json.loads((tmp_path / "a" / "report.json").read_text())
    assert set(report["modes"]) == {"search", "unrelated"}
    assert report["n"] == 6
    assert report["baselines"]["random"] == pytest.approx(0.25, abs=0.1)
    page = (tmp_path / "a" / "report.html").read_text()
    told = json.loads(re.findall(r'id="data">(.*?)</script>', page)[0])[0]
    assert list(told["parts"]) == ["search", "unrelated"]
    assert told["overview"]["report"] == report
    assert "Result" in [table["title"] for table in report["tables"]]
    assert "| accuracy, strict |" in (tmp_path / "a" / "report.md").read_text()
    capsys.readouterr()
    assert main(["compare", a, b]) == 1
    assert "none in common. Name one of each" in capsys.readouterr().err
    modes = ["--mode", "search", "--mode_b", "forced_search"]
    assert main(["compare", a, b, *modes]) == 0
    out = capsys.readouterr().out
    assert "McNemar" in out
    assert f"B: {b}, forced_search" in out
    assert main(["compare", a, a, "--mode", "search", "--mode_b", "unrelated"]) == 0
    capsys.readouterr()
    assert main(["compare", a, b, *modes, "--json", "true"]) == 0
    assert json.loads(capsys.readouterr().out)["n"] == 6
    before = (tmp_path / "a" / "predictions.jsonl").read_text()
    assert main([*arguments, "--out", a, "--modes", '["search", "unrelated"]']) == 0
    assert (tmp_path / "a" / "predictions.jsonl").read_text() == before
    assert main([*arguments, "--out", a, "--seed", "1"]) == 1
    assert "Give another --out" in capsys.readouterr().err
    assert main([*arguments, "--out", a, "--seed", "1", "--overwrite", "true"]) == 0


def test_comparison_refuses_other_questions(tmp_path: Path) -> None:
    for name, questions in (("a", QUESTIONS[:5]), ("b", QUESTIONS[3:8]), ("c", QUESTIONS[10:])):
        run_plan(scripted(lookup(questions, set())), questions, Plan(), tmp_path / name, identity={})
    result = compare(tmp_path / "a", tmp_path / "b", mode=None, seed=0)
    assert (result.n, result.difference, result.p_mcnemar) == (2, 0.0, 1.0)
    assert "cannot be told apart" in comparison_text(result)
    with pytest.raises(InputError, match="no question in common"):
        compare(tmp_path / "a", tmp_path / "c", mode=None, seed=0)
    with pytest.raises(InputError, match=r"no answers of mode 'gold', only of search"):
        compare(tmp_path / "a", tmp_path / "b", mode="gold", seed=0)
    with pytest.raises(InputError, match=r"no predictions\.jsonl"):
        compare(tmp_path / "nothing", tmp_path / "b", mode=None, seed=0)


def test_comparison_over_seeds(tmp_path: Path, capsys) -> None:
    """The first two questions are gained with both seeds, the third with one."""
    for name, right in (("a0", 0), ("a1", 0), ("b0", 2), ("b1", 3)):
        policy = scripted(lookup(QUESTIONS[:6], {question.id for question in QUESTIONS[right:6]}))
        run_plan(policy, QUESTIONS[:6], Plan(), tmp_path / name, identity={})
    folders = [f"[{tmp_path / x}0, {tmp_path / x}1]" for x in "ab"]
    assert main(["compare", *folders, "--json", "true"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["n"], found["only_a"], found["only_b"], found["p"]) == (6, 0, 5, 0.25)
    assert [own["only_b"] for own in found["seeds"]] == [2, 3]
    assert main(["compare", *folders]) == 0
    assert "0.0%, B 41.7%: B - A = +41.7%" in (said := capsys.readouterr().out)
    assert "p = 0.2500: at 5% they cannot be told apart" in said
    assert main(["compare", folders[0], str(tmp_path / "b0")]) == 1
    assert "found 2 folders of A and 1 of B, wanted one of each per seed" in capsys.readouterr().err
    assert f"{tmp_path}/a1, search; {tmp_path}/b1, search" in said
    assert main(["compare", "[]", "[]"]) == 1
    assert "found 0 folders of A and 0 of B" in capsys.readouterr().err
    assert main(["compare", f"[{tmp_path}/a0, {tmp_path}/a0]", folders[1]]) == 1
    assert f"found {tmp_path}/a0 for several seeds" in capsys.readouterr().err


def test_seeds_are_compared_in_one_mode_and_on_the_same_questions(tmp_path: Path, capsys) -> None:
    others = [replace(question, text=f"{question.text} Again?") for question in QUESTIONS[:6]]
    for name, questions, mode in (
        ("a0", QUESTIONS[:6], Mode.SEARCH),
        ("b0", QUESTIONS[:5], Mode.SEARCH),
        ("a1", QUESTIONS[:6], Mode.CLOSED_BOOK),
        ("b1", QUESTIONS[:6], Mode.CLOSED_BOOK),
        ("a2", others, Mode.SEARCH),
        ("b2", others, Mode.SEARCH),
        ("a3", QUESTIONS[:6], Mode.SEARCH),
        ("b3", QUESTIONS[:6], Mode.SEARCH),
    ):
        run_plan(scripted(lookup(questions, set())), questions, Plan(modes=(mode,)), tmp_path / name, identity={})

    def compared(*seeds: int) -> int:
        capsys.readouterr()
        folders = [f"[{', '.join(str(tmp_path / f'{kind}{seed}') for seed in seeds)}]" for kind in "ab"]
        return main(["compare", *folders, "--json", "true"])

    assert compared(0, 1) == 1
    assert "none in common" in capsys.readouterr().err
    assert compared(0, 2) == 1
    assert "has another text or answer in each" in capsys.readouterr().err
    assert compared(0, 3) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["n"] == 5
    assert "1 questions that not all of them asked are left out" in shown.err


def test_evaluate_reports_wrong_settings_before_any_work(tmp_path: Path) -> None:
    endpoint = "http://localhost:1/v1"
    with pytest.raises(InputError, match="--path"):
        evaluate("starter", "medqa")
    with pytest.raises(InputError, match="found split 'dev'"):
        evaluate("starter", BenchmarkSource("starter", split="dev"))
    with pytest.raises(InputError, match="--model"):
        evaluate(endpoint)
    with pytest.raises(InputError, match="no index to search"):
        evaluate(endpoint, model="m")
    with pytest.raises(InputError, match="limits: found"):
        evaluate(endpoint, model="m", modes="closed_book", limits={"turns": 3})
    with pytest.raises(InputError, match="price: found"):
        evaluate(endpoint, price={"in": 1.0})
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="no evaluation"):
        evaluate(endpoint, model="m", modes="closed_book", overwrite=True, out=tmp_path / "x")
    assert (tmp_path / "x" / "thesis.txt").exists()


def test_fingerprints_tell_agents_and_indexes_apart(index_folder: Path, train_index: Path, tmp_path: Path) -> None:
    shutil.copytree(index_folder, tmp_path / "copy")
    prints = [
        index_fingerprint(HybridRetriever(str(folder))) for folder in (index_folder, tmp_path / "copy", train_index)
    ]
    assert prints[0] == prints[1] != prints[2]
    assert index_fingerprint(NoRetriever()) == agent_fingerprint("http://localhost/v1") == ""
    before = agent_fingerprint(f"hf:{tmp_path / 'copy'}")
    (tmp_path / "copy" / "more").write_text("x")
    assert agent_fingerprint(f"hf:{tmp_path / 'copy'}") != before
    assert len(agent_fingerprint("starter")) == 64


def test_sources_that_would_ask_other_questions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="takes neither --path nor --hub"):
        BenchmarkSource(path="mine.jsonl").questions()
    with pytest.raises(InputError, match="from 0"):
        BenchmarkSource(start=-5).questions()
    (tmp_path / "a.jsonl").write_text('{"question": "q", "opions": ["x", "y"], "answer": "A"}\n')
    with pytest.raises(InputError, match="is a folder"):
        BenchmarkSource("jsonl", path=str(tmp_path)).questions()
    with pytest.raises(InputError, match=r"line 1: found the field 'opions'"):
        BenchmarkSource("jsonl", path=str(tmp_path / "a.jsonl")).questions()
