"""Tools as models call them: a call, its result, and the messages of a dialogue with tools.

Also how one query is read from a call that an endpoint reports, or that a model wrote.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from medagent.retrieval.passages import Hit

_PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
_TOLD = "Search the medical corpus for some words. Returns numbered passages."
SEARCH_FUNCTION: dict[str, Any] = {
    "type": "function",
    "function": {"name": "search", "description": _TOLD, "parameters": _PARAMETERS},
}
INSIDE = ("function", "arguments", "parameters", "input")  # keys below which models write the arguments


@dataclass(frozen=True)
class ToolCall:
    """A call as the model wrote it. `error` says why it cannot be run; the model reads that as the result."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class ToolResult:
    """What a call of the tool `name` gives: passages, which are numbered, or an error that the model may mend."""

    name: str
    hits: tuple[Hit, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Message:
    """A message in the terms of chat templates. `name` is a tool's; `calls` and `thought` are the assistant's."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    name: str = ""
    calls: tuple[ToolCall, ...] = ()
    thought: str = ""


def query_of(call: object) -> str:
    """The query of a call such as {"name": "search", "arguments": {"query": "gout"}}; empty where it has none.

    Arguments may be JSON as text, as OpenAI's API sends them, or the query itself.
    """
    if isinstance(call, str):
        try:
            found = json.loads(call)
        except (ValueError, RecursionError):
            found = None
        return query_of(found) if isinstance(found, dict | list) else call.strip()
    if isinstance(call, list):
        return query_of(call[0]) if call else ""
    if not isinstance(call, Mapping):
        return ""
    for key in INSIDE:
        if key in call:
            return query_of(call[key])
    texts = [value for key, value in call.items() if isinstance(value, str) and key not in ("name", "id", "type")]
    query = call.get("query", texts[0] if len(texts) == 1 else "")
    return query_of(query) if isinstance(query, list) else str(query).strip()
