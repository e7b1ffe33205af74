"""Many people, one agent: questions are admitted, wait, run together, and end by an answer, a timeout, or their asker's leaving."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import InitVar, dataclass, field
from typing import Any

import numpy as np

from medagent.agent import Agent, Job
from medagent.answers import Answer, Steps, checked
from medagent.errors import ConfigError, MedagentError, PolicyError
from retrieval.desk import SearchDesk
from retrieval.errors import RetrievalError

SEARCH_RETRIES = 2  # somebody waits
USUAL_S = 10.0  # an answer's time before any was given


class OverloadedError(MedagentError):
    """Too many wait; `retry_after_s` says when there may be room."""

    def __init__(self, waiting: int, retry_after_s: int) -> None:
        super().__init__(f"{waiting} questions wait already. Try again in {retry_after_s} s.")
        self.retry_after_s = retry_after_s


class TooSlowError(MedagentError):
    """An answer took longer than is allowed."""


class TooLongError(MedagentError):
    """A question that leaves the agent no room to answer."""


@dataclass(frozen=True)
class Limits:
    """`max_running` questions are answered at once, `max_waiting` more may wait, each has `timeout_s` from its admission."""

    max_running: int = 64
    max_waiting: int = 256
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.max_running < 1 or self.max_waiting < 0 or self.timeout_s <= 0:
            raise ConfigError(
                f"serving: found max_running {self.max_running}, max_waiting {self.max_waiting} and timeout_s {self.timeout_s:g}, wanted 1 or more, 0 or more, and above 0."
            )


@dataclass
class _InUse:
    """An agent, the desk that its searches share, and how many it answers now."""

    agent: Agent
    search: SearchDesk
    answering: int = 0


@dataclass
class AnswerDesk:
    """Answers questions with one agent, which `replace` exchanges. `outcomes` counts how they ended, `durations_s` the last answers' times."""

    first: InitVar[Agent]
    limits: Limits = field(default_factory=Limits)
    outcomes: Counter[str] = field(default_factory=Counter)
    removed_citations: int = 0
    durations_s: deque[float] = field(default_factory=lambda: deque(maxlen=1000))
    running: int = 0
    waiting: int = 0
    replaced: int = 0
    _room: asyncio.Condition = field(default_factory=asyncio.Condition, repr=False)
    _current: _InUse = field(init=False, repr=False)

    def __post_init__(self, first: Agent) -> None:
        """One search desk for all, so that their searches share batches."""
        self._current = _InUse(first, first.search_desk(retries=SEARCH_RETRIES))

    @property
    def agent(self) -> Agent:
        """The agent that the next question gets."""
        return self._current.agent

    async def replace(self, agent: Agent) -> None:
        """Answer with another agent from now on; running answers end with the one they began with."""
        old, self._current = self._current, _InUse(agent, agent.search_desk(retries=SEARCH_RETRIES))
        self.replaced += 1
        if not old.answering:
            await old.agent.policy.disconnect()

    async def close(self) -> None:
        """Let go of the agent; nothing is answered any more."""
        await self._current.agent.policy.disconnect()

    @property
    def full(self) -> bool:
        """Whether a question would be refused now."""
        return self.running >= self.limits.max_running and self.waiting >= self.limits.max_waiting

    def admit(self, job: Job) -> None:
        """Raise `OverloadedError` where too many wait, `TooLongError` where the question alone fills the dialogue."""
        if self.full:
            self.outcomes["overloaded"] += 1
            raise OverloadedError(self.waiting, self.retry_after_s())
        agent = self.agent
        found, room = len(agent.protocol.encode_prompt(agent.policy.tokenizer, job.question)), agent.limits
        if found >= room.max_total_tokens:
            self.outcomes["too_long"] += 1
            raise TooLongError(
                f"the question (with its options and instructions) is {found:,} tokens long, and a whole dialogue of this agent may have {room.max_total_tokens:,}. Ask something shorter."
            )

    async def steps(self, job: Job) -> AsyncGenerator[tuple[str, dict[str, Any]]]:
        """("waiting", how many are ahead) where no place is free, ("turn", its event) for each turn as it ends, then ("answer", `Answer.to_json`).

        Leaving the iteration stops the rollout. Raises `OverloadedError` and `TooLongError` at once, `TooSlowError` when the time is over, and what the rollout raises.
        """
        self.admit(job)
        events: asyncio.Queue[tuple[str, dict[str, Any]] | None] = asyncio.Queue()
        if self.running + self.waiting >= self.limits.max_running:
            events.put_nowait(("waiting", {"ahead": self.waiting}))
        task = asyncio.create_task(self._answered(job, events))
        try:
            while (event := await events.get()) is not None:
                yield event
            yield "answer", (await task).to_json()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def answer(self, job: Job) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """All turns' events and the answer at once."""
        found = [event async for event in self.steps(job)]
        return [event for kind, event in found if kind == "turn"], found[-1][1]

    async def _answered(self, job: Job, events: asyncio.Queue[tuple[str, dict[str, Any]] | None]) -> Answer:
        """Wait for a place and roll out, in a task of its own; `events` ends with None however this does."""
        began, outcome, tell = time.monotonic(), "failed", Steps()
        try:
            async with asyncio.timeout(self.limits.timeout_s), self._place(), self._taken() as taken:
                rollout = await taken.agent.run(
                    job, on_turn=lambda turn: events.put_nowait(("turn", tell(turn))), desk=taken.search
                )
            self.durations_s.append(time.monotonic() - began)
            answer, outcome = checked(rollout), "answered"
            self.removed_citations += answer.removed_citations
            return answer
        except TimeoutError as error:
            outcome = "too_slow"
            raise TooSlowError(
                f"no answer within {self.limits.timeout_s:g} s. Ask again later, or ask something shorter."
            ) from error
        except asyncio.CancelledError:
            outcome = "left"
            raise
        except (MedagentError, RetrievalError):
            raise
        except (
            Exception
        ) as failure:  # an engine's own, such as memory that ran out: this is where it becomes one of ours
            raise PolicyError(f"the engine failed: {failure!r}") from failure
        finally:
            self.outcomes[outcome] += 1
            events.put_nowait(None)

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        self.waiting += 1
        try:
            async with self._room:
                await self._room.wait_for(lambda: self.running < self.limits.max_running)
                self.running += 1
        finally:
            self.waiting -= 1
        try:
            yield
        finally:
            self.running -= 1
            async with self._room:
                self._room.notify()

    @asynccontextmanager
    async def _taken(self) -> AsyncIterator[_InUse]:
        """The current agent, kept until this answer ends."""
        used = self._current
        used.answering += 1
        try:
            yield used
        finally:
            used.answering -= 1
            if used is not self._current and not used.answering:
                await used.agent.policy.disconnect()

    def retry_after_s(self) -> int:
        """When a place may be free: what waits now, at the pace of the last answers."""
        usual = sum(self.durations_s) / len(self.durations_s) if self.durations_s else USUAL_S
        return max(1, math.ceil(usual * (1 + self.waiting / self.limits.max_running)))

    def prometheus(self) -> str:
        """Counts and times in Prometheus's text format."""
        p50, p95 = np.quantile(np.array(self.durations_s or [0.0]), (0.5, 0.95))
        lines = [f'medagent_answers_total{{outcome="{name}"}} {count}' for name, count in sorted(self.outcomes.items())]
        values = {
            "running": float(self.running),
            "waiting": float(self.waiting),
            "removed_citations_total": float(self.removed_citations),
            "agents_replaced_total": float(self.replaced),
            "answer_seconds_p50": p50,
            "answer_seconds_p95": p95,
        }
        return "\n".join([*lines, *(f"medagent_{name} {value:g}" for name, value in values.items())]) + "\n"
