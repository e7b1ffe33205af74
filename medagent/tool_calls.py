"""Tools as models call them: a call, its result, and the messages of a dialogue with tools."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from medagent.retrieval.passages import Hit

_PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
_TOLD = "Search the medical corpus for some words. Returns numbered passages."
SEARCH_FUNCTION: dict[str, Any] = {
    "type": "function",
    "function": {"name": "search", "description": _TOLD, "parameters": _PARAMETERS},
}


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


def searched(calls: Sequence[ToolCall]) -> str | None:
    """What the searches among some calls look for; None where there is none."""
    queries = [str(call.arguments.get("query", "")) for call in calls if call.name == "search" and not call.error]
    return "; ".join(filter(None, queries)) or None
