"""A policy behind an OpenAI-compatible chat endpoint (vLLM, llama.cpp, Ollama, a commercial one).

It is evaluated like any other policy, and never trained. Such an endpoint neither takes nor gives token ids, so bytes
stand in for tokens between the loop and this policy. The limits on prompt, observation and total length count bytes.
Only `max_turn_tokens` counts the endpoint's tokens. It gives no log-probs, so all are 0 and there is no calibration.
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from medagent.call_syntax import call_of, query_of
from medagent.errors import EndpointError, PolicyError
from medagent.pieces import TOOL_CALL, Block
from medagent.policies.http_endpoint import Endpoint, status_of
from medagent.policies.turn_ends import first_end
from medagent.policy import Policy, SampledTurn, Session, TurnStop
from medagent.protocol import TagProtocol
from medagent.tool_calls import SEARCH_FUNCTION
from medagent.types import Limits, Usage

REMOTE_LIMITS = Limits(max_turns=6, max_turn_tokens=1024, max_observation_tokens=8_000, max_total_tokens=120_000)
# Words of a provider that refuses one question. The run goes on with the others.
_FILTERED = re.compile(
    r"content[_ ](?:filter|management|policy)|invalid_prompt|usage policy|flagged|moderation|safety", re.IGNORECASE
)
_TOO_LONG = re.compile(r"context[_ ]length|maximum context|context window|too many tokens|too long", re.IGNORECASE)
_UNSUPPORTED = re.compile(
    r"unsupported|not support|unrecognized|unknown|not permitted|(?:not|is) allowed|deprecated|unexpected keyword"
    r"|requires --|that support tool",
    re.IGNORECASE,
)
_LENGTH = ("max_tokens", "max_completion_tokens")  # newer models of OpenAI take the second alone
_OPTIONAL = ("temperature", "seed", "stop", "tools")  # which some models refuse


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are bytes, so any text is decoded unchanged."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={byte: number for number, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


@dataclass
class RemotePolicy(Policy):
    """Samples turns at a chat endpoint; `url` ends before "/chat/completions" (such as http://localhost:8000/v1).

    Failures are retried with back-off, then raise `EndpointError`. A parameter that the model refuses is left out from
    then on, with a message. `parameters` are sent with every request, such as {"reasoning_effort": "low"}.
    `requests_per_minute`: see `Endpoint`.
    """

    url: str
    model: str
    api_key: str = ""
    timeout_s: float = 120.0
    retries: int = 5
    backoff_s: float = 1.0
    parameters: Mapping[str, Any] = field(default_factory=dict)
    requests_per_minute: float = 0.0
    refused: set[str] = field(default_factory=set, repr=False)
    tokenizer: PreTrainedTokenizerBase = field(default_factory=byte_tokenizer, repr=False)
    endpoint: Endpoint = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.endpoint = Endpoint(self.url, self.api_key, self.timeout_s, self.retries, self.backoff_s)
        self.endpoint.requests_per_minute = self.requests_per_minute

    def open(self, *, seed: int, temperature: float, blocks: tuple[Block, ...]) -> "RemoteSession":
        """See `Policy.open`. The seed is sent along; the endpoint decides whether to use it."""
        return RemoteSession(self, seed % 2**31, temperature, blocks)

    async def disconnect(self) -> None:
        await self.endpoint.disconnect()

    async def complete(self, body: dict[str, Any]) -> "ChatReply":
        """One call of the endpoint: the first choice."""
        endpoint = self.endpoint
        while True:
            asked = {**body, **self.parameters}
            if _LENGTH[0] in self.refused and _LENGTH[0] in asked:
                asked[_LENGTH[1]] = asked.pop(_LENGTH[0])
            asked = {name: value for name, value in asked.items() if name not in self.refused}
            answer = await endpoint.post("chat/completions", asked)
            status = status_of(answer)
            if status == 200:
                return self._reply(answer)
            if status not in (400, 404, 422, 500) or not self._learns_to_leave_out(answer.text, asked):
                break
        if status in (400, 403, 413, 422):  # ends this question, not the run
            if _FILTERED.search(answer.text):
                return ChatReply("", "", TurnStop.REFUSED)
            if _TOO_LONG.search(answer.text):
                return ChatReply("", "", TurnStop.LENGTH)
        raise endpoint.refusal(answer, self.model)

    def _learns_to_leave_out(self, said: str, asked: Mapping[str, Any]) -> bool:
        """Whether an error is about a parameter that was asked with and can be left out.

        Another request may have learnt it meanwhile.
        """
        if not _UNSUPPORTED.search(said):
            return False
        named = [name for name in (_LENGTH[0], *_OPTIONAL) if re.search(rf"\b{name.removesuffix('s')}s?\b", said)]
        found = [name for name in named if name in asked and name not in self.parameters][:1]
        for name in found:
            if name in self.refused:
                continue
            instead = f"{_LENGTH[1]} is sent" if name == _LENGTH[0] else "it is left out"
            print(f"endpoint {self.url}: {self.model} takes no {name}; {instead}.", file=sys.stderr, flush=True)
        self.refused.update(found)
        return bool(found)

    def _reply(self, answer: httpx.Response) -> "ChatReply":
        try:
            body = answer.json()
            choice = body["choices"][0]
            message, why = choice["message"], choice.get("finish_reason")
            thought = message.get("reasoning_content") or message.get("reasoning") or ""
            text, parts = message.get("content") or message.get("refusal") or "", message.get("content")
            if isinstance(parts, list):  # as Mistral writes thoughts
                text = "".join(str(part["text"]) for part in parts if part.get("type") == "text")
                thought = thought or "".join(str(part.get("thinking")) for part in parts if part.get("thinking"))
            stops = {"length": TurnStop.LENGTH, "content_filter": TurnStop.REFUSED}
            stop = stops.get(str(why), TurnStop.END_OF_TEXT)
            calls = [*(message.get("tool_calls") or ()), {"function": message.get("function_call")}]
            call = calls[0] if stop is TurnStop.END_OF_TEXT and query_of(call_of(calls[0])) else None
            first = ((choice.get("logprobs") or {}).get("content") or [{}])[0].get("top_logprobs") or ()
            likeliest = tuple((str(each["token"]), float(each["logprob"])) for each in first)
            return ChatReply(_valid(text), _valid(thought), stop, _usage(body.get("usage")), call, likeliest)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise EndpointError(
                f"endpoint {self.url}: found {answer.text[:200]!r}, wanted a chat completion.", host=self.endpoint.host
            ) from error


@dataclass(frozen=True)
class ChatReply:
    """The text that an endpoint wrote, its thought before (if it tells), why it stopped, what it cost, and its call.

    `likeliest` are the likeliest first tokens with their log-probs, where the request asked for `top_logprobs`.
    """

    text: str
    thought: str
    stop: TurnStop
    usage: Usage = Usage(requests=1)
    call: Mapping[str, Any] | None = None
    likeliest: tuple[tuple[str, float], ...] = ()


def _usage(found: object) -> Usage:
    """The usage of one reply; no tokens where the endpoint does not count them."""
    counts = found if isinstance(found, Mapping) else {}
    prompt, completion = (counts.get(f"{part}_tokens") for part in ("prompt", "completion"))
    return Usage(1, prompt if isinstance(prompt, int) else 0, completion if isinstance(completion, int) else 0)


def _valid(text: object) -> str:
    return str(text).encode("utf-8", errors="replace").decode("utf-8")


class RemoteSession(Session):
    """A dialogue with a `RemotePolicy`.

    The loop appends the user's messages, and the endpoint writes the assistant's.
    """

    def __init__(self, policy: RemotePolicy, seed: int, temperature: float, blocks: tuple[Block, ...]) -> None:
        self._policy, self._seed, self._temperature, self._blocks = policy, seed, temperature, blocks
        self._ends = tuple(block.end for block in blocks if block != TOOL_CALL)  # a server reads its calls by itself
        self._messages: list[dict[str, Any]] = []
        self._called: str | None = None  # the id of the call that the next message is the result of
        self._pending: list[int] = []

    def append(self, token_ids: list[int]) -> None:
        self._pending += token_ids

    async def sample(self, *, max_tokens: int) -> SampledTurn:
        said = str(self._policy.tokenizer.decode(self._pending))
        opened = next((block.start for block in self._blocks if said.endswith(block.start)), "")
        if opened:
            raise PolicyError(
                f"endpoint {self._policy.url}: a chat endpoint begins its own turns, so none can be opened with "
                f"{opened}. Leave the mode forced_search out."
            )
        tool = {} if self._called is None else {"role": "tool", "tool_call_id": self._called}
        self._messages.append({"role": "user", "content": said, **tool})
        self._pending, self._called = [], None
        reply = await self._policy.complete(
            {
                "model": self._policy.model,
                "messages": self._messages,
                "max_tokens": max_tokens,
                "temperature": self._temperature,
                "seed": self._seed,
                **({"stop": list(self._ends)} if self._ends else {}),
                **({"tools": [SEARCH_FUNCTION]} if TOOL_CALL in self._blocks else {}),
            }
        )
        text, stop = reply.text, reply.stop
        if reply.call and self._blocks:  # of several calls the first is answered, and no other is kept
            text = self._blocks[0].around(query_of(call_of(reply.call)))
            self._called = str(reply.call.get("id") or "call")
        if stop is TurnStop.LENGTH and not text.strip() and reply.thought:
            text = TagProtocol.think.start + reply.thought  # cut off while it thought
        if stop is TurnStop.END_OF_TEXT and self._blocks:
            text = _closed(text, self._blocks)
        end = first_end(text, self._ends)
        if end is not None and stop is not TurnStop.REFUSED:  # as in turn_ends: an end tag comes before any other stop
            text, stop = text[:end], TurnStop.TAG
        if self._called is None:
            self._messages.append({"role": "assistant", "content": text})
        else:
            call = {"type": "function", **dict(reply.call or {}), "id": self._called}
            self._messages.append({"role": "assistant", "content": reply.text, "tool_calls": [call]})
        ids = tuple(self._policy.tokenizer(text, add_special_tokens=False)["input_ids"])
        return SampledTurn(ids, (0.0,) * len(ids), text, stop, usage=reply.usage)


def _closed(text: str, blocks: tuple[Block, ...]) -> str:
    """The text with its end tag, which the endpoint took for its stop and removed, or the rest of a tag begun."""
    last = max(blocks, key=lambda block: text.rfind(block.start))
    if text.rfind(last.start) <= text.rfind(last.end):
        return text
    begun = next(length for length in range(len(last.end) - 1, -1, -1) if text.endswith(last.end[:length]))
    return text + last.end[begun:]
