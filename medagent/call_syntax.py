"""Turns as models write them: thought, reply and calls of tools, read from the text.

Each family of models has a syntax of its own, and small models write another one than their template shows. So all
known forms are read, whatever the model. Behind a family's own mark stands a call, and one that cannot be read has an
error. Without a mark, only what calls an offered tool and stands apart from prose is a call.
"""

import ast
import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from medagent.tool_calls import Message, ToolCall

Functions = Sequence[Mapping[str, Any]]  # schemas in OpenAI's form
Span = tuple[int, int, str, str, str]  # where a text may call, what it says there, the mark and the name before that

_JSON = '{"name": "search", "arguments": {"query": "..."}}'
_FORMS = {  # what opens a call: what closes it, and how a call looks
    "<tool_call>": ("</tool_call>", f"<tool_call>{_JSON}</tool_call>"),
    "<function=": ("</function>", "<function=search><parameter=query>...</parameter></function>"),
    "<invoke name=": ("</invoke>", '<invoke name="search"><parameter name="query">...</parameter></invoke>'),
    "<|tool_call|>": ("<|/tool_call|>", f"<|tool_call|>[{_JSON}]"),
    "<|python_tag|>": ("<|eom_id|>", '<|python_tag|>{"name": "search", "parameters": {"query": "..."}}'),
    "[TOOL_CALLS]": ("</s>", f"[TOOL_CALLS][{_JSON}]"),
    "[ARGS]": ("</s>", '[TOOL_CALLS]search[ARGS]{"query": "..."}'),
    "<start_function_call>": (
        "<end_function_call>",
        "<start_function_call>call:search{query:<escape>...<escape>}<end_function_call>",
    ),
    "<|tool_call>": ("<tool_call|>", '<|tool_call>call:search{query:<|"|>...<|"|>}<tool_call|>'),
    "<｜tool▁call▁begin｜>": ("<｜tool▁call▁end｜>", 'search<｜tool▁sep｜>{"query": "..."}'),
    "<|tool_call_begin|>": ("<|tool_call_end|>", 'functions.search:0<|tool_call_argument_begin|>{"query": "..."}'),
    "<arg_key>": ("", "<tool_call>search<arg_key>query</arg_key><arg_value>...</arg_value></tool_call>"),
    "<|message|>": ("", 'commentary to=functions.search<|message|>{"query": "..."}<|call|>'),
    "```": ("```", '```tool_code\nsearch(query="...")\n```'),
}
_ARGUMENTS = "function", "arguments", "parameters", "input", "args", "action_input"
_WHOLE = "*"  # stands for the mark of a text that is nothing but a call
_NAMED = "<function=", "<invoke name="  # marks that are part of the call
_WITHIN = "[ARGS]", "<arg_key>", "<function="  # marks that tell of the form inside another one
_NO_START = "[ARGS]", "<arg_key>", "<|message|>", "```"
_START = re.compile("|".join(re.escape(mark) for mark in _FORMS if mark not in _NO_START))
_NEXT = {mark: re.compile(f"{re.escape(end)}|{re.escape(mark)}") for mark, (end, _) in _FORMS.items()}
_AROUND = re.compile(r"</?(?:[\w:]+:)?(?:tool_calls?|function_calls)>|<[|｜]tool[▁_]calls(?:[▁_]section)?[▁_]\w+[|｜]>")
THOUGHTS = ("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<|channel>thought", "<channel|>")
_NAME = r"[A-Za-z_][\w.-]{0,63}"
_HEAD = re.compile(rf"\s*(?:call:|function<｜tool▁sep｜>)?\s*({_NAME})")
_XML_NAME = re.compile(rf'\s*<(?:function=|invoke name=)"?({_NAME})"?[^>\n]{{0,200}}>')
_PAIR = re.compile(  # a parameter and its value, which may be cut
    r'(?s)(?:<parameter(?:=| name=)"?([^>"]*)[^>]*>\n?|<arg_key>(.*?)</arg_key>\s*<arg_value>)'
    r"(.*?)(?:\n?(?=</?(?:parameter|function|invoke)\b|<arg_key>)|</arg_value>|\n?\Z)"
)
_BARE_KEY = re.compile(r"([{,]\s*)([A-Za-z_][\w.-]*)\s*:")
_OBJECT = re.compile(r'\{\s*"(?:name|function|type|id|tool|action|arguments|parameters)"')
_FENCE = re.compile(r"(?s)(?:(?P<mark>```)(?=tool_)|```)(?a:[\w-]*)(?P<body>.*?)(?:```|\Z)")
_LINE_CALL = re.compile(rf"(?m)^[\s`>*-]{{0,8}}(?P<body>(?:print\()?{_NAME}\(.*\))[`;\s]*$")
_ACTION = re.compile(
    rf"(?im)^[^\w\n]{{0,8}}action:[^\S\n]*(?P<name>{_NAME})[^\n]*\n"
    r"[^\w\n]{0,8}action input:[^\S\n]*(?P<body>\{.*\}|[^\n]+)"
)
_UNREADABLE = ValueError, TypeError, SyntaxError, RecursionError, MemoryError, AttributeError


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse)


