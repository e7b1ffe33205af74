"""Environments that speak in messages and tool calls, and the loop between them and a policy."""

import warnings
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from math import fsum
from typing import Any, cast

from medagent.agent import Agent, Job, cut_by
from medagent.environment import AgentSettings
from medagent.policy import Policy, Session
from medagent.retrieval.controls import NoRetriever
from medagent.tool_calls import Message
from medagent.tool_protocol import ToolProtocol
from medagent.training.environments.episodes import EpisodeAgent, EpisodeEnvironment, EpisodeError
from medagent.training.rewards import MOST_REWARD
from medagent.types import Question, Rollout, StopReason, Turn

CHARACTERS = 16  # of a message are read per token of the limit, at most
Step = tuple[list[Message], float, bool]


class MessageEnvironment(EpisodeEnvironment):
    """An environment that reads the policy's messages and answers with messages; write `questions`, `reset`, `step`.

    Each rollout has a copy of its own, so that attributes which `reset` sets belong to it. Methods may be async; others
    run in threads. One that raises, gives something else, or takes more than `timeout_s` seconds ends its rollout with
    `StopReason.ERROR`.

    `tools` are the functions that the policy may call, in OpenAI's form. A rollout that earns `success_reward` in all
    is a success.
    """

    tools: Sequence[Mapping[str, Any]] = ()
    success_reward: float = 1.0

    @abstractmethod
    def reset(self, question: Question) -> list[Message] | Awaitable[list[Message]]:
        """Begin the question's task; returns the first messages."""

    @abstractmethod
    def step(self, message: Message) -> Step | Awaitable[Step]:
        """Answer a turn of the policy: the messages that follow, the turn's reward, and whether the task is done."""

    def close(self) -> Awaitable[None] | None:
        """Free what the rollout held. Called once at its end, however it ended."""
        return None

    def agent(self, policy: Policy, settings: AgentSettings) -> Agent:
        protocol = replace(cast(ToolProtocol, settings.protocol), functions=tuple(self.tools))
        return MessageAgent(policy, NoRetriever(), protocol, settings.limits, environment=self)


@dataclass
class MessageAgent(EpisodeAgent):
    """Rolls out in a `MessageEnvironment`, whose messages and tools the model's own chat template writes."""

    environment: MessageEnvironment = field(kw_only=True)

    async def _play(self, job: Job, session: Session, on_turn: Callable[[Turn], None]) -> Rollout:
        episode, turns, reward, error = copy(self.environment), list[Turn](), 0.0, ""
        prompt_ids = self._beginning_of([Message("user", job.question.text)], ())  # also where `reset` fails
        try:
            messages, _, _ = checked((await episode.call(episode.reset, job.question), 0.0, False))
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
        rollout = Rollout(job.question, tuple(prompt_ids), tuple(turns), stop, job.policy_version, job.sample)
        earned = fsum([reward, *(turn.reward for turn in turns)])  # ten times 0.1 is 1
        success = stop is StopReason.ANSWERED and earned >= episode.success_reward
        return replace(rollout, error=error).graded(reward, success=success)

    async def _talk(
        self,
        episode: MessageEnvironment,
        session: Session,
        total: int,
        turns: list[Turn],
        on_turn: Callable[[Turn], None],
    ) -> tuple[StopReason, float]:
        """Take turns until the task is done or a limit is reached; why it ended, and the outcome's reward."""
        tokenizer, limits = self.policy.tokenizer, self.limits
        protocol = replace(cast(ToolProtocol, self.protocol), functions=tuple(episode.tools))
        for number in range(limits.max_turns):
            room = min(limits.max_turn_tokens, limits.max_total_tokens - total)
            if room < 1:
                return StopReason.MAX_TOTAL_TOKENS, 0.0
            sampled = await session.sample(max_tokens=room)
            text = protocol.opened(tokenizer, number) + protocol.without_end(tokenizer, sampled.text)
            said = protocol.read_message(text, tokenizer)
            turn = Turn(sampled.token_ids, sampled.logprobs, text, usage=sampled.usage, calls=said.calls)
            turns.append(replace(turn, context_ids=sampled.context_ids))
            if cut := cut_by(sampled.stop, room, limits):
                on_turn(turns[-1])
                return cut, 0.0
            messages, reward, done = checked(await episode.call(episode.step, said))
            if done:
                turns[-1] = replace(turns[-1], answer=said.content or str([dict(c.arguments) for c in said.calls]))
                on_turn(turns[-1])
                return StopReason.ANSWERED, reward
            called = any(each.role == "tool" for each in messages)
            ended = protocol.history == "rerender" or protocol.ended(tokenizer, sampled, called=called)
            ids = self._next_of(protocol, messages, ended)
            total += len(sampled.token_ids) + len(ids)
            session.append(ids)
            turns[-1] = replace(turns[-1], observation_ids=tuple(ids), reward=reward)
            on_turn(turns[-1])
        return StopReason.MAX_TURNS, 0.0

    def _beginning_of(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        most = self.limits.max_total_tokens * CHARACTERS
        shown = [replace(each, content=each.content[:most]) for each in messages]
        return cast(ToolProtocol, self.protocol).encode_messages(self.policy.tokenizer, shown, tools)

    def _next_of(self, protocol: ToolProtocol, messages: Sequence[Message], ended: bool) -> list[int]:
        """Token ids of the messages after a turn; their texts are truncated to `max_observation_tokens` in all."""
        most = self.limits.max_observation_tokens
        kept = most * CHARACTERS
        while True:
            shown = [replace(each, content=each.content[:kept]) for each in messages]
            ids = protocol.encode_next(self.policy.tokenizer, shown, ended=ended)
            if len(ids) <= most or not kept:
                return ids
            kept = min(kept - 1, max(len(each.content) for each in shown) * most // len(ids))


def checked(found: object) -> Step:
    """Messages, reward and end that an environment gave. Raises `EpisodeError` for anything else."""
    messages, reward, done = found if isinstance(found, tuple) and len(found) == 3 else (None, None, None)
    told = isinstance(messages, list) and all(isinstance(m, Message) and isinstance(m.content, str) for m in messages)
    paid = isinstance(reward, int | float) and abs(reward) <= MOST_REWARD
    if not paid or not isinstance(done, bool) or not (done or (told and messages)):
        raise EpisodeError(
            f"the environment gave {str(found)[:200]}, wanted (messages, reward, done): one or more Message with text, "
            f"a number up to {MOST_REWARD:g} and a bool"
        )
    return messages or [], float(cast(float, reward)), done
