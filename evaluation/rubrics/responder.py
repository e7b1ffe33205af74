"""Replies to conversations, by a chat endpoint, a model in process through its chat template, or an agent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase

from medagent.agent import Agent, Job
from medagent.agent_folder import full_name, open_agent
from medagent.evaluation.fingerprints import agent_fingerprint
from medagent.evaluation.rubrics.rows import Message
from medagent.models.base_models import STARTER
from medagent.models.chat_template import day_of, render
from medagent.pieces import Piece, encode
from medagent.policies.chat_endpoint import RemotePolicy
from medagent.types import Question

DAY = "2025-01-01"  # which templates that print a date are told


@dataclass(frozen=True)
class Responder:
    """Replies to conversations.

    An agent that was `trained` here searches as it was trained. It takes one question: the conversation as text where
    that has several turns. A chat endpoint gets the messages as they are, and a model in process through the chat
    template of its tokenizer. `described` names it in a report.
    """

    agent: Agent
    trained: bool = False
    described: Mapping[str, Any] = field(default_factory=dict)

    async def reply(self, messages: Sequence[Message], *, seed: int, temperature: float, max_tokens: int) -> str:
        """The text of one reply: an agent's answer, or its last turn without one. An agent's own limits hold."""
        policy = self.agent.policy
        if self.trained:
            asked = messages[0]["content"] if len(messages) == 1 else as_text(messages)
            rollout = await self.agent.run(Job(Question("", asked), seed=seed, temperature=temperature))
            return rollout.answer or (rollout.turns[-1].text if rollout.turns else "")
        if isinstance(policy, RemotePolicy):
            body = {"model": policy.model, "messages": list(messages), "max_tokens": max_tokens}
            return (await policy.complete({**body, "temperature": temperature, "seed": seed})).text
        session = policy.open(seed=seed, temperature=temperature, blocks=())
        try:
            session.append(encode(policy.tokenizer, template_pieces(policy.tokenizer, messages)))
            return (await session.sample(max_tokens=max_tokens)).text
        finally:
            session.close()


def open_responder(
    name: str, *, model: str = "", index: str | None = None, parameters: Mapping[str, Any] | None = None
) -> Responder:
    """A responder by a name that `medagent evaluate` takes; `model` names an endpoint's."""
    parameters = dict(parameters or {})
    agent = open_agent(name, index=index, lockstep=True, model=model, parameters=parameters, must_search=False)
    untrained = name == STARTER or full_name(name).startswith(("http://", "https://", "hf:"))
    described = {"name": name, "model": model, "sha256": agent_fingerprint(name)}
    return Responder(agent, not untrained, {**described, "index": index, "parameters": parameters})


def template_pieces(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> list[Piece]:
    """The conversation in the tokenizer's template. Message text yields no control tokens."""
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


def as_text(messages: Sequence[Message]) -> str:
    """The conversation as one text, each turn under its role."""
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in messages)
