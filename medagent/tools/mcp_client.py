"""Tools of MCP servers, over the official SDK, which negotiates the revision: 2025-11-25 and 2026-07-28 are tested.

All that a server says is untrusted. A server that hangs, dies or answers nonsense gives an error result, and the next
call connects anew.
"""

import asyncio
import atexit
import json
import re
import shlex
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict
from functools import cache
from threading import Thread
from typing import Any, TypeVar

from medagent.retrieval.errors import ToolError, needs_package
from medagent.tool_calls import ToolResult
from medagent.tools import McpServer
from medagent.tools.base import CallContext, Tool

T = TypeVar("T")
NAME, PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,64}"), re.compile(r"[\w$#/.,+ -]{0,100}")
MAX_PAGES, MAX_SCHEMA = 20, 20_000  # of a server's list, and characters of what it says of a tool
PROBE_S = 5.0  # within which a server must list its tools after a call that failed
INVALID_PARAMS = -32602  # of JSON-RPC


@cache
def tools_of_server(server: McpServer) -> list[Tool]:
    """The tools of a server that are allowed, from a connection that stays open. There is one per process.

    Raises:
        ToolError: it cannot be reached, or lacks a tool of `allow`.
    """
    what = f"MCP server {server.mcp!r}"
    with needs_package(what, "mcp", "mcp", ToolError):
        connection = _Connection(server)
    waiting = asyncio.wait_for(connection.use(_listed), server.timeout_s)
    try:
        listed = {each.name: each for each in asyncio.run_coroutine_threadsafe(waiting, connection.loop).result()}
    except (ToolError, TimeoutError) as error:
        why = str(error) or f"it did not tell its tools within {server.timeout_s:g} s"
        raise ToolError(f"{what}: {why}. Check its command line or address.") from error
    missing = [name for name in server.allow if name not in listed]
    if missing or not listed:
        raise ToolError(f"{what}: found the tools {list(listed)}, wanted {missing or 'one or more'}. Change allow.")
    return [_McpTool(connection, listed[name]) for name in server.allow or listed]


async def _listed(client: Any) -> list[Any]:
    found, cursor = list[Any](), None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        found, cursor = [*found, *page.tools], page.next_cursor
        if not cursor:
            return found
    raise ToolError(f"its list of tools has more than {MAX_PAGES} pages")


class _McpTool(Tool):
    """A tool of a server. The parts of its schema that are not checked here are checked by the server."""

    def __init__(self, connection: "_Connection", listed: Any) -> None:
        from jsonschema import Draft202012Validator, SchemaError  # type: ignore[import-untyped]  # the SDK brings it

        self._connection, self.name, self.timeout_s = connection, listed.name, connection.server.timeout_s
        self.description, self.given = listed.description or "", connection.given
        size = len(json.dumps([listed.description, listed.input_schema]))
        try:
            Draft202012Validator.check_schema(listed.input_schema)
            wrong = "" if NAME.fullmatch(self.name) and size <= MAX_SCHEMA else f"{size:,} characters tell of it"
        except SchemaError as error:
            wrong = error.message[:200]
        if wrong:
            raise ToolError(
                f"MCP tool {self.name[:80]!r}: {wrong}. Wanted a name of letters, digits and _.-, a JSON schema, and "
                f"at most {MAX_SCHEMA:,} characters. Leave it out with allow."
            )
        named = {**listed.input_schema.get("definitions", {}), **listed.input_schema.get("$defs", {})}
        self.parameters = _shown(listed.input_schema, named)
        self._validator = Draft202012Validator(self.parameters)

    async def call(self, arguments: Mapping[str, Any], context: CallContext) -> ToolResult:
        if wrong := [f"{error.json_path}: {error.message[:300]}" for error in self._validator.iter_errors(arguments)]:
            raise ValueError("; ".join(wrong[:5]))
        asked = self._connection.use(lambda client: client.call_tool(self.name, dict(arguments)))
        try:
            found = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asked, self._connection.loop))
        except asyncio.CancelledError:
            self._connection.doubtful = True  # at once, as the SDK takes its time to cancel a request
            raise
        text = "\n".join(map(_text, found.content))
        if not text and found.structured_content is not None:
            text = json.dumps(found.structured_content, ensure_ascii=False)
        if found.is_error:
            raise ValueError(text)
        return self.result(arguments, text)


