"""An agent that is not ours plays: its reward, and what each of its failures is recorded as."""

from __future__ import annotations

import asyncio
import copy
import sys
import time
from pathlib import Path

import pytest

from medagent.agent import Job
from medagent.environment import AgentSettings
from medagent.errors import ConfigError, PolicyError
from medagent.policies.scripted import ScriptedPolicy
from medagent.protocol import TagProtocol
from medagent.tool_protocol import ToolProtocol
from medagent.training.environments.harness import Harness
from medagent.types import Limits, Question, StopReason
from tests.training.environments.support import CHAT

PLAYS = "tests.training.environments.support"
SETTINGS = AgentSettings(ToolProtocol(), Limits(max_turn_tokens=32))


class TwoQuestions:
    def questions(self) -> list[Question]:
        return [Question("a", "Which drug for gout?", answer="allo"), Question("b", "Cause of cholera?", answer="vib")]


@pytest.fixture
def policy(tokenizer):
    made = copy.deepcopy(tokenizer)
    made.chat_template = CHAT
    return ScriptedPolicy(made, lambda read, turn: "allo<end>")


def played(policy, play, **settings):
    harness = Harness(TwoQuestions(), play, **settings)
    harness.check(SETTINGS)
    jobs = [Job(question, sample=number) for number, question in enumerate(harness.questions())]
    return harness.agent(policy, SETTINGS).run_all(jobs)


def failed(policy, play, **settings) -> str:
    """The error of an agent that always fails; the recorded rollouts are checked before."""
    done = played(policy, play, **settings)
    assert {each.stop_reason for each in done} == {StopReason.ERROR}
    assert all(each.token_ids for each in done)  # what was sampled is kept, and no row is empty
    return done[0].error


def test_a_function_plays_each_question_and_returns_its_reward(policy):
    first, second = played(policy, f"{PLAYS}.asks_once")
    assert (first.reward, first.success, first.stop_reason, first.answer) == (1.0, True, StopReason.ANSWERED, "allo")
    assert (second.reward, second.success, second.sample) == (0.0, False, 1)


def test_an_async_function_may_send_its_reward(policy):
    assert [each.reward for each in played(policy, f"{PLAYS}.asks_without_waiting", max_running=1)] == [0.25, 0.25]


@pytest.mark.parametrize(
    ("play", "error"),
    [
        ("crashes", "KeyError('option (B)"),
        ("exits", "SystemExit(3)"),
        ("hangs", "took more than 0.5 s"),
        ("hangs_without_waiting", "took more than 0.5 s"),
        ("earns_nothing", "it ended without a reward."),
        ("earns_words", "it returned 'much', wanted a reward"),
        ("earns_without_asking", "it never asked the model."),
    ],
)
def test_a_failure_of_the_agent_is_a_recorded_stop_reason(policy, play, error):
    assert error in failed(policy, f"{PLAYS}.{play}", timeout_s=0.5 if play.startswith("hangs") else 60)


def test_one_failure_leaves_the_other_rollouts_as_they_are(policy):
    first, second = played(policy, f"{PLAYS}.fails_for_gout")
    assert (first.stop_reason, second.stop_reason) == (StopReason.ERROR, StopReason.ANSWERED)
    assert "no gout" in first.error


def test_an_agent_that_fails_whenever_it_is_asked_ends_the_run(policy):
    agent = Harness(TwoQuestions(), f"{PLAYS}.crashes").agent(policy, SETTINGS)
    with pytest.raises(PolicyError, match=r"5 rollouts in a row whose environment failed.*KeyError"):
        agent.run_all([Job(Question(str(number), "gout")) for number in range(5)])


def test_a_stream_runs_no_more_agents_at_once_than_the_environment_allows(policy):
    running, most, done = [0], [0], []

    async def counts(question, base_url):
        running[0] += 1
        most[0] = max(most[0], running[0])
        await asyncio.sleep(0.02)
        running[0] -= 1
        raise RuntimeError("counted")

    harness = Harness(TwoQuestions(), f"{PLAYS}.asks_once", max_running=2)
    harness._play = counts
    jobs = [Job(Question(str(number), "gout")) for number in range(4)]
    harness.agent(policy, SETTINGS).stream(jobs, max_open=4, on_done=lambda job, rollout: done.append(rollout))
    assert (most, len(done)) == ([2], 4)


def test_a_failure_of_the_engine_ends_the_run(policy):
    def dies(read, turn):
        raise PolicyError("the engine died")

    with pytest.raises(PolicyError, match="the engine died"):
        played(ScriptedPolicy(policy.tokenizer, dies), f"{PLAYS}.asks_once")


PROGRAM = """
import json, os, urllib.request
def post(url, body):
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    return json.load(urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)))
question = json.loads(os.environ["MEDAGENT_QUESTION"])
said = post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", {"messages": [{"role": "user", "content": "?"}]})
right = question["answer"] in said["choices"][0]["message"]["content"]
post(os.environ["MEDAGENT_REWARD_URL"], {"reward": 0.5, "success": right})
"""


def test_a_program_plays_by_its_environment(policy):
    first, second = played(policy, [sys.executable, "-c", PROGRAM])
    assert [(each.reward, each.success) for each in (first, second)] == [(0.5, True), (0.5, False)]


def test_the_error_of_a_program_has_its_last_words(policy):
    assert "exit status 1, after it said: no key" in failed(policy, [sys.executable, "-c", "exit('no key')"])
    assert "FileNotFoundError" in failed(policy, ["no-such-program"])


def test_a_program_that_hangs_is_killed_with_all_that_it_started(policy, tmp_path: Path):
    script = f"echo $$ > {tmp_path}/a$RANDOM; sleep 60 & echo $! > {tmp_path}/b$RANDOM; wait"
    assert "more than 0.5 s" in failed(policy, ["bash", "-c", script], timeout_s=0.5)
    assert_all_ended(tmp_path)


def test_an_interrupt_kills_the_programs(policy, tmp_path: Path):
    agent = Harness(TwoQuestions(), ["bash", "-c", f"echo $$ > {tmp_path}/a; sleep 60"]).agent(policy, SETTINGS)

    async def run():
        task = asyncio.create_task(agent.run(Job(Question("a", "gout"))))
        while not any(path.read_text() for path in tmp_path.iterdir()):
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert_all_ended(tmp_path)


def assert_all_ended(folder: Path) -> None:
    pids = [int(path.read_text()) for path in folder.iterdir()]
    deadline = time.monotonic() + 5
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert pids


def _runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_settings_that_cannot_work_are_refused_before_a_model_is_loaded():
    with pytest.raises(ConfigError, match="no_such"):
        Harness(TwoQuestions(), f"{PLAYS}.no_such")
    with pytest.raises(ConfigError, match="found TagProtocol, wanted .*ToolProtocol"):
        Harness(TwoQuestions(), f"{PLAYS}.asks_once").check(AgentSettings(TagProtocol()))
