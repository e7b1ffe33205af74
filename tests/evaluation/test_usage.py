"""What asking cost, over all runs into one folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from medagent.agent import Agent
from medagent.evaluation.usage import counted, read_usage, usage_line
from medagent.policies.chat_endpoint import RemotePolicy, byte_tokenizer
from medagent.policies.scripted import ScriptedPolicy
from medagent.retrieval.controls import NoRetriever


def endpoint() -> Agent:
    return Agent(RemotePolicy("http://127.0.0.1:1/v1", "m"), NoRetriever())


def ask(agent: Agent, folder: Path, number: int, *, goes_on: bool) -> None:
    policy = agent.policy
    assert isinstance(policy, RemotePolicy)
    with counted(agent, folder) as now:
        now.goes_on, now.asked = goes_on, number
        for _ in range(number):
            policy.usage.count({"prompt_tokens": 100, "completion_tokens": 10})


def test_runs_into_one_folder_are_added_up(tmp_path: Path) -> None:
    ask(endpoint(), tmp_path, 3, goes_on=False)
    ask(endpoint(), tmp_path, 2, goes_on=True)
    used = read_usage(tmp_path)
    seconds = used.pop("seconds")
    assert used == {"questions": 5, "requests": 5, "prompt_tokens": 500, "completion_tokens": 50}
    assert seconds > 0
    ask(endpoint(), tmp_path, 0, goes_on=True)  # all was there: nothing was asked
    assert read_usage(tmp_path)["questions"] == 5
    ask(endpoint(), tmp_path, 1, goes_on=False)
    assert read_usage(tmp_path)["questions"] == 1


def test_what_was_asked_before_an_interrupt_counts(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), counted(endpoint(), tmp_path) as now:  # noqa: PT012
        now.asked = 4
        raise KeyboardInterrupt
    assert json.loads((tmp_path / "usage.json").read_text())["questions"] == 4


def test_a_line_for_people() -> None:
    used = {"questions": 4, "seconds": 10.0, "requests": 4, "prompt_tokens": 2_000_000, "completion_tokens": 500_000}
    assert usage_line(used, {"input": 0.5, "output": 2.0}, answers=4) == (
        "Asked 4 times in 10 s (2.50 s each), 4 requests, 2,000,000 tokens in and 500,000 out, cost 2.00."
    )
    assert usage_line({"questions": 4, "seconds": 10.0}, {}, answers=4) == "Asked 4 times in 10 s (2.50 s each)."
    assert "; 6 answers of the folder are not counted" in usage_line({"questions": 4, "seconds": 9.0}, {}, answers=10)
    assert usage_line({}, {}, answers=4) == ""


def test_a_policy_in_process_has_no_requests(tmp_path: Path) -> None:
    agent = Agent(ScriptedPolicy(byte_tokenizer(), lambda read, turn: ""), NoRetriever())
    with counted(agent, tmp_path) as now:
        now.asked = 1
    assert set(read_usage(tmp_path)) == {"questions", "seconds"}


def test_an_endpoint_without_a_count_of_tokens() -> None:
    policy = RemotePolicy("http://127.0.0.1:1/v1", "m")
    for found in (None, {}, {"prompt_tokens": None}, "many"):
        policy.usage.count(found)
    assert (policy.usage.requests, policy.usage.prompt_tokens) == (4, 0)