def _shown(schema: Any, definitions: Mapping[str, Any], depth: int = 8) -> dict[str, Any]:
    """The parts of a schema that a model needs. Texts other than descriptions are kept where they are plain words."""
    if not isinstance(schema, dict) or depth == 0:
        return {}
    if "$ref" in schema:
        return _shown(definitions.get(schema["$ref"].rpartition("/")[2]), definitions, depth - 1)
    made = {key: schema[key] for key in ("type", "description") if key in schema}
    made |= {key: schema[key] for key in ("enum", "required") if all(map(_is_plain, schema.get(key, [None])))}
    for key, each in schema.get("properties", {}).items():
        if _is_plain(key):
            made.setdefault("properties", {})[key] = _shown(each, definitions, depth - 1)
    if "items" in schema:
        made["items"] = _shown(schema["items"], definitions, depth - 1)
    kinds = [_shown(each, definitions, depth - 1) for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    return {**kinds[0], **made} if len(kinds) == 1 else {**made, "anyOf": kinds} if kinds else made


def _is_plain(value: object) -> bool:
    return isinstance(value, int | float) if not isinstance(value, str) else bool(PLAIN.fullmatch(value))


def _text(content: Any) -> str:
    """A block of a result as text. What is none is named with its size."""
    held = getattr(content, "resource", content)
    if isinstance(text := getattr(held, "text", None), str):
        return text
    data = getattr(held, "data", None) or getattr(held, "blob", None)
    kind = getattr(held, "mime_type", None) or content.type
    return f"({kind}, {len(data) * 3 // 4:,} bytes, not shown)" if data else f"{kind} {getattr(held, 'uri', '')}"


class _Connection:
    """A connection with an event loop of its own, as each batch of rollouts has another loop."""

    def __init__(self, server: McpServer) -> None:
        from mcp import Client, StdioServerParameters

        words = shlex.split(server.mcp) if server.mcp.count('"') % 2 == server.mcp.count("'") % 2 == 0 else []
        if not words:
            raise ToolError(
                f"mcp: found {server.mcp!r}, wanted a command line or an address, such as python -m server."
            )
        url = server.mcp.startswith(("http://", "https://"))
        self.server, self.loop = server, asyncio.new_event_loop()
        self.given = {**asdict(server), "allow": list(server.allow)}  # as JSON has it
        self._client: Callable[[], Any] = lambda: Client(
            server.mcp if url else StdioServerParameters(command=words[0], args=words[1:])
        )
        self._held: asyncio.Task[None] | None = None
        self._open: Any = None
        self.doubtful = False  # a call has failed since the server last answered
        self._connecting = asyncio.Lock()
        Thread(target=self.loop.run_forever, name=f"mcp {words[0]}", daemon=True).start()
        atexit.register(self._close)

    async def use(self, ask: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
        """What the server answers; to be run on `loop`. `ToolError` where it does not."""
        client = await self._connected()
        try:
            return await ask(client)
        except BaseException as error:
            self.doubtful = True
            if getattr(error, "code", 0) == INVALID_PARAMS:
                raise ValueError(str(error)) from error
            if isinstance(error, Exception) and not isinstance(error, ToolError):
                raise ToolError(f"{type(error).__name__}: {str(error)[:500]}") from error
            raise

    async def _connected(self) -> Any:
        async with self._connecting:
            if self._held and not self._held.done() and self.doubtful:
                try:
                    limit_s = min(PROBE_S, self.server.timeout_s / 3)
                    await asyncio.wait_for(self._open.list_tools(cache_mode="bypass"), limit_s)
                except Exception:
                    self._held.cancel()
                    self._held = None
            self.doubtful = False
            if self._held is None or self._held.done():
                ready: asyncio.Future[Any] = self.loop.create_future()
                self._held = self.loop.create_task(self._hold(ready))
                try:
                    self._open = await ready
                except BaseException:
                    self._held.cancel()
                    raise
            return self._open

    async def _hold(self, ready: asyncio.Future[Any]) -> None:
        """Keep a client open. It must be closed by the task that opened it."""
        try:
            async with self._client() as client:
                ready.set_result(client)
                await asyncio.Event().wait()
        except Exception as error:
            cause: BaseException = error
            while isinstance(cause, BaseExceptionGroup):
                cause = cause.exceptions[0]
            if not ready.done():
                ready.set_exception(ToolError(f"it cannot be reached ({type(cause).__name__}: {str(cause)[:500]})"))

    def _close(self) -> None:
        """End the servers that it started, before the process does."""

        async def end() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.wait(others, timeout=5) if others else None

        asyncio.run_coroutine_threadsafe(end(), self.loop).result(timeout=10)
