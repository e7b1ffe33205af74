"""Tools as settings name them."""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from medagent.retrieval.errors import ToolError
from medagent.tools import McpServer
from medagent.tools.base import Tool
from medagent.tools.corpus import READ, SEARCH
from medagent.tools.functions import FunctionTool
from medagent.tools.mcp_client import tools_of_server

GivenTool = str | McpServer | Mapping[str, Any] | Tool | Callable[..., Any]


def tools_of(given: Sequence[GivenTool]) -> tuple[Tool, ...]:
    """The tools that settings name: see `AgentSettings.tools`. Objects and functions are taken as they are.

    Raises:
        ToolError: one cannot be made, or two have one name.
    """
    made = list[Tool]()
    for each in given:
        server = McpServer(**{**each, "allow": tuple(each.get("allow", ()))}) if isinstance(each, Mapping) else each
        made += tools_of_server(server) if isinstance(server, McpServer) else [_made(server)]
    names = [tool.name.lower() for tool in made]
    if len(set(names)) < len(names):
        raise ToolError(
            f"tools: found {', '.join(names)}, wanted names that differ. Rename a function, or leave out a server's "
            "tool with allow."
        )
    return tuple(made)


def settings_of(given: Sequence[str | dict[str, Any]]) -> list[str | dict[str, Any]]:
    """The settings that gave some tools, each once: a server gives several."""
    return list({json.dumps(each): each for each in given}.values())


def _made(given: str | Tool | Callable[..., Any]) -> Tool:
    found: Any = {"search": SEARCH, "read": READ}.get(given, given) if isinstance(given, str) else given
    if isinstance(found, str):
        module, _, name = found.rpartition(".")
        try:
            found = getattr(import_module(module), name)
        except Exception as error:  # whatever a module of the user's does when it is imported
            raise ToolError(
                f"tool {given!r}: cannot be made ({error}). Wanted search, read, or a function in a module that Python "
                "finds from here, such as my_task.dose."
            ) from error
    made = FunctionTool(found) if inspect.isfunction(found) else found
    if not isinstance(made, Tool):
        raise ToolError(f"tool {given!r}: found a {type(found).__name__}, wanted a function with type hints.")
    made.given = given if isinstance(given, str) else made.given or made.name
    return made
