"""Environments that speak in messages and tool calls, and the loop between them and a policy."""

from __future__ import annotations

import asyncio
import warnings
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from inspect import iscoroutinefunction
from typing import Any

from medagent.agent import Agent, Job
from medagent.environment import AgentSettings, Environment
from medagent.errors import ConfigError, MedagentError, PolicyError
from medagent.history import read_message
from medagent.policy import Policy, Session, TurnStop
from medagent.retrieval.batching import SearchBatcher
from medagent.retrieval.controls import NoRetriever
from medagent.tool_calls import Message
from medagent.tool_protocol import ToolProtocol
from medagent.training.rewards import MOST_REWARD
from medagent.training.rollouts.daemon import in_daemon
from medagent.types import Question, Rollout, StopReason, Turn

CHARACTERS = 16  # of a message are read per token of the limit, at most
Step = tuple[list[Message], float, bool]


class EpisodeError(MedagentError):
    """An environment failed in a rollout."""


class MessageEnvironment(Environment):
    """An environment that reads the policy's messages and answers with messages; write `questions`, `reset`, `step`.

    Each rollout has a copy of its own, so that attributes which `reset` sets belong to it. Methods may be async; others
    run in threads. One that raises, gives something else, or takes more than `timeout_s` seconds ends its rollout with
    `StopReason.ERROR`. `max_errors` such rollouts in a row stop the run. At most `max_running` run at once.

    `tools` are the functions that the policy may call, in OpenAI's form. A rollout that earns `success_reward` in all
    is a success.
    """

    tools: Sequence[Mapping[str, Any]] = ()
    timeout_s: float = 60.0
    max_errors: int = 5
    max_running: int = 512
    success_reward: float = 1.0
    failed_in_a_row: int = 0

    @abstractmethod
    def reset(self, question: Question) -> list[Message] | Awaitable[list[Message]]:
        """Begin the question's task; returns the first messages."""

    @abstractmethod
    def step(self, message: Message) -> Step | Awaitable[Step]:
        """Answer a turn of the policy: the messages that follow, the turn's reward, and whether the task is done."""

    def close(self) -> Awaitable[None] | None:
        """Free what the rollout held. Called once at its end, however it ended."""
        return None

    def check(self, settings: AgentSettings) -> None:
        super().check(settings)
        if not isinstance(settings.protocol, ToolProtocol):
            raise ConfigError(
                f"agent.protocol: found {type(settings.protocol).__name__}, and {type(self).__name__} speaks in "
                "messages and tool calls. Set it to medagent.tool_protocol.ToolProtocol."
            )

    def agent(self, policy: Policy, settings: AgentSettings) -> Agent:
        return MessageAgent(policy, NoRetriever(), settings.protocol, settings.limits, environment=self)

    async def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """What a method gives within `timeout_s`. Raises `EpisodeError` where it does not."""
        try:
            doing = (
                method(*arguments)
                if iscoroutinefunction(method)
                else asyncio.wrap_future(in_daemon(lambda: method(*arguments), "environment"))
            )
            return await asyncio.wait_for(doing, self.timeout_s)
        except TimeoutError as error:
            raise EpisodeError(f"{method.__qualname__}: no answer within {self.timeout_s:g} s (timeout_s)") from error
        except (Exception, SystemExit) as error:  # an environment may raise anything
            raise EpisodeError(f"{method.__qualname__}: {type(error).__name__}: {error}") from error