def read_turn(text: str, functions: Functions = (), response_template: Mapping[str, Any] | None = None) -> Message:
    """A turn of any family as sampled, without its end. `functions` are offered; without any, a search is.

    A tokenizer's `response_template` says how transformers reads it. Where that finds no call, any known form counts.

    >>> read_turn('<tool_call>{"name": "search", "arguments": {"query": "gout"}}</tool_call>').calls
    (ToolCall(name='search', arguments={'query': 'gout'}, error=''),)
    """
    if response_template and (told := _as_told(text, functions, response_template)):
        return told
    if "<|message|>" in text:
        return _harmony(text, functions)
    thought, said = split_thought(text)
    whole = 0, len(said), said, _WHOLE, ""
    python, react = _matches(_LINE_CALL, said), _matches(_ACTION, said)
    for spans in (_marked(said), _matches(_FENCE, said), iter([whole]), _objects(said), python, react):
        kept, calls, at = list[str](), list[ToolCall](), 0
        for start, end, body, mark, name in spans:
            if found := _read(body, functions, mark, name=name):
                calls += found
                kept.append(said[at:start])
                at = end
        if calls:
            content = _AROUND.sub("", "".join([*kept, said[at:]])).strip()
            return Message("assistant", content, calls=tuple(calls), thought=thought)
    return Message("assistant", said, thought=thought)


def call_of(found: object) -> ToolCall | None:
    """The call that an object such as {"name": "search", "arguments": {"query": "gout"}} makes; None: it is none."""
    calls = _read(json.dumps(found), (), "<tool_call>") if isinstance(found, Mapping) else []
    return next((call for call in calls if call.name), None)


def query_of(call: ToolCall | None) -> str:
    """What a call searches for: its `query`, or its only text. Empty where it has neither."""
    given = call.arguments if call else {}
    texts = [each for each in given.values() if isinstance(each, str)]
    query = given.get("query", texts[0] if len(texts) == 1 else "")
    return str(next(iter(query), "") if isinstance(query, list) else query).strip()


def _as_told(text: str, functions: Functions, response_template: Mapping[str, Any]) -> Message | None:
    """A turn as transformers reads it; None where it cannot, or where our reader finds a call and it does not."""
    from transformers.utils.chat_parsing import parse_response  # of versions whose tokenizers have a template

    try:
        found = parse_response(text, dict(response_template), prefix="", tools=[dict(each) for each in functions])
        calls = tuple(filter(None, map(call_of, found.get("tool_calls", ()))))
    except _UNREADABLE:
        return None
    said, thought = (str(found.get(name) or "") for name in ("content", "thinking"))
    unread = any(call.error for call in calls) if calls else not (said or thought) or read_turn(text, functions).calls
    return None if unread else Message("assistant", said, calls=calls, thought=thought)


def split_thought(text: str) -> tuple[str, str]:
    """The thoughts of a turn, and the rest. A thought that does not end is all thought.

    >>> split_thought("<think>dose?</think>15 mg")
    ('dose?', '15 mg')
    """
    for start, end in THOUGHTS:
        if start not in text and end not in text:
            continue
        thought, said = list[str](), list[str]()
        *closed, last = text.split(end)
        for number, part in enumerate(closed):
            before, opened, inside = part.partition(start)
            (said if opened or number else thought).append(before)  # the prompt may open the first one
            thought.append(inside.replace(start, ""))
        before, _, inside = last.partition(start)
        return "\n".join(filter(None, map(str.strip, [*thought, inside]))), "".join([*said, before]).strip()
    return "", text.strip()


