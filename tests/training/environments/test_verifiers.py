"""An environment of verifiers plays in a process of its own, which survives what environments do."""

from __future__ import annotations

import copy
import time

import psutil
import pytest

from medagent.agent import Job
from medagent.environment import AgentSettings
from medagent.errors import ConfigError
from medagent.policies.scripted import ScriptedPolicy
from medagent.tool_protocol import ToolProtocol
from medagent.training.environments.verifiers import Verifiers
from medagent.types import Limits, StopReason
from tests.training.environments.stub_verifiers import write_stub
from tests.training.environments.support import CHAT

SETTINGS = AgentSettings(ToolProtocol(), Limits(max_turn_tokens=32))
FINE = "Which drug for gout?"


@pytest.fixture
def play(tokenizer, tmp_path, monkeypatch):
    made = copy.deepcopy(tokenizer)
    made.chat_template = CHAT
    write_stub(tmp_path)
    monkeypatch.chdir(tmp_path)

    def played(*texts, **settings):
        environment = Verifiers("owner/stub-env", {"texts": list(texts)}, **settings)
        agent = environment.agent(ScriptedPolicy(made, lambda read, turn: "allo<end>"), SETTINGS)
        return agent.run_all([Job(question) for question in environment.questions()])

    return played


def left_over() -> list[psutil.Process]:
    """Programs that the stub started and that still run."""
    running = psutil.process_iter(["cmdline", "status"])
    return [each for each in running if each.info["cmdline"] == ["sleep", "61.5"] and each.info["status"] != "zombie"]


def test_each_question_is_played_for_its_reward_and_recorded_as_sampled(play):
    first, second = play(FINE, "Cause of cholera?")
    assert (first.question.text, first.reward, first.success) == (FINE, 1.0, True)
    assert first.stop_reason is StopReason.ANSWERED
    assert first.question.id.startswith("owner/stub-env:0-")
    assert second.question.id.startswith("owner/stub-env:1-")
    assert first.turns[0].text == "allo"
    assert sum(first.loss_mask) == len(first.turns[0].token_ids) > 0


def test_an_environment_that_raises_or_pays_too_much_fails_that_rollout_alone(play):
    raised, endless, fine = play("raises", "infinite", FINE)
    assert raised.stop_reason is endless.stop_reason is StopReason.ERROR
    assert "KeyError('dose')" in raised.error
    assert "inf" in endless.error
    assert (fine.stop_reason, fine.reward) == (StopReason.ANSWERED, 1.0)


def test_a_rollout_that_waits_too_long_is_cancelled_and_the_process_goes_on(play):
    began = time.monotonic()
    waited, fine = play("waits", FINE, timeout_s=3.0)
    assert time.monotonic() - began < 20
    assert (waited.stop_reason, waited.error) == (StopReason.ERROR, "Verifiers._play: took more than 3 s (timeout_s)")
    assert fine.reward == 1.0


def test_a_process_that_dies_is_started_again_and_its_rollouts_begin_again(play):
    died, fine = play("dies", FINE)
    assert [died.reward, fine.reward] == [1.0, 1.0]
    assert len(died.turns) == 1  # what was sampled for the first attempt is gone
    assert not left_over()


def test_a_rollout_that_blocks_its_process_fails_alone_and_what_it_started_is_killed(play):
    began = time.monotonic()
    fine, blocked, also_fine = play(FINE, "blocks", "allo for gout?", timeout_s=5.0)
    assert time.monotonic() - began < 40
    assert (blocked.stop_reason, blocked.error) == (StopReason.ERROR, "Verifiers._play: took more than 5 s (timeout_s)")
    assert fine.reward == also_fine.reward == 1.0
    assert not left_over()


def test_its_evaluation_questions_are_asked_for_by_split(play):
    (only,) = play(FINE, split="eval")
    assert only.question.text == "evaluated"


def test_an_environment_that_cannot_be_loaded_is_told_with_its_python(play, tmp_path):
    with pytest.raises(ConfigError, match="found ValueError.'no such benchmark'., wanted an environment that .*python"):
        Verifiers("stub-env", {"fails": True}).questions()
    with pytest.raises(ConfigError, match="No module named 'absent'.*mend env_id"):
        Verifiers("owner/absent@1.0").questions()
    with pytest.raises(ConfigError, match="found 'nowhere/python', wanted a Python"):
        Verifiers("stub-env", python="nowhere/python").questions()


def test_no_process_is_left_when_the_environment_is(play):
    environment = Verifiers("stub-env")
    environment.questions()
    worker = environment._worker._process
    del environment
    assert worker.wait(10) is not None
