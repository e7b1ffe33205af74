"""Tools: search and read over the corpus, typed functions, and MCP servers. Each command imports this module."""

from dataclasses import dataclass


@dataclass(frozen=True)
class McpServer:
    """The tools of an MCP server.

    `mcp` is the command line that starts it, such as "python -m server", or the address of a running one. `allow`
    names the tools that the agent gets, by default all. A call may take `timeout_s` seconds.
    """

    mcp: str
    allow: tuple[str, ...] = ()
    timeout_s: float = 30.0
