"""The interface of an environment: it brings its questions, and agents whose rollouts carry what they earned."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from medagent.agent import Agent
from medagent.errors import ConfigError
from medagent.policy import Policy
from medagent.protocol import TagProtocol, TurnProtocol
from medagent.types import Limits, Question


@dataclass(frozen=True)
class AgentSettings:
    """The dialogue's rules; exported with the agent."""

    protocol: TurnProtocol = field(default_factory=TagProtocol)
    limits: Limits = Limits()
    top_k: int = 3


class Environment(ABC):
    """Takes the place of benchmark, retriever and reward. It is a benchmark too.

    Grading takes a question without a gold answer for right where its rollout is a `success`.
    """

    @abstractmethod
    def questions(self) -> list[Question]:
        """All questions, in a fixed order. Equal ids ask for the same task, also in another process."""

    def check(self, settings: AgentSettings) -> None:
        """Raise ConfigError for settings that do not fit or have no effect. Called before a model is loaded."""
        if settings.top_k != AgentSettings.top_k:
            raise ConfigError(
                f"agent.top_k: found {settings.top_k}, and {type(self).__name__} decides what its searches show. Leave "
                "it out."
            )

    @abstractmethod
    def agent(self, policy: Policy, settings: AgentSettings) -> Agent:
        """An agent whose rollouts carry their reward: of each turn, of the outcome, and whether it was a success.

        A rollout whose environment failed ends with `StopReason.ERROR` and says why. It has no loss.
        """