def _harmony(text: str, functions: Functions) -> Message:
    """Messages with a channel each: thoughts are analysis, a recipient is called, the rest is said."""
    thought, said, calls = list[str](), list[str](), list[ToolCall]()
    for part in text.split("<|start|>"):
        header, marked, body = part.partition("<|message|>")
        body = re.split(r"<\|(?:end|call|return)\|>", body, maxsplit=1)[0].strip()
        called = re.search(rf"\bto=({_NAME})", header)
        if called and marked:
            calls += _read(body, functions, "<|message|>", name=called[1])
        elif marked:
            (thought if "analysis" in header else said).append(body)
    return Message("assistant", "\n".join(said), calls=tuple(calls), thought="\n".join(thought))


def _marked(text: str) -> Iterator[Span]:
    """Calls behind a family's mark."""
    at = 0
    while found := _START.search(text, at):
        mark, start = found[0], found.end()
        inside, brace = start, text.find("{", start, start + 120)
        if brace >= 0 and not _NEXT[mark].search(text, start, brace):
            try:  # a string of JSON may hold the mark that closes
                inside = _DECODER.raw_decode(text, brace)[1]
            except (ValueError, RecursionError):
                inside = brace
        closed = _NEXT[mark].search(text, inside)
        end = closed.start() if closed else len(text)
        at = closed.end() if closed and closed[0] != mark else end
        yield found.start(), at, text[found.start() if mark in _NAMED else start : end], mark, ""


def _objects(text: str) -> Iterator[Span]:
    """Objects in prose that may be calls."""
    at = 0
    while found := _OBJECT.search(text, at):
        try:
            at = _DECODER.raw_decode(text, found.start())[1]
        except json.JSONDecodeError as error:
            at = max(found.end(), error.pos)
        except (ValueError, RecursionError):
            return
        else:
            yield found.start(), at, text[found.start() : at], "", ""


def _matches(pattern: re.Pattern[str], text: str) -> Iterator[Span]:
    for found in pattern.finditer(text):
        named = found.groupdict()
        yield *found.span(), named["body"], named.get("mark") or "", named.get("name") or ""


def _read(body: str, functions: Functions, mark: str = "", *, name: str = "") -> list[ToolCall]:
    """The calls in a text. With a `mark` of `_FORMS` there must be one; else only those of offered tools count.

    `name` is that of the tool, where the text holds its arguments alone.
    """
    body = body.strip()
    try:
        written = [(name, body)] if name else list(_written(body, functions, nameless=bool(mark)))
        calls = [_call(called, arguments, functions) for called, arguments in written]
        error = "there is none"
    except _UNREADABLE as found:
        calls, error = [], str(found)[:200]
    if mark not in _FORMS:
        return calls if any(_offered(call.name, functions) for call in calls) else []
    if calls:
        return calls
    named = re.search(rf'"name"\s{{0,9}}:\s{{0,9}}"({_NAME})"', body[:300])
    shape = _FORMS[next((each for each in _WITHIN if each in body), mark)][1]
    return [ToolCall(named[1] if named else name, error=f"the call cannot be read: {error}. Write it as {shape}")]


def _call(name: str, arguments: Any, functions: Functions) -> ToolCall:
    """The call of a tool. Arguments may be JSON as text, or the values of the first parameters.

    Raises:
        ValueError: they are neither.
    """
    called = name.removeprefix("functions.").removeprefix("default_api.").removesuffix(".call")
    called = next((each for each in _parameters(functions) if each.lower() == called.lower()), called)
    known = [*_parameters(functions).get(called, ())] or ["query"]
    if isinstance(arguments, str):
        try:
            arguments = _DECODER.decode(arguments)
        except (ValueError, RecursionError):
            if arguments.lstrip()[:1] in ("{", "["):
                raise
            arguments = [arguments.strip("\"' ")]
    if isinstance(arguments, list | tuple):
        arguments = dict(zip(known, arguments, strict=False))
    if not isinstance(arguments, Mapping):
        raise ValueError("the arguments are no JSON object")
    as_json = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    return ToolCall(called, json.loads(as_json.encode(errors="replace")))  # JSON may name half of a character


