"""Admission of many people's questions to one agent: a question is admitted, waits, and runs beside others."""

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import InitVar, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np

from medagent.agent import Agent, Job
from medagent.errors import EndpointError, MedagentError, PolicyError
from medagent.evidence.answers import Answer, Steps, answer_job
from medagent.evidence.check import EvidenceCheck
from medagent.policies.chat_endpoint import RemotePolicy
from medagent.policies.http_endpoint import USUAL_REST_S
from medagent.retrieval.batching import SearchBatcher
from medagent.retrieval.errors import RetrievalError
from medagent.retrieval.filters import NO_FILTER, Filter
from medagent.retrieval.passages import Hit
from medagent.serving.errors import OverloadedError, TooLongError, TooSlowError
from medagent.serving.settings import AdmissionLimits

SEARCH_RETRIES = 2  # somebody waits
USUAL_S = 10.0  # an answer's time before any was given
PATIENCE_S = 5.0  # the longest wait at an endpoint's limit


@dataclass(frozen=True)
class Event:
    """One step of a question. `data` is `{"ahead": n}`, a turn's event of `Steps`, or `Answer.to_json`.

    Streams begin with an `id`, and end with an `error` in OpenAI's shape where the answer fails.
    """

    kind: Literal["id", "waiting", "turn", "answer", "error"]
    data: dict[str, Any]


@dataclass
class _InUse:
    agent: Agent
    search: SearchBatcher
    answering: int = 0


@dataclass
class Answering:
    """An answer that is being made."""

    task: asyncio.Task[Answer]
    queue: asyncio.Queue[Event | None]

    @staticmethod
    def of(answer: Answer) -> "Answering":
        """One that is made already, without the agent."""
        queue = asyncio.Queue[Event | None]()
        queue.put_nowait(None)
        return Answering(asyncio.create_task(asyncio.sleep(0, answer)), queue)

    async def events(self) -> AsyncGenerator[Event]:
        """The steps of the question; leaving the iteration stops the rollout.

        Raises `TooSlowError` when the time is over, and what the rollout raises.
        """
        try:
            while (event := await self.queue.get()) is not None:
                yield event
            yield Event("answer", (await self.task).to_json())
        finally:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)


