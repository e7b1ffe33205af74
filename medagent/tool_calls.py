"""Searches as function calls: the function that endpoints are offered, and the forms in which models call it."""

from __future__ import annotations

import json
import re
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
_INSIDE = ("function", "arguments", "parameters", "input")  # keys below which models write the arguments
_WRITTEN = re.compile(  # calls that are not JSON: Llama's, Qwen3-Coder's, ReAct's
    r"""\bsearch\w*\(\s*(?:query\s*=\s*)?(?P<mark>["'])(?P<python>.+?)(?P=mark)\s*\)"""
    r"|<parameter=query>(?P<xml>.+?)(?:</parameter>|$)|^\W*action input:\s*(?P<react>.+)$",
    re.IGNORECASE | re.DOTALL | re.MULTILINE,
)


def query_of(call: object) -> str:
    """The query of a call such as {"name": "search", "arguments": {"query": "gout"}}; empty where it has none.

    Arguments may be JSON as text, as OpenAI's API sends them, or the query itself.
    """
    if isinstance(call, str):
        try:
            found = json.loads(call)
        except ValueError:
            found = None
        return query_of(found) if isinstance(found, dict | list) else call.strip()
    if isinstance(call, list):
        return query_of(call[0]) if call else ""
    if not isinstance(call, Mapping):
        return ""
    for key in _INSIDE:
        if key in call:
            return query_of(call[key])
    texts = [value for key, value in call.items() if isinstance(value, str) and key not in ("name", "id", "type")]
    query = call.get("query", texts[0] if len(texts) == 1 else "")
    return query_of(query) if isinstance(query, list) else str(query).strip()


def written_query(text: str) -> str:
    """The query of the first call that is written in a text; empty where there is none."""
    decoder = json.JSONDecoder(strict=False)
    for brace in re.finditer(r"\{", text):
        try:
            found, _ = decoder.raw_decode(text, brace.start())
        except ValueError:
            continue
        called = "query" in found or ("name" in found and any(key in found for key in _INSIDE))
        if called and (query := query_of(found)):
            return query
    written = _WRITTEN.search(text)
    return next((said.strip() for said in written.group("python", "xml", "react") if said), "") if written else ""
