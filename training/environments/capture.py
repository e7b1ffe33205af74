"""An OpenAI-compatible endpoint in front of the trainer's engine, which records the rollouts of any agent.

Messages that continue a recorded dialogue are encoded behind its tokens, which are never rendered again. Any others
begin a fork, a context of its own, which is what the policy read. Only the new turns of a fork have a loss.
"""

import asyncio
import json
import secrets
import socket
import warnings
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import uvicorn
from fastapi import Body, FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from medagent.agent import Job, cut_by
from medagent.call_syntax import call_of
from medagent.errors import ConfigError, MedagentError
from medagent.pieces import Block
from medagent.policy import Policy, SampledTurn, TurnStop
from medagent.retrieval.batching import SearchStats
from medagent.serving import openai_form as openai
from medagent.serving.errors import TooLongError
from medagent.serving.responses import handle_errors, stream, unless_gone
from medagent.tool_calls import Message
from medagent.tool_protocol import ToolProtocol
from medagent.training.rewards import MOST_REWARD
from medagent.types import Limits, Rollout, StopReason, Turn, rollout_seed

# Settings that change nothing with these values. Any other value is not used, and a warning names it.
NEUTRAL = {"top_p": 1, "frequency_penalty": 0, "presence_penalty": 0, "logit_bias": {}, "logprobs": False}
NEUTRAL |= {"tool_choice": "auto", "parallel_tool_calls": True}
UNREAD = frozenset("user metadata store service_tier safety_identifier prompt_cache_key".split())


@dataclass
class CaptureStats(SearchStats):
    """Counts of forks, and of those whose context holds turns of the assistant that the policy did not sample."""

    forks: int = 0
    rewritten: int = 0

    def metrics(self) -> dict[str, float]:
        return {"rollout/forks": float(self.forks), "rollout/rewritten_contexts": float(self.rewritten)}


class Recording:
    """One rollout. Its `reward` is None until it is given, and `failure` is the engine's."""

    def __init__(self, capture: "Capture", job: Job, base_url: str) -> None:
        self.capture, self.job, self.base_url = capture, job, base_url
        self.rows: list[Rollout] = []
        self.reward: float | None = None
        self.success, self.stop = False, StopReason.ANSWERED
        self.failure: MedagentError | None = None
        self._places: dict[str, tuple[int, int, bool]] = {}  # after a turn: its row and number, and whether it is ended
        self._asked = Counter[tuple[int, ...]]()  # contexts

    def grade(self, reward: float, success: bool | None = None) -> None:
        """Set the reward; a success earns 1 at least, unless said otherwise."""
        self.reward, self.success = float(reward), reward >= 1 if success is None else success

    async def answer(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], max_tokens: int, stops: Sequence[str]
    ) -> tuple[Message, SampledTurn, int]:
        """Sample the assistant's next message, up to any of the texts `stops`; also gives the length of its context.

        Raises TooLongError where the limits leave no room for a turn, ConfigError where the template refuses messages.
        """
        protocol, tokenizer = replace(self.capture.protocol, functions=tuple(tools)), self.capture.policy.tokenizer
        limits, stats, rerenders = self.capture.limits, self.capture.stats, protocol.history == "rerender"
        new = 1 + max((at for at, each in enumerate(messages) if each.role == "assistant"), default=-1)
        place = self._places.get(_key(messages[:new], tools)) if new < len(messages) and not rerenders else None
        behind: list[int] = []
        if place:
            row, number, ended = place
            behind = protocol.encode_next(tokenizer, messages[new:], ended=ended)
            context = [*_through(self.rows[row], number), *behind]
        else:
            context = protocol.encode_messages(tokenizer, messages, tools)
        room, turns = limits.max_total_tokens - len(context), self._asked.total()
        if room < 1 or turns >= limits.max_turns:
            self.stop = StopReason.MAX_TOTAL_TOKENS if room < 1 else StopReason.MAX_TURNS
            raise TooLongError(
                f"found {len(context)} tokens of context after {turns} turns, wanted less than max_total_tokens and "
                f"max_turns of {limits}. Ask for less, or raise data.agent.limits."
            )
        ends = protocol.turn_ends(tokenizer)
        most = min(room, limits.max_turn_tokens)
        sampled = await self._sample(context, min(most, max_tokens), (*ends, *(Block("", stop) for stop in stops)))
        cut = cut_by(sampled.stop, most, limits) if max_tokens >= most else None  # by our limits, not the agent's
        text = sampled.text.removesuffix(str(tokenizer.eos_token))
        if sampled.stop is TurnStop.TAG and text == sampled.text and not text.endswith(tuple(end.end for end in ends)):
            text = text.removesuffix(next(filter(text.endswith, stops), ""))
        text = protocol.opened(tokenizer) + protocol.without_end(tokenizer, text)
        message = protocol.read_message(text, tokenizer)
        ended = protocol.ended(tokenizer, sampled, called=bool(message.calls))
        if any(call.error for call in message.calls):  # OpenAI's form has no place for it
            message = Message("assistant", text)
        if self.stop is not StopReason.MAX_TURNS:  # of a request at the same time, which was refused
            self.stop = cut or StopReason.ANSWERED
        said = None if message.calls or cut else message.content
        turn = Turn(sampled.token_ids, sampled.logprobs, text, answer=said, calls=message.calls)
        if place and place[1] == len(self.rows[place[0]].turns):
            row, earlier = place[0], self.rows[place[0]].turns
            last = replace(earlier[-1], observation_ids=tuple(behind))
            self.rows[row] = replace(self.rows[row], turns=(*earlier[:-1], last, turn))
        else:
            stats.forks += bool(self.rows)
            stats.rewritten += bool(self.rows and new and not place and not rerenders)
            row, job = len(self.rows), self.job
            self.rows.append(Rollout(job.question, tuple(context), (turn,), self.stop, job.policy_version, job.sample))
        self._places[_key([*messages, message], tools)] = row, len(self.rows[row].turns), ended
        return message, sampled, len(context)

    async def _sample(self, context: list[int], max_tokens: int, blocks: tuple[Block, ...]) -> SampledTurn:
        """A turn after these tokens. Its seed follows from them, and from how often they were read before.

        A session lasts for a turn: a policy in lockstep would wait for it while the agent uses its tools.
        """
        key, job = tuple(context), self.job
        seed = rollout_seed(job.seed, iteration=0, question_id=str(key), sample=self._asked[key])
        self._asked[key] += 1
        session = self.capture.policy.open(seed=seed, temperature=job.temperature, blocks=blocks)
        try:
            session.append(context)
            return await session.sample(max_tokens=max_tokens)
        except BaseException as failure:  # also a client that left, which may ask again
            self._asked[key] -= 1
            self.failure = failure if isinstance(failure, MedagentError) else self.failure
            raise
        finally:
            session.close()

    def rollout(self, error: str = "") -> Rollout:
        """The rollout, in which each row after the first is a context of its own. With an `error` it has failed."""
        job, stop = self.job, StopReason.ERROR if error and not self.stop.truncated else self.stop
        if self.rows:
            prompt_ids, turns = self.rows[0].prompt_ids, list(self.rows[0].turns)
        else:
            prompt_ids, turns = (*self.capture.protocol.encode_prompt(self.capture.policy.tokenizer, job.question),), []
        for row in self.rows[1:]:
            turns += [replace(row.turns[0], context_ids=row.prompt_ids), *row.turns[1:]]
        found = Rollout(job.question, prompt_ids, tuple(turns), stop, job.policy_version, job.sample)
        return replace(found, reward=self.reward or 0.0, success=self.success and not stop.failed, error=error)


