"""The interface of an environment: it brings its questions, and agents whose rollouts carry what they earned."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property

from medagent.agent import Agent
from medagent.errors import ConfigError
from medagent.policy import Policy
from medagent.protocol import TagProtocol, TurnProtocol
from medagent.tool_protocol import ToolProtocol
from medagent.tools import McpServer
from medagent.tools.base import Tool
from medagent.tools.named import tools_of
from medagent.types import Limits, Question


@dataclass(frozen=True)
class AgentSettings:
    """The dialogue's rules; exported with the agent.

    `tools` are called beside the search: paths of typed functions such as "my_task.dose", MCP servers, or "read", which
    shows more of a document. "search" shows the model the filters of a search too.
    """

    protocol: TurnProtocol = field(default_factory=TagProtocol)
    limits: Limits = Limits()
    top_k: int = 3
    tools: tuple[str | McpServer, ...] = ()

    def __post_init__(self) -> None:
        """Let a protocol of tool calls offer the tools, which are made now; in tags, instructions tell of them."""
        schemas = [tool.schema for tool in self.made_tools]
        if schemas and isinstance(self.protocol, ToolProtocol):
            object.__setattr__(self, "protocol", self.protocol.with_tools(schemas))

    @cached_property
    def made_tools(self) -> tuple[Tool, ...]:
        """The tools, ready to be called. `ToolError` where one cannot be made."""
        return tools_of(self.tools)


class Environment(ABC):
    """Takes the place of benchmark, retriever and reward. It is a benchmark too.

    Grading takes a question without a gold answer for right where its rollout is a `success`.
    """

    @abstractmethod
    def questions(self) -> list[Question]:
        """All questions, in a fixed order. Equal ids ask for the same task, also in another process."""

    def check(self, settings: AgentSettings) -> None:
        """Raise ConfigError for settings that do not fit or have no effect. Called before a model is loaded."""
        for name in ("top_k", "tools"):
            if (found := getattr(settings, name)) != getattr(AgentSettings, name):
                raise ConfigError(
                    f"agent.{name}: found {found}, and {type(self).__name__} decides what its searches show. Leave it "
                    "out."
                )

    @abstractmethod
    def agent(self, policy: Policy, settings: AgentSettings) -> Agent:
        """An agent whose rollouts carry their reward: of each turn, of the outcome, and whether it was a success.

        A rollout whose environment failed ends with `StopReason.ERROR` and says why. It has no loss.
        """
