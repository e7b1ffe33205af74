"""The steps of an answer as each API sends them: the pieces of a stream, and the whole. The Responses API's request."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from medagent.serving import openai_form as openai
from medagent.serving.admission import Event

PARAMS = {"messages": "input", "response_format": "text.format"}  # what chat completions call otherwise
COUNTS = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens", "total_tokens": "total_tokens"}
DETAILS = {
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 0},
}
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]
REPEATED = {"instructions", "metadata", "previous_response_id", "temperature", "store"}
ATTRIBUTES, MAX_ATTRIBUTE = ("source", "date", "section", "kind", "grade"), 512  # of a passage; characters


class ResponsesRequest(openai.ChatRequest):
    """The body of POST /v1/responses; fields not named here are as in chat completions.

    `input` is a text, or items, of which messages are read. A response is kept in memory for a while, unless `store`
    is false.
    """

    messages: Annotated[list[openai.ChatMessage], Field(alias="input", min_length=1)]
    instructions: Annotated[str, Field(max_length=100_000)] | None = None
    previous_response_id: str | None = None
    store: bool | None = True
    metadata: Metadata | None = None
    text: dict[Annotated[str, Field(max_length=64)], Any] | None = None

    @field_validator("messages", mode="before")
    @classmethod
    def _of_items(cls, items: Any) -> Any:
        listed = [{"role": "user", "content": items}] if isinstance(items, str) else items
        return [_message(item) for item in listed] if isinstance(listed, list) else listed

    @model_validator(mode="after")
    def _as_chat(self) -> "ResponsesRequest":
        if self.instructions:
            self.messages.insert(0, openai.ChatMessage(role="system", content=self.instructions))
        text = {"format": None, **(self.text or {})}
        wanted = text.pop("format") or {"type": "text"}
        self.response_format = wanted if isinstance(wanted, dict) else {"type": wanted}
        assert self.model_extra is not None
        self.model_extra.update({f"text.{name}": value for name, value in text.items()})
        return self


def _message(item: Any) -> Any:
    """A bare part is the user's; what is no message, such as the output of an earlier response, is of a tool."""
    if not isinstance(item, dict) or "role" in item:
        return item
    return {"role": "user", "content": [item]} if str(item.get("type")).startswith("input_") else {"role": "tool"}


def as_data(body: dict[str, Any], event: str = "") -> str:
    """A server-sent event, which may have a name."""
    return f"event: {event}\n{as_data(body)}" if event else f"data: {json.dumps(body)}\n\n"


@dataclass(kw_only=True)
class AnswerForm:
    """POST /v1/answers: each step is an event of its kind. The last one makes it `whole`."""

    id: str
    turns: list[dict[str, Any]] = field(default_factory=list)
    whole: dict[str, Any] | None = None

    def tell(self, event: Event) -> Iterator[str]:
        """The pieces of the stream for one step."""
        if event.kind == "turn":
            self.turns.append(event.data)
        elif event.kind == "answer":
            self.whole = {"id": self.id, "turns": self.turns, "answer": event.data}
        yield as_data(event.data, event.kind)


@dataclass(kw_only=True)
class ChatForm(AnswerForm):
    """POST /v1/chat/completions, with the steps in the extra field `medagent`."""

    model: str
    warnings: list[str]
    tells_usage: bool

    def tell(self, event: Event) -> Iterator[str]:
        """The chunks of one step."""
        if event.kind == "error":
            yield as_data(event.data)
        elif event.kind == "id":
            yield self._chunk({"role": "assistant", "content": ""})
        elif event.kind == "answer":
            yield from self.say(openai.content_of(event.data), event.data)
        else:
            delta = {}
            if event.kind == "turn":
                self.turns.append(event.data)
                delta = {"reasoning_content": thought} if (thought := openai.thought_of(event.data)) else {}
            yield self._chunk(delta, medagent={event.kind: event.data})

    def say(self, text: str, answer: dict[str, Any] | None = None) -> Iterator[str]:
        """The chunks of the text, with which the completion ends. Without an `answer` no agent was asked for it."""
        told = {"answer": answer, "warnings": self.warnings}
        finish, usage = openai.finish_reason(answer), openai.usage_of(answer)
        whole = {"medagent": {"turns": self.turns, **told}} if answer else {}
        self.whole = openai.completion(self.id, self.model, text, finish=finish, usage=usage, **whole)
        yield self._chunk({"content": text})
        yield self._chunk({}, finish, **({"medagent": told} if answer else {}))
        if self.tells_usage:
            yield as_data(openai.usage_chunk(self.id, self.model, usage))
        yield "data: [DONE]\n\n"

    def _chunk(self, delta: dict[str, Any], finish: str | None = None, **extra: Any) -> str:
        return as_data({**openai.chunk(self.id, self.model, delta, finish=finish), **extra})