@dataclass
class Admission:
    """Answers questions with one agent, which `replace` exchanges; counts how they ended and what the verdicts were.

    `keep` get the record of each answer, in a thread, before the asker gets the answer.
    """

    first: InitVar[Agent]
    limits: AdmissionLimits = field(default_factory=AdmissionLimits)
    check: EvidenceCheck = field(default_factory=EvidenceCheck)
    keep: Sequence[Callable[[dict[str, Any]], None]] = ()
    outcomes: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    removed_citations: int = 0
    durations_s: deque[float] = field(default_factory=lambda: deque(maxlen=1000))
    replaced: int = 0
    _asking: Counter[str] = field(default_factory=Counter, repr=False)
    _current: _InUse = field(init=False, repr=False)
    _places: asyncio.Semaphore = field(init=False, repr=False)

    def __post_init__(self, first: Agent) -> None:
        """Searches share the batches of one batcher."""
        self._places = asyncio.Semaphore(self.limits.max_running)
        if isinstance(first.policy, RemotePolicy):  # which is to give up soon
            endpoint = first.policy.endpoint
            endpoint.retries, endpoint.patience_s = min(1, endpoint.retries), PATIENCE_S
        self._current = _InUse(first, first.search_batcher(retries=SEARCH_RETRIES))

    @property
    def agent(self) -> Agent:
        """The agent that the next question gets."""
        return self._current.agent

    async def search(self, query: str, top_k: int) -> list[Hit]:
        """Search the agent's corpus, in the batches of its answers."""
        return await self._current.search.search(query, top_k=top_k)

    async def replace(self, agent: Agent) -> None:
        """Answer with another agent from now on; running answers end with the one they began with."""
        old, self._current = self._current, _InUse(agent, agent.search_batcher(retries=SEARCH_RETRIES))
        self.replaced += 1
        if not old.answering:
            await old.agent.policy.disconnect()

    async def close(self) -> None:
        """Release the agent. Nothing is answered after that."""
        await self._current.agent.policy.disconnect()

    @property
    def running(self) -> int:
        """How many questions have a place."""
        return min(self._asking.total(), self.limits.max_running)

    @property
    def waiting(self) -> int:
        """How many questions are admitted and wait for a place."""
        return self._asking.total() - self.running

    @property
    def full(self) -> bool:
        """Whether a question would be refused now."""
        return self.running >= self.limits.max_running and self.waiting >= self.limits.max_waiting

    def start(
        self,
        job: Job,
        *,
        conversation: Sequence[str] = (),
        history: Sequence[str] = (),
        asker: str = "",
        where: Filter = NO_FILTER,
    ) -> Answering:
        """Begin to answer, at once or when a place is free, in the order of asking.

        `conversation` has the questions as typed; the job's is the last of them, completed. `history` is as in
        `answer_job`. `asker` is the token's digest, if any.

        Raises:
            OverloadedError: too many questions wait, or too many of this asker.
            TooLongError: the question alone fills the dialogue.
        """
        self.refuse_too_many(asker)
        agent = self.agent
        found, room = len(agent.protocol.encode_prompt(agent.policy.tokenizer, job.question)), agent.limits
        if found >= room.max_total_tokens:
            self.outcomes["too_long"] += 1
            raise TooLongError(
                f"the question (with its options and instructions) is {found:,} tokens long, and a whole dialogue of "
                f"this agent may have {room.max_total_tokens:,}. Ask something shorter."
            )
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        if self.running == self.limits.max_running:
            events.put_nowait(Event("waiting", {"ahead": self.waiting}))
        task = asyncio.create_task(self._answered(job, events, conversation, history, where))
        self._asking[asker] += 1

        def ended(task: asyncio.Task[Answer]) -> None:  # also where it is cancelled before its first step
            failure = None if task.cancelled() else task.exception()
            late = isinstance(failure, TooSlowError)
            outcome = "left" if task.cancelled() else "too_slow" if late else "failed" if failure else "answered"
            self.outcomes[outcome] += 1
            self._asking -= Counter([asker])  # which drops those that ask nothing
            events.put_nowait(None)

        task.add_done_callback(ended)
        return Answering(task, events)

    async def _answered(
        self,
        job: Job,
        events: asyncio.Queue[Event | None],
        conversation: Sequence[str],
        history: Sequence[str],
        where: Filter,
    ) -> Answer:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self.limits.timeout_s):
                async with self._places, self._taken() as taken:
                    tell = Steps(taken.agent.protocol, taken.agent.retriever)
                    answer = await answer_job(
                        taken.agent,
                        job,
                        check=self.check,
                        search=taken.search.within(where),
                        history=history,
                        on_turn=lambda turn: events.put_nowait(Event("turn", tell(turn))),
                    )
        except TimeoutError as error:
            policy, told = self.agent.policy, f"no answer within {self.limits.timeout_s:g} s."
            if isinstance(policy, RemotePolicy):
                policy.endpoint.works = False
                failed, rest_s = f"endpoint {policy.url}: {told}", round(USUAL_REST_S)
                raise EndpointError(failed, host=policy.endpoint.host, retry_after_s=rest_s) from error
            raise TooSlowError(f"{told} Ask again later, or ask something shorter.") from error
        except (MedagentError, RetrievalError):
            raise
        except Exception as failure:  # an engine's own error, such as no memory left, becomes one of the project's
            raise PolicyError(f"the engine failed: {failure!r}") from failure
        self.durations_s.append(time.monotonic() - began)
        self.removed_citations += answer.removed_citations
        self.verdicts[answer.verdict.kind.value] += 1
        question = job.question
        if conversation and conversation[-1] != question.text:
            answer = replace(answer, rewritten_question=question.text)
        record = {
            "id": question.id,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "question": question.text,
            "options": list(question.options),
            "conversation": list(conversation),
            "history": list(history),
            "where": str(where),
            "seed": job.seed,
            "temperature": job.temperature,
            "made_with": taken.agent.made_with,
            "turns": tell.turns,
            "answer": answer.to_json(),
        }
        for keep in self.keep:
            await asyncio.to_thread(keep, record)
        return answer

    def refuse_too_many(self, asker: str = "") -> None:
        """Raise `OverloadedError` where `start` would; for work that comes before it."""
        own = self._asking[asker] if asker else 0
        if self.full or own >= self.limits.max_per_key:
            self.outcomes["overloaded"] += 1
            wait_s = self.retry_after_s()
            limit = f"{own} questions of this token are not answered yet, which is its limit."
            told = f"{self.waiting} questions wait." if self.full else limit
            raise OverloadedError(f"{told} Try again in {wait_s} s.", retry_after_s=wait_s)

    @asynccontextmanager
    async def _taken(self) -> AsyncIterator[_InUse]:
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
        lines += [f'medagent_verdicts_total{{kind="{name}"}} {count}' for name, count in sorted(self.verdicts.items())]
        values = {
            "running": float(self.running),
            "waiting": float(self.waiting),
            "removed_citations_total": float(self.removed_citations),
            "agents_replaced_total": float(self.replaced),
            "answer_seconds_p50": p50,
            "answer_seconds_p95": p95,
        }
        return "\n".join([*lines, *(f"medagent_{name} {value:g}" for name, value in values.items())]) + "\n"
