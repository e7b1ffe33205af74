"""What environments share that run the code of others: time-outs, failures, and how many rollouts run at once."""

import asyncio
import inspect
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from medagent.agent import Agent, Job
from medagent.environment import AgentSettings, Environment
from medagent.errors import ConfigError, MedagentError, PolicyError
from medagent.policy import Session
from medagent.retrieval.batching import SearchBatcher
from medagent.tool_protocol import ToolProtocol
from medagent.training.rollouts.collection import in_daemon
from medagent.types import Rollout, StopReason, Turn


class EpisodeError(MedagentError):
    """An environment failed in a rollout. The cause is what it raised."""


class EpisodeEnvironment(Environment):
    """Its code may raise anything, or take more than `timeout_s` seconds: that rollout ends with `StopReason.ERROR`.

    `max_errors` such rollouts stop the run if none has succeeded since they began, and only a few others still run. At
    most `max_running` run at once.
    """

    timeout_s: float = 60.0
    max_errors: int = 5
    max_running: int = 512
    failed_in_a_row: int = 0
    succeeded_at: float = -math.inf

    def check(self, settings: AgentSettings) -> None:
        super().check(settings)
        if not isinstance(settings.protocol, ToolProtocol):
            raise ConfigError(
                f"agent.protocol: found {type(settings.protocol).__name__}, wanted medagent.tool_protocol.ToolProtocol,"
                f" as {type(self).__name__} speaks in messages and tool calls. Set it."
            )

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function gives, which is async or runs in a thread. EpisodeError where it fails or is too slow."""
        try:
            async with asyncio.timeout(self.timeout_s) as limit:
                given = await asyncio.wrap_future(in_daemon(lambda: function(*arguments), "environment"))
                return await given if inspect.isawaitable(given) else given
        except (Exception, SystemExit) as failure:
            why = f"took more than {self.timeout_s:g} s (timeout_s)" if limit.expired() else repr(failure)
            raise EpisodeError(f"{getattr(function, '__qualname__', function)}: {why}") from failure


@dataclass
class EpisodeAgent(Agent):
    """Rolls out in an `EpisodeEnvironment`; write `_play`."""

    environment: EpisodeEnvironment = field(kw_only=True)
    _running: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.max_running = self.environment.max_running

    @abstractmethod
    async def _play(self, job: Job, session: Session, on_turn: Callable[[Turn], None]) -> Rollout:
        """The graded rollout, whose error says how the environment failed."""

    async def _roll_out(
        self, job: Job, session: Session, batcher: SearchBatcher, on_turn: Callable[[Turn], None] | None = None
    ) -> Rollout:
        environment, began = self.environment, monotonic()
        self._running += 1
        try:
            rollout = await self._play(job, session, on_turn or (lambda turn: None))
        finally:
            self._running -= 1
        if rollout.stop_reason is not StopReason.ERROR:
            environment.failed_in_a_row, environment.succeeded_at = 0, monotonic()
        elif began >= environment.succeeded_at:
            environment.failed_in_a_row += 1
            # Failures may be quicker than successes, so others that still run are waited for.
            if environment.failed_in_a_row >= max(environment.max_errors, 4 * self._running):
                raise PolicyError(
                    f"stopped after {environment.failed_in_a_row} rollouts in a row whose environment failed "
                    "(max_errors). What ended is kept: run the same command again to go on. "
                    f"The last error: {rollout.error}"
                )
        return rollout