@dataclass(kw_only=True)
class ResponseForm(AnswerForm):
    """POST /v1/responses: each search is a `file_search_call`, and each citation an annotation of the message.

    `asked` are the fields of the request that the response repeats.
    """

    model: str
    warnings: list[str]
    asked: dict[str, Any]
    created_at: int = field(default_factory=lambda: int(time.time()))
    output: list[dict[str, Any]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)

    def tell(self, event: Event) -> Iterator[str]:
        """The events of one step."""
        if event.kind == "id":
            for state in ("created", "in_progress"):
                yield self._event(state, response=self._response("in_progress"))
        elif event.kind == "turn":
            self.turns.append(event.data)
            if (query := event.data["query"]) is not None:
                results = [_result(shown) for shown in event.data["passages"]]
                item = {"type": "file_search_call", "queries": [query], "results": results}
                states = ("in_progress", "searching", "completed")
                steps = [(f"file_search_call.{state}", dict[str, Any]()) for state in states]
                yield from self._item("fs", item, {"results": None}, steps)
        elif event.kind == "answer":
            yield from self.say(openai.content_of(event.data), event.data)
        elif event.kind == "error":
            why = {"code": "server_error", "message": event.data["error"]["message"]}
            yield self._event("failed", response=self._response("failed", error=why))

    def say(self, text: str, answer: dict[str, Any] | None = None) -> Iterator[str]:
        """The events of the message, with which the response ends. Without an `answer` no agent was asked for it."""
        marks = [_annotation(*each) for each in openai.citations_of(answer)] if answer else []
        part = {"type": "output_text", "text": text, "annotations": marks, "logprobs": []}
        steps: list[tuple[str, dict[str, Any]]] = [
            ("content_part.added", {"part": {**part, "text": "", "annotations": []}}),
            ("output_text.delta", {"delta": text, "logprobs": []}),
            *(("output_text.annotation.added", {"annotation_index": n, "annotation": x}) for n, x in enumerate(marks)),
            ("output_text.done", {"text": text, "logprobs": []}),
            ("content_part.done", {"part": part}),
        ]
        item = {"type": "message", "role": "assistant", "content": [part]}
        yield from self._item(
            "msg", item, {"content": []}, [(kind, {"content_index": 0, **more}) for kind, more in steps]
        )
        finish, usage = openai.finish_reason(answer), openai.usage_of(answer)
        more: dict[str, Any] = {"usage": {**DETAILS, **{name: usage[other] for name, other in COUNTS.items()}}}
        if answer:
            more["medagent"] = {"turns": self.turns, "answer": answer, "warnings": self.warnings}
        if finish == "length":
            more["incomplete_details"] = {"reason": "max_output_tokens"}
        state = "incomplete" if finish == "length" else "completed"
        self.whole = self._response(state, **more)
        yield self._event(state, response=self.whole)

    def _item(
        self, prefix: str, item: dict[str, Any], begun: dict[str, Any], steps: Sequence[tuple[str, dict[str, Any]]]
    ) -> Iterator[str]:
        """The events of an output item, which begins with the fields `begun`."""
        index = len(self.output)
        item = {"id": f"{prefix}_{self.id.removeprefix('resp_')}_{index}", "status": "completed", **item}
        self.output.append(item)
        yield self._event("output_item.added", output_index=index, item={**item, "status": "in_progress", **begun})
        for kind, more in steps:
            yield self._event(kind, item_id=item["id"], output_index=index, **more)
        yield self._event("output_item.done", output_index=index, item=item)

    def _event(self, kind: str, **more: Any) -> str:
        kind = f"response.{kind}"
        return as_data({"type": kind, "sequence_number": next(self.numbers), **more}, kind)

    def _response(self, status: str, **more: Any) -> dict[str, Any]:
        return {
            "id": self.id,
            "created_at": self.created_at,
            "model": self.model,
            "status": status,
            **self.asked,
            "object": "response",
            "tools": [],
            "tool_choice": "auto",
            "parallel_tool_calls": False,
            **dict.fromkeys(("error", "incomplete_details", "usage")),
            "output": [*self.output],
            **more,
        }


def _annotation(start: int, end: int, passage: dict[str, Any]) -> dict[str, Any]:
    """A citation of a passage in the text from `start` to before `end`."""
    title, url = passage.get("title") or passage["id"], passage.get("url", "")
    if url.startswith(("https://", "http://")):
        return {"type": "url_citation", "start_index": start, "end_index": end, "title": title, "url": url}
    return {"type": "file_citation", "file_id": passage["id"], "filename": title, "index": end}


def _result(shown: dict[str, Any]) -> dict[str, Any]:
    """A passage that a search found, under the number by which the agent saw it."""
    passage = shown["passage"]
    known = {name: str(passage[name])[:MAX_ATTRIBUTE] for name in ATTRIBUTES if passage.get(name)}
    named = {"file_id": passage["id"], "filename": passage.get("title") or passage["id"], "text": passage["text"]}
    return {**named, "score": shown["score"], "attributes": {"number": shown["number"], **known}}
