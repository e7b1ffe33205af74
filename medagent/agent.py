"""The one multi-turn loop, which training, evaluation, the command line and serving share.

read the question -> [ sample a turn -> search -> read the passages ]* -> answer, or a limit
"""

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import Any

from medagent.errors import EndpointError, MedagentError, PolicyError
from medagent.pieces import Piece, encode, encode_as_one
from medagent.plain_protocol import PlainProtocol
from medagent.policy import Policy, Session, TurnStop
from medagent.protocol import TagProtocol, TurnProtocol
from medagent.retrieval.batching import SearchBatcher, SearchStats
from medagent.retrieval.errors import RetrievalError, RetrieverUnavailableError
from medagent.retrieval.passages import Hit, Passage
from medagent.retrieval.retriever import Retriever
from medagent.tool_calls import ToolCall, ToolResult, searched
from medagent.tools.base import CallContext, Tool, routed, run_calls
from medagent.tools.corpus import SEARCH
from medagent.tracing import span
from medagent.types import Limits, Question, Rollout, StopReason, Turn, rollout_seed
from medagent.untrusted_text import harmless, harmless_passages, harmless_question

AGENT = "medagent"  # in traces


@dataclass(frozen=True)
class GivenSearch:
    """A first turn that the environment writes: a search for `query`, which `hits` answer, else the retriever.

    With `only`, later searches show the same passages, so they are all that the policy reads.
    """

    query: str
    hits: tuple[Hit, ...] | None = None
    only: bool = True


@dataclass(frozen=True)
class Job:
    """A question to roll out. Equal seeds sample equal rollouts.

    `given` is a search that the environment writes before the policy's first turn. `force_search` opens that turn as a
    search. `force_answer` opens it as an answer, and the turn is then the last. Tokens that the environment wrote are
    masked in training and have log-prob 0.

    `withheld` names passages whose documents no search shows, as if the index lacked them. `planted` passages stand
    before the results of the first search.
    """

    question: Question
    seed: int = 0
    temperature: float = 1.0
    policy_version: int = 0
    sample: int = 0
    force_search: bool = False
    force_answer: bool = False
    given: GivenSearch | None = None
    withheld: frozenset[str] = frozenset()
    planted: tuple[Passage, ...] = ()

    def opening(self, protocol: TurnProtocol) -> str:
        """The text that opens the policy's first turn; empty if the policy opens it."""
        return protocol.answer.start if self.force_answer else protocol.search.start if self.force_search else ""


