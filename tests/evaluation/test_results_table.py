"""`medagent table`: agents by benchmarks from the folders of evaluations, and what it refuses to put side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import pytest

from medagent.cli.main import main
from medagent.errors import InputError
from medagent.evaluation.evaluator import Evaluation
from medagent.evaluation.metrics import report_mode
from medagent.evaluation.modes import Mode
from medagent.evaluation.results_table import results_table
from medagent.evaluation.run import Plan, run_plan
from medagent.types import Limits, Question
from tests.evaluation.support import QUESTIONS, lookup, scripted

SETTINGS = {
    "model": "",
    "agent_sha256": "0",
    "limits": {"max_turns": 4},
    "path": None,
    "hub": None,
    "subset": None,
    "limit": None,
    "temperature": 0.0,
    "samples": 1,
    "seed": 0,
}


def evaluated(
    folder: Path, agent: str, benchmark: str, right: int, *, of: Sequence[Question] = QUESTIONS[:10], **changed: Any
) -> str:
    """The folder of an evaluation in which the first `right` questions were answered rightly."""
    modes = changed.pop("modes", ("search",))
    policy = scripted(lookup(of, {question.id for question in of[right:]}))
    plan = Plan(modes=tuple(map(Mode, modes)))
    predictions = run_plan(policy, of, plan, folder, identity={})
    reports = {mode: report_mode([p for p in predictions if p.mode == mode]) for mode in plan.modes}
    settings = SETTINGS | {"agent": agent, "benchmark": benchmark, "modes": list(modes)} | changed
    Evaluation(settings, of, predictions, reports, {}, {}, Limits()).write(folder)
    return str(folder)


def test_rows_are_agents_and_columns_benchmarks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mmlu = [replace(q, kind="anatomy" if number < 4 else "virology") for number, q in enumerate(QUESTIONS[:10])]
    runs = [
        evaluated(tmp_path / "a", "st_ppo", "medqa", 8),
        evaluated(tmp_path / "b", "st_ppo", "mmlu", 7, of=mmlu),
        evaluated(tmp_path / "c", "ppo", "medqa", 5),
    ]
    found = results_table(runs)
    assert found.benchmarks == ("medqa", "mmlu_anatomy", "mmlu_virology")
    assert [cell.accuracy.accuracy for cell in found.rows["st_ppo"].values()] == [0.8, 1.0, 0.5]
    macro = found.macro_average("st_ppo")
    assert macro
    assert macro.value == pytest.approx((0.8 + 1 + 0.5) / 3)
    spread = sqrt(0.8 * 0.2 / 10 + 0.5 * 0.5 / 6) / 3  # of a mean of three shares, of which one never varies
    assert macro.ci_low == pytest.approx(macro.value - 1.96 * spread, abs=0.02)
    assert macro.ci_high == pytest.approx(macro.value + 1.96 * spread, abs=0.02)
    assert found.macro_average("ppo") is None  # it lacks MMLU
    assert main(["table", *runs]) == 0
    head, rule, first, second = capsys.readouterr().out.splitlines()
    assert len({len(line) for line in (head, rule, first, second)}) == 1
    assert [cell.strip() for cell in head.split("|")[1:4]] == ["agent", "medqa (n = 10)", "mmlu_anatomy (n = 4)"]
    assert [cell.strip() for cell in first.split("|")[2:4]] == ["80.0% [49.0, 94.3]", "100.0% [51.0, 100.0]"]
    assert [cell.strip() for cell in second.split("|")[3:-1]] == ["-", "-", "-", "10", "0", "0"]


def test_json_holds_a_row_for_each_agent_and_benchmark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [
        evaluated(tmp_path / "a", "runs/mine/agent", "medqa", 8),
        evaluated(tmp_path / "b", "runs/mine/agent", "pubmedqa", 1, of=QUESTIONS[:1]),
    ]
    assert main(["table", *runs, "--json"]) == 0
    first, second, average = json.loads(capsys.readouterr().out)
    told = {"agent": "runs/mine/agent", "mode": "search"}
    row = {**told, "benchmark": "medqa", "accuracy": 0.8, "n": 10, "unparsed": 0, "run": runs[0]}
    assert first.items() >= row.items()
    assert second.items() >= {**told, "benchmark": "pubmedqa", "accuracy": 1.0, "n": 1, "errors": 0}.items()
    assert average.items() >= {**told, "benchmark": "macro average", "accuracy": 0.9}.items()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"limits": {"max_turns": 6}}, r"limits .*4.* and .*6.*same along a column"),
        ({"ask": "plain"}, "prompting tags and plain"),
        ({"temperature": 0.7}, r"temperature 0\.0 and 0\.7"),
        ({"samples": 4}, "samples 1 and 4"),
        ({"of": QUESTIONS[:9]}, r"found 1 questions .* such as q9"),
        ({"of": [replace(QUESTIONS[0], text="What treats disease 0 today?"), *QUESTIONS[1:10]]}, "such as q0"),
        ({"modes": ("closed_book",)}, "a holds the modes search, .*b holds the modes closed_book: none in common"),
    ],
)
def test_a_column_of_unequal_runs_is_refused(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    runs = [evaluated(tmp_path / "a", "ppo", "medqa", 5), evaluated(tmp_path / "b", "grpo", "medqa", 5, **changed)]
    with pytest.raises(InputError, match=said):
        results_table(runs)


def test_a_row_of_unequal_runs_is_refused(tmp_path: Path) -> None:
    first = evaluated(tmp_path / "a", "ppo", "medqa", 5)
    for number, (changed, said) in enumerate(
        [({"temperature": 1.0}, "same along a row"), ({"agent_sha256": "1"}, "agent_sha256 0 and 1")]
    ):
        other = evaluated(tmp_path / str(number), "ppo", "pubmedqa", 5, **changed)
        with pytest.raises(InputError, match=said):
            results_table([first, other])
    with pytest.raises(InputError, match="both measure one agent on one benchmark"):
        results_table([first, evaluated(tmp_path / "again", "ppo", "medqa", 6)])
    assert len(results_table([first, evaluated(tmp_path / "loaded", "loaded agent", "medqa", 6)]).rows) == 2


def test_a_mode_is_chosen_and_must_be_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [
        evaluated(tmp_path / "a", "ppo", "medqa", 5, modes=("search", "closed_book")),
        evaluated(tmp_path / "b", "grpo", "medqa", 6, modes=("closed_book",)),
    ]
    assert results_table(runs).mode == "closed_book"
    assert main(["table", "--mode", "search", *runs]) == 1
    assert "b: holds no answers of mode 'search', only of closed_book" in capsys.readouterr().err


def test_an_evaluation_that_has_not_ended_is_refused(tmp_path: Path) -> None:
    run = evaluated(tmp_path / "a", "ppo", "medqa", 5)
    (tmp_path / "a" / "report.json").unlink()
    with pytest.raises(InputError, match=r"report\.json: cannot be read .*goes on"):
        results_table([run])
    with pytest.raises(InputError, match=r"holds no predictions\.jsonl"):
        results_table([tmp_path / "nothing"])


def test_own_files_are_columns_by_their_name(tmp_path: Path) -> None:
    runs = [
        evaluated(tmp_path / "a", "ppo", "jsonl", 5, path="data/gout.jsonl"),
        evaluated(tmp_path / "b", "ppo", "open", 5, hub="RUC-NLPIR/FlashRAG_datasets", subset="hotpotqa"),
    ]
    assert results_table(runs).benchmarks == ("gout", "hotpotqa")


def test_the_report_has_the_macro_average_over_subjects(tmp_path: Path) -> None:
    questions = [replace(q, kind="a" if number < 2 else "b") for number, q in enumerate(QUESTIONS[:10])]
    evaluated(tmp_path, "ppo", "medqa", 6, of=questions)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["accuracy"] == 0.6
    assert report["macro_average"]["value"] == 0.75  # 2 of 2, and 4 of 8
    assert report["macro_average"]["n"] == 10
    assert report["macro_average"]["ci_low"] < 0.6 < 0.9 <= report["macro_average"]["ci_high"]
    assert "| macro average" in (tmp_path / "report.md").read_text()


def test_several_runs_are_compared_with_the_first_by_holms_method(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exact p-values of 8, 7 and 1 questions gained are 2/2^8, 2/2^7 and 1; Holm's are 3, 2 and 1 times these."""
    runs = [evaluated(tmp_path / str(gained), "ppo", "medqa", gained) for gained in (0, 7, 8, 1)]
    assert main(["compare", *runs, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["only_b"] for row in rows] == [7, 8, 1]
    assert [row["p_mcnemar"] for row in rows] == [2 / 2**7, 2 / 2**8, 1.0]
    assert [row["p_holm"] for row in rows] == [4 / 2**7, 6 / 2**8, 1.0]
    assert main(["compare", "--seed", "1", *runs]) == 0
    said = capsys.readouterr().out
    assert f"A: {runs[0]}, search\nB: {runs[1]}, search\n" in said
    assert "p = 0.0156, by Holm's method over 3 comparisons = 0.0312: at 5% they differ" in said
    assert main(["compare", runs[0]]) == 1
    assert "found 1 evaluation, wanted two or more" in capsys.readouterr().err
    assert main(["compare", *runs[:2], f"[{runs[2]}, {runs[3]}]"]) == 1
    assert "found 3 arguments with lists of seeds" in capsys.readouterr().err
