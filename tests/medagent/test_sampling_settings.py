"""Temperature and seed from where a person gives them to the dialogue that is opened: commands and services."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from medagent.agent import Agent
from medagent.cli.main import main
from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.protocol import TagProtocol
from medagent.retrieval.controls import NoRetriever
from medagent.training.agent_data import AgentSettings
from medagent.training.sft.dialogues import RejectionSampled
from tests.evaluation.support import ROOMY
from tests.medagent.serving.support import call
from tests.recording import RecordingPolicy


def watched() -> RecordingPolicy:
    return RecordingPolicy(lambda read, turn: "<answer>(A)</answer>")


def opened(policy: RecordingPolicy) -> set[float]:
    return {dialogue.temperature for dialogue in policy.dialogues}


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> RecordingPolicy:
    """Stands in for every agent that is opened by name."""
    made = watched()

    def open_agent(*_: Any, **__: Any) -> Agent:
        return Agent(made, NoRetriever(), TagProtocol(), ROOMY)

    for place in ("medagent.cli.ask", "medagent.evaluation.evaluator", "medagent.training.sft.dialogues"):
        monkeypatch.setattr(f"{place}.open_agent", open_agent)
    return made


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("as_json", ["true", "false"])
def test_a_question_is_asked_at_the_temperature_given(
    policy: RecordingPolicy, temperature: float, as_json: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["--temperature", str(temperature), "--json", as_json]
    assert main(["ask", "What treats gout?", *given]) == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("What treats gout?\n\n"))
    assert main(["chat", *given]) == 0
    assert len(policy.dialogues) == 2
    assert opened(policy) == {temperature}


def test_an_evaluation_samples_at_the_temperature_and_seeds_given(policy: RecordingPolicy, tmp_path: Path) -> None:
    drawn = []
    for seed in ("0", "1"):
        given = ["--modes", '["closed_book"]', "--limit", "3", "--seed", seed, "--samples", "2", "--temperature", "0.8"]
        assert main(["evaluate", "--agent", "starter", "--out", str(tmp_path / seed), *given]) == 0
        drawn.append({dialogue.seed for dialogue in policy.dialogues})
        assert (len(policy.dialogues), opened(policy)) == (6, {0.8})
        policy.dialogues.clear()
    assert [len(seeds) for seeds in drawn] == [6, 6]
    assert not drawn[0] & drawn[1]


def test_demonstrations_are_sampled_as_they_say(policy: RecordingPolicy, tmp_path: Path) -> None:
    drawn = []
    for seed in (0, 1):
        source = RejectionSampled(
            StarterBenchmark("train", limit_per_kind=2),
            "starter",
            samples=3,
            temperature=0.8,
            seed=seed,
        )
        questions = StarterBenchmark("train", limit_per_kind=2).questions()
        source.make(AgentSettings(limits=ROOMY), NoRetriever(), tmp_path / str(seed), policy.tokenizer)
        drawn.append({dialogue.seed for dialogue in policy.dialogues})
        assert (len(policy.dialogues), opened(policy)) == (3 * len(questions), {0.8})
        assert {dialogue.text.count("<search><answer>") for dialogue in policy.dialogues} == {0}
        policy.dialogues.clear()
    assert [len(seeds) for seeds in drawn] == [3 * len(questions)] * 2
    assert not drawn[0] & drawn[1]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_service_samples_at_the_temperature_and_seed_asked_for(temperature: float) -> None:
    policy = watched()
    for seed in (3, 4):
        body = {"question": "What treats gout?", "temperature": temperature, "seed": seed}
        assert call(policy, "POST", "/v1/answers", json=body).status_code == 200
        chat = {
            "model": "medagent",
            "messages": [{"role": "user", "content": "What treats gout?"}],
            "temperature": temperature,
            "seed": seed,
        }
        assert call(policy, "POST", "/v1/chat/completions", json=chat).status_code == 200
    assert [dialogue.seed for dialogue in policy.dialogues] == [3, 3, 4, 4]
    assert opened(policy) == {temperature}