class AgentMessage(openai.ChatMessage):
    """One message of a request."""

    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    def read(self, names: Mapping[str, str]) -> Message:
        """The message, where `names` are of called tools by their call's id; HTTPException for what is no text."""
        calls = tuple(call for each in self.tool_calls or () if (call := call_of(each)))
        if self.attachments or len(calls) < len(self.tool_calls or ()):
            raise HTTPException(400, f"messages: found {self}, wanted text, and calls with a name and arguments.")
        role: Any = {"developer": "system", "function": "tool"}.get(self.role, self.role)
        parts = [self.content] if isinstance(self.content, str) else [part.text for part in self.content or ()]
        name = names.get(self.tool_call_id or "") or self.name or ""
        return Message(role, "\n".join(parts), name if role == "tool" else "", calls)


class CaptureRequest(BaseModel):
    """The body of POST /v1/chat/completions."""

    model_config = ConfigDict(extra="allow")

    model: str = "policy"
    messages: Annotated[list[AgentMessage], Field(min_length=1)]
    tools: list[dict[str, Any]] | None = None
    stream: bool | None = None
    stream_options: openai.StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: str | list[str] | None = None
    temperature: float | None = None
    n: Literal[1] | None = None
    response_format: dict[Literal["type"], Literal["text"]] | None = None