def _parameters(functions: Functions) -> dict[str, dict[str, Any]]:
    """The parameters of each function by its name, those that it requires first."""
    found: dict[str, dict[str, Any]] = {}
    for each in functions:
        schema = each["function"].get("parameters") or {}
        known = schema.get("properties") or {}
        first = [key for key in schema.get("required") or () if key in known]
        found[each["function"]["name"]] = {key: known[key] for key in (*first, *known)}
    return found


def _offered(name: str, functions: Functions) -> bool:
    return name in _parameters(functions) if functions else "search" in name.lower().replace("research", "")


def _written(body: str, functions: Functions, *, nameless: bool) -> Iterator[tuple[str, Any]]:
    """Names and arguments as a text writes them. Raises one of `_UNREADABLE`."""
    head = (_XML_NAME if body.startswith("<") else _HEAD).match(body)
    if body[:1] in ("{", "["):
        try:
            yield from _named(body, functions if nameless else ())
        except ValueError:
            if body[0] == "{":
                raise
            yield from _python(body)
    elif not head:
        return
    elif body.startswith("<") and body[head.end() :].lstrip()[:1] == "{":
        yield head[1], _DECODER.raw_decode(body[head.end() :].lstrip())[0]
    elif body.startswith("<") or "<arg_key>" in body:
        values = {(key or other).strip(): value for key, other, value in _PAIR.findall(body)}
        yield head[1], _typed(head[1], values, functions)
    elif body[head.end() : head.end() + 1] == "(":
        yield from _python(body)
    elif (brace := body.find("{", head.end(), head.end() + 200)) >= 0:
        inner = _escaped(body[brace:]) if body.startswith("call:") else body[brace:]
        yield head[1], _DECODER.raw_decode(inner)[0]


def _named(text: str, functions: Functions) -> Iterator[tuple[str, Any]]:
    """The calls in JSON objects, one behind the other or in a list."""
    at = 0
    while text[at : at + 1] in ("{", "["):
        found, at = _DECODER.raw_decode(text, at)
        for each in found if isinstance(found, list) else [found]:
            inner = each.get("function")
            inner = inner if isinstance(inner, Mapping) else each
            name = next((inner[key] for key in ("name", "function", "tool", "action") if key in inner), "")
            rest = {key: value for key, value in inner.items() if value is not name and key not in ("type", "id")}
            arguments = next((rest[key] for key in _ARGUMENTS if key in rest), rest)
            only = next(iter(_parameters(functions)), "") if len(functions) == 1 else ""
            if not name and only and next(iter(_parameters(functions)[only]), "") in inner:
                name = only
            if isinstance(name, str) and name:
                yield name, arguments
        at += len(text[at : at + 9]) - len(text[at : at + 9].lstrip(" \n\t,;"))


def _typed(name: str, values: Mapping[str, str], functions: Functions) -> dict[str, Any]:
    """Values that are written without quotation marks: those of parameters that are no strings are read as JSON."""
    known, made = _parameters(functions).get(name, {}), dict[str, Any](values)
    for key, value in values.items():
        schema = known.get(key) or {}
        if "string" not in str(schema.get("type") or schema.get("anyOf") or "string"):
            with suppress(ValueError, RecursionError):  # the tool tells what it wants
                made[key] = _DECODER.decode(value.strip())
    return made


def _escaped(text: str) -> str:
    """Gemma's object as JSON: its keys have no quotation marks, and its strings have marks of their own."""
    parts = text.split("<escape>" if "<escape>" in text else '<|"|>')
    return "".join(json.dumps(p) if at % 2 else _BARE_KEY.sub(r'\1"\2":', p) for at, p in enumerate(parts))


def _python(code: str) -> Iterator[tuple[str, Any]]:
    """The calls in a line of Python, or in a list, with values that are literals."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(code)
    for statement in tree.body:
        value = getattr(statement, "value", None)
        for node in value.elts if isinstance(value, ast.List | ast.Tuple) else [value]:
            call = node.args[0] if isinstance(node, ast.Call) and ast.unparse(node.func) == "print" else node
            if not isinstance(call, ast.Call):
                raise ValueError("it is no call")
            named = {each.arg or "": _literal(each.value) for each in call.keywords}
            yield ast.unparse(call.func), named or [_literal(each) for each in call.args]


def _literal(node: ast.expr) -> Any:
    return json.loads(node.id) if isinstance(node, ast.Name) else ast.literal_eval(node)