@dataclass
class Agent:
    """A policy, a retriever, and the rules of their dialogue.

    `trained`: the policy learnt to follow this protocol's prompt, so controls of evaluation keep it. `made_with` is
    for records of its answers. `tools` may be called beside the search. At most `max_running` rollouts run at once.

    >>> rollouts = Agent(policy, retriever).run_all([Job(question)])     # doctest: +SKIP
    """

    policy: Policy
    retriever: Retriever
    protocol: TurnProtocol = field(default_factory=TagProtocol)
    limits: Limits = field(default_factory=Limits)
    top_k: int = 3
    search_stats: SearchStats = field(default_factory=SearchStats)
    trained: bool = True
    made_with: Mapping[str, object] = field(default_factory=dict)
    tools: tuple[Tool, ...] = ()
    max_running: int = 2**31

    def run_all(
        self, jobs: Sequence[Job], *, max_open: int = 512, on_done: Callable[[Rollout], None] | None = None
    ) -> list[Rollout]:
        """Roll out all jobs, at most `max_open` at once, and return the rollouts in the jobs' order.

        `on_done` gets each as soon as it ends. Batches of `max_open` run one after the other, so equal calls give equal
        batches. Do not call it from a running event loop.
        """

        async def run_one(job: Job, session: Session, batcher: SearchBatcher) -> Rollout:
            with closing(session):
                rollout = await self._traced(job, session, batcher)
            if on_done:
                on_done(rollout)
            return rollout

        async def run_batch(batch: Sequence[Job]) -> list[Rollout]:
            batcher = self.search_batcher()
            sessions = [self._session(job) for job in batch]
            tasks = [
                asyncio.create_task(run_one(job, session, batcher))
                for job, session in zip(batch, sessions, strict=True)
            ]
            try:
                return await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for session in sessions:
                    session.close()
                await self.policy.disconnect()

        rollouts, max_open = list[Rollout](), min(max_open, self.max_running)
        for start in range(0, len(jobs), max_open):
            rollouts += asyncio.run(run_batch(jobs[start : start + max_open]))
        return rollouts

    def stream(
        self, jobs: Sequence[Job], *, max_open: int, on_done: Callable[[Job, Rollout], None], max_errors: int = 5
    ) -> None:
        """Roll out all jobs, `max_open` at once without a barrier.

        As soon as one ends, `on_done` gets it and the next begins. A job whose endpoint or search fails for good ends
        with `StopReason.ERROR`. `max_errors` in a row raise `PolicyError`: no job was answered since each first failed.
        Any other failure stops the rest at once. Do not call it from a running event loop.
        """
        errors, answered_at = 0, -math.inf

        async def work(waiting: Iterator[Job], batcher: SearchBatcher) -> None:
            nonlocal errors, answered_at
            last: Session | None = None
            try:
                for job in waiting:
                    session = self._session(job)  # before the last closes: a policy in lockstep waits for open ones
                    if last:
                        last.close()
                    last, turns = session, list[Turn]()
                    try:
                        rollout = await self._traced(job, session, batcher, on_turn=turns.append)
                        errors, answered_at = 0, monotonic()
                    except (EndpointError, RetrieverUnavailableError) as error:
                        rollout = Rollout(job.question, (), tuple(turns), StopReason.ERROR, sample=job.sample)
                        rollout = replace(rollout, error=" ".join(str(error).split()))
                        errors += getattr(error, "since", math.inf) > answered_at
                    on_done(job, rollout)
                    if errors >= max_errors:
                        raise PolicyError(
                            f"stopped after {errors} errors in a row (max_errors). What was answered is kept: run the "
                            f"same command again to go on. The last error: {rollout.error}"
                        )
            finally:
                if last:
                    last.close()

        async def run() -> None:
            batcher, waiting = self.search_batcher(), iter(jobs)
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(max_open, self.max_running, len(jobs))):
                        group.create_task(work(waiting, batcher))
            except* (MedagentError, RetrievalError) as failures:
                raise failures.exceptions[0] from None
            finally:
                await self.policy.disconnect()

        asyncio.run(run())

    async def run(
        self, job: Job, *, on_turn: Callable[[Turn], None] | None = None, batcher: SearchBatcher | None = None
    ) -> Rollout:
        """Roll out one job, telling `on_turn` of each turn as it ends. Callers that share a `batcher` share batches."""
        with closing(self._session(job)) as session:
            return await self._traced(job, session, batcher or self.search_batcher(), on_turn)

    def _session(self, job: Job) -> Session:
        blocks = self.protocol.turn_ends(self.policy.tokenizer)

        def begin(context: int) -> Session:
            seed = rollout_seed(job.seed, iteration=0, question_id="", sample=context) if context else job.seed
            return self.policy.open(seed=seed, temperature=job.temperature, blocks=blocks)

        return self.protocol.session(self.policy.tokenizer, begin)

    def search_batcher(self, *, retries: int = 5) -> SearchBatcher:
        """A batcher for this agent's searches; it belongs to one event loop."""
        return SearchBatcher(self.retriever, top_k=self.top_k, retries=retries, stats=self.search_stats)

    async def _traced(
        self, job: Job, session: Session, batcher: SearchBatcher, on_turn: Callable[[Turn], None] | None = None
    ) -> Rollout:
        with span("invoke_agent", AGENT, agent__name=AGENT, conversation__id=f"{job.question.id}/{job.sample}") as made:
            rollout = await self._roll_out(job, session, batcher, on_turn)
            made.set_attribute("gen_ai.usage.output_tokens", rollout.num_action_tokens)
            made.set_attribute("medagent.stop_reason", rollout.stop_reason.value)
            return rollout

    async def _roll_out(
        self, job: Job, session: Session, batcher: SearchBatcher, on_turn: Callable[[Turn], None] | None = None
    ) -> Rollout:
        tokenizer, limits = self.policy.tokenizer, self.limits
        prompt_ids, turns = await self._beginning(job, batcher)
        session.append(list(prompt_ids))
        total = len(prompt_ids)
        if turns:
            session.append([*turns[0].token_ids, *turns[0].observation_ids])
            total += len(turns[0].token_ids) + len(turns[0].observation_ids)
            if on_turn:
                on_turn(turns[0])
        stop = StopReason.MAX_TURNS
        first, opening = len(turns), job.opening(self.protocol)
        for number in range(first, first + 1 if job.force_answer else limits.max_turns):
            written = opening if number == first else ""  # what the environment writes of this turn
            if written and number == 0:
                written = self.protocol.rest_of_first_turn(tokenizer, written)
            forced = encode(tokenizer, [Piece(written)]) if written else []
            room = min(limits.max_turn_tokens, limits.max_total_tokens - total - len(forced))
            if room < 1:
                stop = StopReason.MAX_TOTAL_TOKENS
                if not turns:
                    prompt_ids = prompt_ids[: limits.max_total_tokens]  # no model reads more
                break
            session.append(forced)
            sampled = await session.sample(max_tokens=room)
            said = written + self.protocol.without_end(tokenizer, sampled.text)
            text = self.protocol.opened(tokenizer, number) + said
            parsed = self.protocol.read(tokenizer, text)
            token_ids = (*forced, *sampled.token_ids)
            logprobs = ((0.0,) * len(forced)) + sampled.logprobs
            total += len(token_ids)
            # The last turn's calls are never run, so they count as none.
            seen = harmless_passages(tokenizer, [hit.passage for each in turns for hit in each.hits])
            answer = parsed.answer and self.protocol.written_answer(parsed.answer, seen, job.question)
            turn = Turn(token_ids, logprobs, text, None, answer, forced_prefix=len(forced))
            quoted = answer != parsed.answer
            turn = replace(turn, usage=sampled.usage, quoted=quoted, context_ids=sampled.context_ids)
            by_model = sampled.stop is TurnStop.END_OF_TEXT and self.protocol.ended_by(self.trained)
            calls = parsed.calls or routed(parsed.asked, self.tools)
            goes_on = bool(calls) and (by_model or sampled.stop is TurnStop.TAG)
            if goes_on and number + 1 < limits.max_turns:
                results = await self._results(job, calls, turns, batcher)
                ids, shown = self.protocol.encode_results(
                    tokenizer,
                    results,
                    first_number=self.protocol.num_numbers(seen) + 1,
                    max_tokens=limits.max_observation_tokens,
                    turn=sampled,
                )
                total += len(ids)
                session.append(ids)
                hits = tuple(hit for each, count in zip(results, shown, strict=True) for hit in each.hits[:count])
                turn = replace(turn, query=searched(calls), hits=hits, observation_ids=tuple(ids), calls=calls)
            turns.append(turn)
            if on_turn:
                on_turn(turn)
            if goes_on:
                continue
            ended = StopReason.ANSWERED if answer is not None else StopReason.MALFORMED
            stop = cut_by(sampled.stop, room, limits) or ended
            break
        rollout = Rollout(job.question, tuple(prompt_ids), tuple(turns), stop, job.policy_version, job.sample)
        return replace(rollout, error="refused by the endpoint's content filter") if stop.failed else rollout

    async def _beginning(self, job: Job, batcher: SearchBatcher) -> tuple[list[int], list[Turn]]:
        """The prompt, and the turn of a search that is given."""
        tokenizer = self.policy.tokenizer
        question, given = harmless_question(tokenizer, job.question), job.given
        if given is None:
            return self.protocol.encode_prompt(tokenizer, question), []
        if not isinstance(self.protocol, PlainProtocol):
            return self.protocol.encode_prompt(tokenizer, question), [await self._given_turn(job, given, batcher)]
        query, hits = await self._given_hits(job, given, batcher)
        ids, shown = self.protocol.encode_prompt_with(
            tokenizer, question, [hit.passage for hit in hits], max_tokens=self.limits.max_observation_tokens
        )
        return ids, [Turn((), (), "", query, hits=tuple(hits[:shown]))]  # the passages stand in the prompt

    async def _results(
        self, job: Job, calls: Sequence[ToolCall], turns: Sequence[Turn], batcher: SearchBatcher
    ) -> list[ToolResult]:
        """The results of a turn's calls, which run side by side."""
        seen, only = [hit.passage for turn in turns for hit in turn.hits], bool(job.given and job.given.only)
        context = CallContext(partial(self._search, job, batcher, turns), batcher, seen, job.withheld, only)
        return await run_calls(calls, (SEARCH, *self.tools), context)

    async def _search(
        self, job: Job, batcher: SearchBatcher, turns: Sequence[Turn], query: str, **asked: Any
    ) -> list[Hit]:
        """The hits of `SearchBatcher.search`, without the job's withheld documents and with its planted passages."""
        if job.given and job.given.only and turns:
            return list(turns[0].hits)
        asker = f"question {job.question.id}, sample {job.sample}"
        with span("retrieval") as made:
            found = await batcher.search(query, without=job.withheld, asker=asker, **asked)
            made.set_attribute("medagent.passages", len(found))
        return [*(Hit(passage, 0.0) for passage in job.planted if not any(turn.query for turn in turns)), *found]

    async def _given_hits(self, job: Job, given: GivenSearch, batcher: SearchBatcher) -> tuple[str, list[Hit]]:
        tokenizer = self.policy.tokenizer
        query = harmless(tokenizer, self.protocol.neutralise(harmless(tokenizer, given.query)))
        if given.hits is not None:
            return query, list(given.hits)
        return query, await self._search(job, batcher, (), query)

    async def _given_turn(self, job: Job, given: GivenSearch, batcher: SearchBatcher) -> Turn:
        tokenizer, protocol = self.policy.tokenizer, self.protocol
        query, hits = await self._given_hits(job, given, batcher)
        pieces = protocol.query_pieces(tokenizer, query)
        ids = encode_as_one(tokenizer, pieces)
        text = protocol.without_end(tokenizer, "".join(piece.text for piece in pieces))
        observation_ids, (shown,) = protocol.encode_results(
            tokenizer,
            [ToolResult("search", tuple(hits))],
            first_number=1,
            max_tokens=self.limits.max_observation_tokens,
        )
        return Turn(
            tuple(ids),
            (0.0,) * len(ids),
            protocol.opened(tokenizer) + text,
            query,
            hits=tuple(hits[:shown]),
            observation_ids=tuple(observation_ids),
            forced_prefix=len(ids),
        )


def cut_by(stop: TurnStop, room: int, limits: Limits) -> StopReason | None:
    """The limit or the filter that ended a turn, which had `room` tokens; None where the model ended it."""
    if stop is TurnStop.LENGTH:
        return StopReason.MAX_TURN_TOKENS if room == limits.max_turn_tokens else StopReason.MAX_TOTAL_TOKENS
    return StopReason.REFUSED if stop is TurnStop.REFUSED else None
