"""OpenAI's chat completions, as far as an agent supports them: messages in, completions and errors out."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from medagent.protocol import NOT_ADVICE

MAX_CHARACTERS, MAX_CONVERSATION = 8_000, 32_000
EARLIER = "Earlier in this conversation:"


class MessagePart(BaseModel):
    """A part of a message's content; only text is read."""

    type: str
    text: str = ""


class Message(BaseModel):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[MessagePart] | None = None

    @property
    def text(self) -> str:
        """The message as one text. The sources and the notice below an answer of this service are left out."""
        parts = [self.content] if isinstance(self.content, str) else [part.text for part in self.content or ()]
        text = "\n".join(parts).strip()
        if self.role == "assistant" and text.endswith(NOT_ADVICE):
            return text.rsplit("\n\n", 2)[0]
        return text


class StreamOptions(BaseModel):
    """OpenAI's `stream_options`."""

    include_usage: bool | None = None


class ChatRequest(BaseModel):
    """The body of POST /v1/chat/completions.

    Settings of sampling that an agent does not have are ignored. Null means absent.
    """

    model: Annotated[str, Field(max_length=200)]
    messages: Annotated[list[Message], Field(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Literal[1] | None = None


def question_text(messages: list[Message]) -> str:
    """The last user's message, with the conversation before it as context.

    Earlier questions and answers stand before it, the newest as far as there is room. System messages are left out: the
    agent has instructions of its own.

    >>> asked, answered = Message(role="user", content="Gout?"), Message(role="assistant", content="Colchicine [1]")
    >>> question_text([asked, answered, Message(role="user", content="And its dose?")])
    'Earlier in this conversation: Q: Gout? A: Colchicine [1] Now: And its dose?'
    """
    said = [(message.role, message.text) for message in messages if message.role in ("user", "assistant")]
    said = [(role, text) for role, text in said if text]
    if not said or said[-1][0] != "user":
        raise ValueError("the last message must be the user's, and have text.")
    asked = said[-1][1]
    if len(asked) > MAX_CHARACTERS:
        raise ValueError(f"the question has {len(asked):,} characters, and may have {MAX_CHARACTERS:,}.")
    earlier: list[str] = []
    room = MAX_CONVERSATION
    for role, text in reversed(said[:-1]):
        room -= len(text)
        if room < 0:
            break
        earlier.insert(0, f"{'Q' if role == 'user' else 'A'}: {text}")
    return f"{EARLIER} {' '.join(earlier)} Now: {asked}" if earlier else asked


def completion(id: str, model: str, answer: dict[str, Any], turns: list[dict[str, Any]]) -> dict[str, Any]:
    """A whole chat completion. The extra field `medagent` holds the steps and the checked answer."""
    message = {"role": "assistant", "content": content_of(answer), "refusal": None}
    return {
        "id": id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(answer)}],
        "usage": answer["usage"],
        "medagent": {"turns": turns, "answer": answer},
    }


def chunk(
    id: str, model: str, delta: dict[str, Any], *, finish: str | None = None, extra: dict[str, Any] | None = None
) -> dict[str, Any]:
    """One piece of a streamed completion."""
    return {
        "id": id,
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
        **({"medagent": extra} if extra else {}),
    }


def usage_chunk(id: str, model: str, answer: dict[str, Any]) -> dict[str, Any]:
    """The last piece, where `stream_options.include_usage` asks for it."""
    return {**chunk(id, model, {}), "choices": [], "usage": answer["usage"]}


def content_of(answer: dict[str, Any]) -> str:
    """The answer as text with its sources below, for clients that show only text."""
    if not answer["text"]:
        return f"No answer: the agent stopped before one ({answer['stop_reason']}).\n\n{answer['notice']}"
    lines = [answer["text"], ""]
    lines += [f"[{source['number']}] {_named(source['passage'])}" for source in answer["sources"]]
    lines += [] if answer["sources"] else ["It cites no passage: treat the answer as unsupported."]
    return "\n".join([*lines, "", answer["notice"]])


def _named(passage: dict[str, Any]) -> str:
    return " ".join(str(passage[name]) for name in ("title", "section", "source") if passage.get(name)) or str(
        passage["id"]
    )


def finish_reason(answer: dict[str, Any]) -> str:
    """OpenAI's name for how the answer ended."""
    return "length" if answer["stop_reason"].startswith("max_") else "stop"


def error(message: str, kind: str, *, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    """An error in OpenAI's shape."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