class Capture:
    """The endpoint. It serves on the event loop of the rollouts that it records, on a free port of 127.0.0.1.

    A request names its rollout by the header X-Rollout-Id, or goes to the rollout's own `Recording.base_url`.

    >>> async with capture.recording(job) as recording: ...     # doctest: +SKIP
    """

    def __init__(self, policy: Policy, protocol: ToolProtocol, limits: Limits) -> None:
        self.policy, self.protocol, self.limits, self.stats = policy, protocol, limits, CaptureStats()
        self._recordings: dict[str, Recording] = {}
        self._server: tuple[uvicorn.Server, asyncio.Task[None], socket.socket] | None = None
        self._app = FastAPI(openapi_url=None)
        handle_errors(self._app)
        for base in ("/v1", "/rollouts/{id_}/v1"):
            self._app.post(f"{base}/chat/completions")(self._complete)
            self._app.get(f"{base}/models")(self._models)
        self._app.post("/rollouts/{id_}/reward")(self._grade)

    @asynccontextmanager
    async def recording(self, job: Job) -> AsyncIterator[Recording]:
        """Record a rollout in this block, after which its requests are refused. The last to end stops the server."""
        if self._server is None:
            listener = socket.create_server(("127.0.0.1", 0))
            config = uvicorn.Config(self._app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
            server = uvicorn.Server(config)
            server.capture_signals = nullcontext  # type: ignore[assignment]  # they are the training run's
            self._server = server, asyncio.create_task(server.serve([listener])), listener
        id_, port = secrets.token_hex(8), self._server[2].getsockname()[1]
        recording = Recording(self, job, f"http://127.0.0.1:{port}/rollouts/{id_}/v1")
        self._recordings[id_] = recording
        try:
            yield recording
        finally:
            del self._recordings[id_]
            if not self._recordings:
                (server, serving, listener), self._server = self._server, None
                server.should_exit = True
                try:
                    await serving
                finally:
                    listener.close()  # also where this was cancelled

    def _find(self, id_: str) -> Recording:
        if id_ not in self._recordings:
            named = "Name it by the header X-Rollout-Id, or send requests to its base URL."
            raise HTTPException(404, f"rollout {id_[:80]!r}: not open here. It has ended or never began. {named}")
        return self._recordings[id_]

    async def _models(self) -> dict[str, Any]:
        return {"object": "list", "data": [{"id": "policy", "object": "model", "created": 0, "owned_by": "medagent"}]}

    async def _grade(
        self,
        id_: str,
        reward: Annotated[float, Body(ge=-MOST_REWARD, le=MOST_REWARD)],
        success: Annotated[bool | None, Body()] = None,
    ) -> None:
        self._find(id_).grade(reward, success)

    async def _complete(
        self, request: Request, body: CaptureRequest, id_: str = "", x_rollout_id: Annotated[str, Header()] = ""
    ) -> Response:
        recording = self._find(id_ or x_rollout_id)
        given = {**(body.model_extra or {}), "temperature": body.temperature}
        neutral = {**NEUTRAL, "temperature": recording.job.temperature}
        ignored = (name for name, value in given.items() if value is not None and value != neutral.get(name))
        if names := sorted({*ignored} - UNREAD):
            warnings.warn(f"capture: the agent sets {', '.join(names)}; the trainer samples without.", stacklevel=2)
        calls = [call for said in body.messages for call in said.tool_calls or ()]
        called = {str(call.get("id")): str((call.get("function") or {}).get("name")) for call in calls}
        messages = [said.read(called) for said in body.messages]
        tools = body.tools or []
        if not all(isinstance(each.get("function"), dict) and each["function"].get("name") for each in tools):
            raise HTTPException(400, "tools: wanted functions with a name.")
        max_tokens = body.max_completion_tokens or body.max_tokens or self.limits.max_turn_tokens
        stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
        answering = recording.answer(messages, tools, max_tokens, [*filter(None, stops)])
        try:
            message, sampled, read = await unless_gone(request, answering)
        except TooLongError:
            raise
        except MedagentError as failure:  # the template refuses the messages, or the engine failed
            raise HTTPException(400 if isinstance(failure, ConfigError) else 500, str(failure)) from failure
        whole = _completion(body.model, message, sampled, read)
        return stream(_chunks(whole, body.stream_options)) if body.stream else JSONResponse(whole)


def _through(row: Rollout, number: int) -> list[int]:
    """A row's tokens up to the end of its turn of this number, from 1 on."""
    last = replace(row.turns[number - 1], observation_ids=())
    return replace(row, turns=(*row.turns[: number - 1], last)).token_ids


def _key(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
    """Equal for equal dialogues. White space around the assistant's own words does not count."""
    said = [
        (m.role, m.content.strip() if m.role == "assistant" else m.content, m.name, [vars(call) for call in m.calls])
        for m in messages
    ]
    return json.dumps([said, tools], sort_keys=True, default=dict)


def _completion(model: str, message: Message, sampled: SampledTurn, read: int) -> dict[str, Any]:
    called = [{"name": call.name, "arguments": json.dumps(dict(call.arguments))} for call in message.calls]
    calls = [
        {"index": at, "id": f"call_{secrets.token_hex(12)}", "type": "function", "function": each}
        for at, each in enumerate(called)
    ]
    finish = "length" if sampled.stop is TurnStop.LENGTH else "tool_calls" if calls else "stop"
    wrote = len(sampled.token_ids)
    usage = {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}
    id_ = f"chatcmpl-{secrets.token_hex(12)}"
    whole = openai.completion(id_, model, message.content, finish=finish, usage=usage)
    whole["choices"][0]["message"] |= {"tool_calls": calls, "content": message.content or None} if calls else {}
    return whole


async def _chunks(whole: dict[str, Any], options: openai.StreamOptions | None) -> AsyncGenerator[str]:
    """The completion as a stream of one piece: it is sampled whole."""
    id_, model, (choice,) = whole["id"], whole["model"], whole["choices"]
    pieces = [
        openai.chunk(id_, model, choice["message"]),
        openai.chunk(id_, model, {}, finish=choice["finish_reason"]),
    ]
    if options and options.include_usage:
        pieces.append(openai.usage_chunk(id_, model, whole["usage"]))
    for piece in pieces:
        yield f"data: {json.dumps(piece)}\n\n"
    yield "data: [DONE]\n\n"
