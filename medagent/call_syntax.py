"""Calls of tools as models write them: read from the text of a turn.

Each family of models has a syntax of its own, and small models write another one than their template shows. So all
known forms are read, whatever the model. What looks like a call and cannot be read is one with an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from medagent.tool_calls import ToolCall

_THOUGHT = re.compile(r"(?s)^\s*(?:<think>)?(.*?)</think>")
_HERMES = re.compile(r"(?s)<tool_call>\s*(.*?)\s*(?:</tool_call>|(?=<tool_call>)|$)")
_FENCED = re.compile(r"(?s)```(?:json|tool_call)?\s*(\{.*?\}|\[.*?\])\s*```")
_ARGUMENTS = "arguments", "parameters"


def split_thought(text: str) -> tuple[str, str]:
    """The thought before a reply, and the reply. A thought that does not end is all thought.

    >>> split_thought("<think>dose?</think>15 mg")
    ('dose?', '15 mg')
    """
    closed = _THOUGHT.match(text)
    if closed:
        return closed[1].strip(), text[closed.end() :].strip()
    opened = text.lstrip().startswith("<think>")
    return (text.replace("<think>", "").strip(), "") if opened else ("", text.strip())


def read_calls(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """The text of a turn without its calls, and the calls in order; none where the turn calls nothing.

    >>> read_calls('I look. <tool_call>{"name": "search", "arguments": {"query": "gout"}}</tool_call>')
    ('I look.', (ToolCall(name='search', arguments={'query': 'gout'}, error=''),))
    """
    for form in (_HERMES, _FENCED):
        written = form.findall(text)
        if not written:
            continue
        calls = [call for each in written for call in _from_json(each, sure=form is _HERMES)]
        if calls:
            return form.sub("", text).strip(), tuple(calls)
    whole = text.strip()
    calls = list(_from_json(whole, sure=False)) if whole[:1] in ("{", "[") else []
    return ("", tuple(calls)) if calls else (whole, ())


def _from_json(text: str, *, sure: bool) -> Iterator[ToolCall]:
    """The calls in a JSON text. With `sure` one that cannot be read is a call with an error."""
    try:
        found = json.loads(text, strict=False)
    except (ValueError, RecursionError) as error:
        if sure:
            yield ToolCall("", error=f"not valid JSON: {error}. Write an object with name and arguments.")
        return
    for each in found if isinstance(found, list) else [found]:
        call = call_of(each)
        if call:
            yield call
        elif sure:
            yield ToolCall("", error='no call. Write {"name": "...", "arguments": {...}}.')


def call_of(found: object) -> ToolCall | None:
    """The call that an object such as {"name": "search", "arguments": {"query": "gout"}} makes; None: it is none."""
    if not isinstance(found, Mapping):
        return None
    if isinstance(found.get("function"), Mapping):
        return call_of(found["function"])
    name = found.get("name", found.get("function"))
    given = [key for key in _ARGUMENTS if key in found]
    if not isinstance(name, str) or not name or not given:
        return None
    arguments: Any = found[given[0]]
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, strict=False)
        except (ValueError, RecursionError):
            return ToolCall(name, error=f"the arguments of {name} are not valid JSON.")
    if not isinstance(arguments, Mapping):
        return ToolCall(name, error=f"the arguments of {name} are no JSON object.")
    return ToolCall(name, dict(arguments))
