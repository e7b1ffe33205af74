"""What asking cost, over all runs into one folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from medagent.evaluation import predictions
from medagent.evaluation.predictions import Prediction, PredictionLog, usage_line
from medagent.policies.chat_endpoint import _usage
from medagent.types import Question, Rollout, StopReason, Turn, Usage

ANSWER = Turn((1,), (0.0,), "<answer>x</answer>", answer="x", usage=Usage(1, 100, 10))


def asked(name: str, *turns: Turn, reason: StopReason = StopReason.ANSWERED) -> Prediction:
    return Prediction("search", 0, Rollout(Question(name, "?", answer="x"), (), turns, reason), None)


def test_runs_into_one_folder_are_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 2.0, 5.0, 100.0, 101.5])
    monkeypatch.setattr(predictions, "perf_counter", lambda: next(clock))
    log = PredictionLog(tmp_path / "predictions.jsonl")
    log.append(asked("a", ANSWER))
    log.append(asked("b", ANSWER, reason=StopReason.ERROR))  # a search, then the endpoint failed
    again = PredictionLog(log.path)
    again.append(asked("b", ANSWER, ANSWER))
    total = {"questions": 3, "seconds": 6.5, "requests": 4, "prompt_tokens": 400, "completion_tokens": 40}
    assert again.used() == total
    assert [each.key[1] for each in again.read()] == ["a", "b"]
    assert again.read()[1].rollout.stop_reason is StopReason.ANSWERED
    again.compact()
    assert (len(again.lines()), again.used()) == (2, total)
    assert [each.key[1] for each in again.read()] == ["a", "b"]


def test_a_policy_in_process_has_no_requests(tmp_path: Path) -> None:
    log = PredictionLog(tmp_path / "predictions.jsonl")
    log.append(asked("a", replace(ANSWER, usage=None)))
    assert set(log.used()) == {"questions", "seconds"}


def test_a_line_for_people() -> None:
    used = {"questions": 4, "seconds": 10.0, "requests": 4, "prompt_tokens": 2_000_000, "completion_tokens": 500_000}
    assert usage_line(used, {"input": 0.5, "output": 2.0}, answers=4) == (
        "Asked 4 times in 10 s (2.50 s each), 4 requests, 2,000,000 tokens in and 500,000 out, cost 2.00."
    )
    assert usage_line({"questions": 4, "seconds": 10.0}, {}, answers=4) == "Asked 4 times in 10 s (2.50 s each)."
    assert "; 6 answers of the folder are not counted" in usage_line({"questions": 4, "seconds": 9.0}, {}, answers=10)
    assert usage_line({}, {}, answers=4) == ""


def test_an_endpoint_without_a_count_of_tokens() -> None:
    for found in (None, {}, {"prompt_tokens": None}, "many"):
        assert _usage(found) == Usage(1, 0, 0)
