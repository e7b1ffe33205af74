"""An environment written in Python: its loop, its rewards, and what happens where it fails."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from medagent.agent import Job
from medagent.environment import AgentSettings
from medagent.errors import ConfigError, InputError, PolicyError
from medagent.evaluation.evaluator import evaluate
from medagent.policies.scripted import ScriptedPolicy
from medagent.tool_calls import Message
from medagent.tool_protocol import ToolProtocol
from medagent.training.environments import MessageEnvironment
from medagent.types import Question, StopReason
from tests.medagent.support import FORGETFUL, hermes
from tests.training.environments.scripted import LIMITS, agent_in, call

FUNCTION = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}


class Counter(MessageEnvironment):
    """Counts the calls of `add` up to a target; each pays 0.25, and reaching the target 1."""

    tools = (FUNCTION,)

    def questions(self):
        return [Question(f"q{number}", f"Count to {number}.") for number in range(1, 5)]

    def reset(self, question):
        self.count, self.target = 0, int(question.id[1:])
        return [Message("system", "Count."), Message("user", question.text)]

    def step(self, message):
        if not message.calls:
            return [Message("user", "Call add.")], 0.0, False
        self.count += len(message.calls)
        done = self.count >= self.target
        return [Message("tool", str(self.count), name="add") for _ in message.calls], 1.0 if done else 0.25, done


ADD = call("add")


def test_turns_and_outcome_carry_what_they_earned() -> None:
    environment = Counter()
    agent = agent_in(environment, "Hm.", ADD, ADD)
    (rollout,) = agent.run_all([Job(environment.questions()[1])])
    assert [turn.reward for turn in rollout.turns] == [0.0, 0.25, 0.0]
    assert (rollout.reward, rollout.total_reward, rollout.success) == (1.0, 1.25, True)
    assert rollout.stop_reason is StopReason.ANSWERED
    text = agent.policy.tokenizer.decode(rollout.token_ids)
    assert text.count("<|im_start|>user\nCall add.<|im_end|>") == 1
    assert text.endswith("<tool_response>\n1\n</tool_response><|im_end|>\n<|im_start|>assistant\n" + ADD + "<|im_end|>")
    sampled = [id_ for id_, own in zip(rollout.token_ids, rollout.loss_mask, strict=True) if own]
    assert agent.policy.tokenizer.decode(sampled) == f"Hm.<|im_end|>{ADD}<|im_end|>{ADD}<|im_end|>"


def test_rollouts_do_not_share_what_reset_sets() -> None:
    environment = Counter()
    rollouts = agent_in(environment, ADD, ADD, ADD, ADD).run_all([Job(each) for each in environment.questions()])
    assert [len(each.turns) for each in rollouts] == [1, 2, 3, 4]
    assert all(each.success for each in rollouts)


def test_a_task_that_is_not_done_ends_at_the_limit_of_turns_and_is_no_success() -> None:
    environment = Counter()
    limits = replace(LIMITS, max_turns=3)
    (rollout,) = agent_in(environment, ADD, ADD, ADD, limits=limits).run_all([Job(environment.questions()[3])])
    assert (rollout.stop_reason, rollout.success, rollout.total_reward) == (StopReason.MAX_TURNS, False, 0.75)


class Broken(Counter):
    """Fails at its second step in the way that its question names."""

    timeout_s = 0.2
    ways = ("raise", "hang", "none", "text", "reward", "nan", "content", "exit")

    def questions(self):
        return [Question(way, "Count.") for way in self.ways]

    def reset(self, question):
        self.way = question.id
        return super().reset(Question("q9", question.text))

    def step(self, message):
        found = super().step(message)
        if self.count < 2:
            return found
        if self.way == "hang":
            time.sleep(0.6)
        if self.way in ("raise", "exit"):
            raise {"raise": KeyError, "exit": SystemExit}[self.way]("gone")
        garbage = {"none": None, "text": "hello", "reward": ([Message("user", "x")], "1", False)}
        garbage |= {"nan": ([Message("user", "x")], float("nan"), False), "content": ([Message("user", 7)], 0.0, False)}
        return garbage[self.way]


@pytest.mark.parametrize("way", Broken.ways)
def test_a_failure_is_recorded_and_what_came_before_it_is_kept(way: str) -> None:
    environment, ended = Broken(), Counter()
    (rollout,) = agent_in(environment, ADD, ADD, ADD).run_all([Job(Question(way, "Count."))])
    assert rollout.stop_reason is StopReason.ERROR
    assert rollout.error
    assert (len(rollout.turns), rollout.success) == (2, False)
    (good,) = agent_in(ended, ADD, ADD).run_all([Job(ended.questions()[1])])
    assert rollout.token_ids[-40:] == good.token_ids[-40:]


def test_an_iterator_that_is_exhausted_is_a_failure_at_once() -> None:
    class Empty(Counter):
        def reset(self, question):
            return next(iter([]))

    (rollout,) = agent_in(Empty(), ADD).run_all([Job(Question("q1", "Count."))])
    assert rollout.error.endswith("reset: RuntimeError('raised StopIteration()')")


def test_a_failing_reset_leaves_a_rollout_without_turns() -> None:
    class Dead(Counter):
        def reset(self, question):
            raise OSError("no simulator")

    (rollout,) = agent_in(Dead(), ADD).run_all([Job(Question("q1", "Count."))])
    assert (rollout.stop_reason, rollout.turns) == (StopReason.ERROR, ())
    assert "no simulator" in rollout.error
    assert rollout.prompt_ids


def test_several_failures_in_a_row_stop_the_run_and_others_begin_the_count_anew() -> None:
    environment = Broken()
    bad, good = Job(Question("raise", "")), Job(Counter().questions()[0])
    agent = agent_in(environment, ADD, ADD, ADD)
    for _ in range(4):
        agent.run_all([bad])
    agent_in(Counter(), ADD).run_all([good])
    with pytest.raises(PolicyError, match="5 rollouts in a row"):
        agent.run_all([bad])
    environment.failed_in_a_row = 4
    environment.reset = lambda question: [Message("user", "x")]
    environment.step = lambda message: ([], 1.0, True)
    agent.run_all([good])
    assert environment.failed_in_a_row == 0


def test_quick_failures_do_not_stop_a_run_whose_slower_rollouts_succeed() -> None:
    class Flaky(Counter):
        def reset(self, question):
            if question.id == "q9":
                raise OSError("busy")
            time.sleep(0.05)
            return super().reset(question)

    jobs = [*[Job(Question("q9", ""))] * 6, *[Job(Question("q1", "Count."))] * 6]
    rollouts = agent_in(Flaky(), ADD).run_all(jobs)
    assert [each.success for each in rollouts] == [False] * 6 + [True] * 6


def test_slow_failures_do_not_stop_a_run_whose_quicker_rollouts_succeed() -> None:
    class Slow(Counter):
        async def step(self, message):
            if self.target == 9:
                await asyncio.sleep(0.05)
                raise OSError("gone")
            return super().step(message)

    jobs = [*[Job(Question("q9", ""))] * 6, *[Job(Question("q1", "Count."))] * 2]
    assert [each.success for each in agent_in(Slow(), ADD).run_all(jobs)] == [False] * 6 + [True] * 2


def test_a_time_out_of_the_environments_own_is_told_as_such() -> None:
    class Impatient(Counter):
        async def step(self, message):
            raise TimeoutError("the database took 5 s")

    (rollout,) = agent_in(Impatient(), ADD).run_all([Job(Question("q1", "Count."))])
    assert rollout.error.endswith("step: TimeoutError('the database took 5 s')")


def test_small_rewards_add_up_to_a_success() -> None:
    class Tenths(Counter):
        def step(self, message):
            self.count += 1
            return [Message("user", "On.")], 0.1, self.count == 10

    limits = replace(LIMITS, max_turns=10)
    (rollout,) = agent_in(Tenths(), *[ADD] * 10, limits=limits).run_all([Job(Question("q1", "Count."))])
    assert rollout.success


def test_a_turn_cut_by_a_limit_ends_the_rollout_and_its_step_is_not_taken() -> None:
    for limits, stop in (
        (replace(LIMITS, max_turn_tokens=5), StopReason.MAX_TURN_TOKENS),
        (replace(LIMITS, max_turn_tokens=10**6, max_total_tokens=400), StopReason.MAX_TOTAL_TOKENS),
    ):
        (rollout,) = agent_in(Counter(), ADD * 40, limits=limits).run_all([Job(Question("q1", "Count."))])
        assert (rollout.stop_reason, rollout.total_reward, rollout.answer) == (stop, 0.0, None)


def test_a_turn_in_a_history_that_is_rendered_anew_carries_the_context_that_the_policy_read() -> None:
    tokenizer = hermes()
    tokenizer.chat_template = FORGETFUL

    class Talk(Counter):
        tools = ()

        def step(self, message):
            self.count += 1
            return [Message("user", "And?")], 0.0, self.count == 2

    turns = "<think>\nhm\n</think>\n\nOne.<|im_end|>", "Two.<|im_end|>"
    policy = ScriptedPolicy(tokenizer, lambda read, turn: turns["And?" in read])
    agent = Talk().agent(policy, AgentSettings(ToolProtocol(history="rerender"), LIMITS))
    (rollout,) = agent.run_all([Job(Question("q1", "Count."))])
    assert rollout.turns[0].context_ids == ()
    read = tokenizer.decode(rollout.turns[1].context_ids)
    assert "One." in read
    assert "hm" not in read
    assert read.endswith("And?<|im_end|>\n<|im_start|>assistant\n")


def test_calls_in_the_bare_form_of_a_family_are_read_with_the_environments_own_functions() -> None:
    (rollout,) = agent_in(Counter(), '{"name": "add", "parameters": {}}').run_all([Job(Question("q1", "Count."))])
    assert rollout.success


def test_long_observations_are_truncated() -> None:
    class Long(Counter):
        def step(self, message):
            return [Message("tool", "gout " * 2_000_000, name="add"), Message("user", "And?")], 0.0, False

    limits = replace(LIMITS, max_turns=2, max_observation_tokens=300)
    (rollout,) = agent_in(Long(), ADD, ADD, limits=limits).run_all([Job(Question("q1", "Count."))])
    assert 150 < len(rollout.turns[0].observation_ids) <= 300


def test_another_protocol_is_refused() -> None:
    with pytest.raises(ConfigError, match="ToolProtocol"):
        Counter().check(AgentSettings())


@pytest.mark.parametrize("asked", [{"modes": ["search", "gold"]}, {"modes": "closed_book"}, {"rotations": True}])
def test_other_ways_to_ask_an_environment_are_refused_before_the_agent_is_opened(asked) -> None:
    with pytest.raises(InputError, match="asked in mode search alone"):
        evaluate("nowhere/agent", f"{__name__}.Counter", **asked)
