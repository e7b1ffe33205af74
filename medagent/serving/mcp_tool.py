"""The agent for assistants, over the Model Context Protocol: a tool `ask`, at /mcp of the service."""

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import ValidationError
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from medagent.errors import MedagentError
from medagent.protocol import NOT_ADVICE
from medagent.retrieval.errors import RetrievalError, needs_package
from medagent.serving.admission import Answering
from medagent.serving.forms import AnswerForm
from medagent.serving.openai_form import content_of
from medagent.serving.responses import failed, unless_gone, whole
from medagent.serving.schemas import SHAPES, AnswerRequest, AskRequest

PATH = "/mcp"
DESCRIPTION = (
    "Answers a medical question from a corpus, by searching it. The answer cites passages, and a verdict says whether "
    "they state it. With options the question is multiple choice. Earlier questions of the conversation complete one "
    f"such as 'How is it treated?'. {NOT_ADVICE}"
)


@dataclass
class AskSessions:
    """The sessions of MCP clients: an ASGI app while they `run`, which may be more than once."""

    new_manager: Callable[[], Any]
    manager: Any = None

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Let clients open sessions until the end of the context."""
        self.manager = self.new_manager()
        async with self.manager.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.manager.asgi_app(scope, receive, send)


def ask_sessions(
    name: str, begin: Callable[[AnswerRequest, Request], Awaitable[tuple[AnswerForm, Answering]]]
) -> AskSessions:
    """The sessions that offer the tool; `begin` begins to answer.

    Raises:
        RetrievalError: the package is not installed.
    """
    with needs_package("the MCP tool", "mcp", "mcp"):
        from mcp import types
        from mcp.server.lowlevel import Server
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
        from mcp.shared.exceptions import MCPError
    tool = types.Tool(
        name="ask",
        title="Ask the medical search agent",
        description=DESCRIPTION,
        input_schema=AskRequest.model_json_schema(),
        output_schema=SHAPES["answer"],
        annotations=types.ToolAnnotations(read_only_hint=True, open_world_hint=False),
    )

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[tool])

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        if params.name != tool.name:
            raise MCPError(types.INVALID_PARAMS, f"no tool {params.name[:100]!r}, wanted {tool.name!r}")
        try:
            asked = AskRequest.model_validate(params.arguments or {})
            begun = await begin(AnswerRequest(**asked.model_dump()), context.request)
            answer = (await unless_gone(context.request, whole(*begun)))["answer"]
        except ValidationError as wrong:
            first = wrong.errors()[0]
            text, told = f"{'.'.join(map(str, first['loc']))}: {first['msg']}", None
        except (MedagentError, RetrievalError, sqlite3.DatabaseError) as failure:
            text, told = str(failed(failure, context.request)), None
        else:
            text, told = content_of(answer), answer
        content = types.TextContent(type="text", text=text)
        return types.CallToolResult(content=[content], structured_content=told, is_error=told is None)

    server = Server[Any](name, instructions=DESCRIPTION, on_list_tools=list_tools, on_call_tool=call_tool)
    return AskSessions(partial(StreamableHTTPSessionManager, server))