@dataclass
class MessageAgent(Agent):
    """Rolls out in a `MessageEnvironment`, whose messages and tools the model's own chat template writes."""

    environment: MessageEnvironment = field(kw_only=True)

    def run_all(
        self, jobs: Sequence[Job], *, max_open: int = 512, on_done: Callable[[Rollout], None] | None = None
    ) -> list[Rollout]:
        return super().run_all(jobs, max_open=min(max_open, self.environment.max_running), on_done=on_done)

    def stream(
        self, jobs: Sequence[Job], *, max_open: int, on_done: Callable[[Job, Rollout], None], max_errors: int = 5
    ) -> None:
        most = min(max_open, self.environment.max_running)
        super().stream(jobs, max_open=most, on_done=on_done, max_errors=max_errors)

    async def _roll_out(
        self, job: Job, session: Session, batcher: SearchBatcher, on_turn: Callable[[Turn], None] | None = None
    ) -> Rollout:
        episode, all_of_them, turns = copy(self.environment), self.environment, list[Turn]()
        prompt_ids = self._beginning_of([Message("user", job.question.text)], ())  # also where `reset` fails
        reward, error = 0.0, ""
        try:
            messages = checked_messages(await episode.call(episode.reset, job.question))
            prompt_ids = self._beginning_of(messages, episode.tools)
            session.append(list(prompt_ids))
            stop, reward = await self._talk(episode, session, len(prompt_ids), turns, on_turn)
        except EpisodeError as failure:
            stop, error = StopReason.ERROR, " ".join(str(failure).split())[:500]
        finally:
            try:
                await episode.call(episode.close)
            except EpisodeError as failure:
                warnings.warn(f"question {job.question.id}: {failure}", stacklevel=2)
        if stop is StopReason.MAX_TOTAL_TOKENS and not turns:
            prompt_ids = prompt_ids[: self.limits.max_total_tokens]  # no model reads more
        if stop is StopReason.REFUSED:
            error = "refused by the endpoint's content filter"
        all_of_them.failed_in_a_row = all_of_them.failed_in_a_row + 1 if stop is StopReason.ERROR else 0
        if all_of_them.failed_in_a_row >= all_of_them.max_errors:
            raise PolicyError(
                f"stopped after {all_of_them.failed_in_a_row} rollouts in a row whose environment failed (max_errors). "
                f"What ended is kept: run the same command again to go on. The last error: {error}"
            )
        rollout = Rollout(job.question, tuple(prompt_ids), tuple(turns), stop, job.policy_version, job.sample)
        success = stop is StopReason.ANSWERED and sum(t.reward for t in turns) + reward >= episode.success_reward
        return replace(rollout, error=error).graded(reward, success=success)

    async def _talk(
        self,
        episode: MessageEnvironment,
        session: Session,
        total: int,
        turns: list[Turn],
        on_turn: Callable[[Turn], None] | None,
    ) -> tuple[StopReason, float]:
        """Take turns until the task is done or a limit is reached; why it ended, and the outcome's reward."""
        tokenizer, limits, protocol = self.policy.tokenizer, self.limits, self._protocol
        for number in range(limits.max_turns):
            room = min(limits.max_turn_tokens, limits.max_total_tokens - total)
            if room < 1:
                return StopReason.MAX_TOTAL_TOKENS, 0.0
            sampled = await session.sample(max_tokens=room)
            total += len(sampled.token_ids)
            text = protocol.without_end(tokenizer, sampled.text)
            said = read_message((protocol.opened(tokenizer) if number == 0 else "") + text)
            turns.append(Turn(sampled.token_ids, sampled.logprobs, text, usage=sampled.usage, calls=said.calls))
            done, outcome, stop = True, 0.0, StopReason.ANSWERED
            if sampled.stop is TurnStop.LENGTH:
                stop = StopReason.MAX_TURN_TOKENS if room == limits.max_turn_tokens else StopReason.MAX_TOTAL_TOKENS
            elif sampled.stop is TurnStop.REFUSED:
                stop = StopReason.REFUSED
            else:
                messages, reward, done = checked_step(await episode.call(episode.step, said))
                ids = [] if done else self._next_of(messages)
                total += len(ids)
                session.append(ids)
                turns[-1] = replace(turns[-1], observation_ids=tuple(ids), reward=0.0 if done else reward)
                outcome = reward if done else 0.0
            if done and stop is StopReason.ANSWERED:
                turns[-1] = replace(turns[-1], answer=said.content or str([dict(c.arguments) for c in said.calls]))
            if on_turn:
                on_turn(turns[-1])
            if done:
                return stop, outcome
        return StopReason.MAX_TURNS, 0.0

    @property
    def _protocol(self) -> ToolProtocol:
        assert isinstance(self.protocol, ToolProtocol)  # `check` has refused others
        return self.protocol

    def _beginning_of(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        most = self.limits.max_total_tokens * CHARACTERS
        shown = [replace(each, content=each.content[:most]) for each in messages]
        return self._protocol.encode_messages(self.policy.tokenizer, shown, tools)

    def _next_of(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of the messages after a turn; their texts are truncated to `max_observation_tokens` in all."""
        most = self.limits.max_observation_tokens
        kept = most * CHARACTERS
        while True:
            shown = [replace(each, content=each.content[:kept]) for each in messages]
            ids = self._protocol.encode_next(self.policy.tokenizer, shown)
            if len(ids) <= most or not kept:
                return ids
            kept = min(kept - 1, max(map(len, (each.content for each in shown))) * most // len(ids))


def checked_messages(found: object) -> list[Message]:
    """The messages that an environment gave. Raises `EpisodeError` for anything else, and for none."""
    if not isinstance(found, list) or not found or not all(isinstance(each, Message) for each in found):
        raise EpisodeError(f"gave {str(found)[:80]!r}, wanted a list of one or more Message")
    if wrong := [each for each in found if not isinstance(each.content, str)]:
        raise EpisodeError(f"gave a message with the content {str(wrong[0].content)[:80]!r}, wanted text")
    return found


def checked_step(found: object) -> Step:
    """Messages, reward and end that an environment gave. Raises `EpisodeError` for anything else."""
    if not isinstance(found, tuple) or len(found) != 3:
        raise EpisodeError(f"gave {str(found)[:80]!r}, wanted (messages, reward, done)")
    messages, reward, done = found
    if not isinstance(reward, int | float) or not abs(reward) <= MOST_REWARD or not isinstance(done, bool):
        raise EpisodeError(
            f"gave the reward {reward!r} and done {done!r}, wanted a number up to {MOST_REWARD:g} and a bool"
        )
    return ([] if done else checked_messages(messages)), float(reward), done
