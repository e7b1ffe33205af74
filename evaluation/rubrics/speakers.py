"""What answers a conversation: a chat endpoint, a model in process through its chat template, or an agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from medagent.agent import Agent, Job
from medagent.errors import InputError
from medagent.evaluation.rubrics.rows import Message
from medagent.models.chat_template import day_of, render
from medagent.policies.chat_endpoint import RemotePolicy
from medagent.policy import Policy
from medagent.protocol import Piece, encode
from medagent.types import Question

DAY = "2025-01-01"  # which templates that print a date are told
Asked = tuple[str, Sequence[Message]]  # a name, and the conversation


class Speaker(Protocol):
    """Replies to a conversation."""

    async def reply(self, messages: Sequence[Message], *, seed: int, temperature: float, max_tokens: int) -> str:
        """The text of one reply."""
        ...


@dataclass(frozen=True)
class EndpointSpeaker:
    """A chat endpoint, which gets the messages as they are."""

    policy: RemotePolicy

    async def reply(self, messages: Sequence[Message], *, seed: int, temperature: float, max_tokens: int) -> str:
        """See `Speaker.reply`; thoughts are no part of it."""
        body = {
            "model": self.policy.model,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": temperature,
            "seed": seed,
        }
        return (await self.policy.complete(body)).text


@dataclass(frozen=True)
class TemplateSpeaker:
    """A model in process, which gets the messages through the chat template of its tokenizer."""

    policy: Policy

    async def reply(self, messages: Sequence[Message], *, seed: int, temperature: float, max_tokens: int) -> str:
        """See `Speaker.reply`."""
        tokenizer = self.policy.tokenizer
        session = self.policy.open(seed=seed, temperature=temperature, blocks=())
        try:
            session.append(encode(tokenizer, _pieces(tokenizer, messages)))
            return (await session.sample(max_tokens=max_tokens)).text
        finally:
            session.close()


def _pieces(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> list[Piece]:
    """The conversation in the tokenizer's template. What a message says yields no token of control."""
    if not tokenizer.chat_template:
        return [Piece(as_text(messages), trusted=False), Piece("\n\nassistant: ")]
    marks = [f"\u2063{number}\u2063" for number in range(len(messages))]
    stood_in = [{"role": message["role"], "content": mark} for message, mark in zip(messages, marks, strict=True)]
    rest, pieces = render(tokenizer, stood_in, day_of(DAY)), list[Piece]()
    for message, mark in zip(messages, marks, strict=True):
        before, found, after = rest.partition(mark)
        if found:  # a template may leave out a system message
            pieces += [Piece(before), Piece(message["content"], trusted=False)]
            rest = after
    return [*pieces, Piece(rest)]


@dataclass(frozen=True)
class AgentSpeaker:
    """An agent that searches. It takes one question: the conversation as text where it has several turns."""

    agent: Agent

    async def reply(self, messages: Sequence[Message], *, seed: int, temperature: float, max_tokens: int) -> str:
        """See `Speaker.reply`: the answer, or the last turn where there is none. The agent's own limits hold."""
        asked = messages[0]["content"] if len(messages) == 1 else as_text(messages)
        rollout = await self.agent.run(Job(Question("", asked), seed=seed, temperature=temperature))
        return rollout.answer or (rollout.turns[-1].text if rollout.turns else "")


def speaker_of(agent: Agent, *, trained: bool) -> Speaker:
    """How the opened agent is asked: an exported one as it was trained, any other by messages."""
    if trained:
        return AgentSpeaker(agent)
    if isinstance(agent.policy, RemotePolicy):
        return EndpointSpeaker(agent.policy)
    return TemplateSpeaker(agent.policy)


def as_text(messages: Sequence[Message]) -> str:
    """The conversation as one text, each turn under its role."""
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in messages)


def replies(
    speaker: Speaker,
    asked: Sequence[Asked],
    *,
    seed: Callable[[str], int],
    temperature: float,
    max_tokens: int,
    concurrency: int,
    on_reply: Callable[[str, str], None],
) -> None:
    """Ask all, `concurrency` at once; `on_reply` is called with the name and the reply as each comes."""
    if concurrency < 1:
        raise InputError(f"concurrency {concurrency}: wanted 1 or more.")

    async def run() -> None:
        waiting = iter(asked)

        async def work() -> None:
            for name, messages in waiting:
                said = await speaker.reply(messages, seed=seed(name), temperature=temperature, max_tokens=max_tokens)
                on_reply(name, said)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(concurrency, len(asked))):
                    group.create_task(work())
        except* Exception as failures:
            raise failures.exceptions[0] from None
        finally:
            policy = speaker.agent.policy if isinstance(speaker, AgentSpeaker) else getattr(speaker, "policy", None)
            if policy is not None:
                await policy.disconnect()

    asyncio.run(run())
