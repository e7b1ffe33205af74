"""Searches as function calls: the function that endpoints are offered, and how its calls are read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from medagent.protocol import Block

TOOL_CALL = Block("<tool_call>", "</tool_call>")  # as Qwen writes a call; a protocol with it offers the search
_PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
_TOLD = "Search the medical corpus for some words. Returns numbered passages."
SEARCH_FUNCTION: dict[str, Any] = {
    "type": "function",
    "function": {"name": "search", "description": _TOLD, "parameters": _PARAMETERS},
}
INSIDE = ("function", "arguments", "parameters", "input")  # keys below which models write the arguments


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
