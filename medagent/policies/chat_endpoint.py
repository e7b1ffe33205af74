"""A policy behind an OpenAI-compatible chat endpoint (vLLM, llama.cpp, Ollama, a commercial one).

It is measured as any other, and never trained. Such an endpoint neither takes nor gives token ids, so bytes stand in
for tokens between the loop and this policy. The limits on prompt, observation and total length count bytes. Only
`max_turn_tokens` counts the endpoint's tokens. It gives no log-probs, so all are 0 and there is no calibration.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from medagent.agent import Limits
from medagent.errors import PolicyError
from medagent.policies.http_endpoint import Endpoint
from medagent.policies.turn_ends import first_end
from medagent.policy import SampledTurn, TurnStop
from medagent.protocol import Block

REMOTE_LIMITS = Limits(max_turns=6, max_turn_tokens=1024, max_observation_tokens=8_000, max_total_tokens=120_000)
# A provider's filter, or too long a context, is recorded as a turn without text.
_REFUSED = re.compile(r"content[_ ](?:filter|management|policy)|context[_ ]length|maximum context", re.IGNORECASE)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are bytes, so any text is decoded unchanged."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={byte: number for number, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


@dataclass
class RemotePolicy:
    """Samples turns at a chat endpoint; `url` ends before "/chat/completions" (such as http://localhost:8000/v1).

    Failures are retried with back-off, then raise `PolicyError`.
    """

    url: str
    model: str
    api_key: str = ""
    timeout_s: float = 120.0
    retries: int = 5
    backoff_s: float = 1.0
    _tokenizer: PreTrainedTokenizerFast = field(default_factory=byte_tokenizer, repr=False)
    _endpoint: Endpoint = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Connect nothing yet."""
        self._endpoint = Endpoint(self.url, self.api_key, self.timeout_s, self.retries, self.backoff_s)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """See `Policy.tokenizer`: bytes."""
        return self._tokenizer

    def open(self, *, seed: int, temperature: float, blocks: tuple[Block, ...]) -> RemoteSession:
        """See `Policy.open`. The seed is sent along; the endpoint decides whether to use it."""
        return RemoteSession(self, seed % 2**31, temperature, blocks)

    async def disconnect(self) -> None:
        """See `Policy.disconnect`."""
        await self._endpoint.disconnect()

    async def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """One call of the endpoint: the first choice."""
        endpoint = self._endpoint
        answer = await endpoint.post("chat/completions", body)
        if answer.status_code == 400 and _REFUSED.search(answer.text):
            return {"message": {"content": ""}, "finish_reason": "refused"}  # ends this question, not the run
        if answer.status_code != 200:
            raise endpoint.refusal(answer, self.model)
        try:
            choice = answer.json()["choices"][0]
            return {"message": {"content": choice["message"]["content"]}, "finish_reason": choice.get("finish_reason")}
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise PolicyError(f"endpoint {self.url}: found {answer.text[:200]!r}, wanted a chat completion.") from error


class RemoteSession:
    """A dialogue with a `RemotePolicy`.

    What the loop appends is the user's message. What the endpoint writes is the assistant's.
    """

    def __init__(self, policy: RemotePolicy, seed: int, temperature: float, blocks: tuple[Block, ...]) -> None:
        self._policy, self._seed, self._temperature, self._blocks = policy, seed, temperature, blocks
        self._ends = tuple(block.end for block in blocks)
        self._messages: list[dict[str, str]] = []
        self._pending: list[int] = []

    def append(self, token_ids: list[int]) -> None:
        """See `Session.append`."""
        self._pending += token_ids

    async def sample(self, *, max_tokens: int) -> SampledTurn:
        """See `Session.sample`."""
        said = str(self._policy.tokenizer.decode(self._pending))
        opened = next((block.start for block in self._blocks if said.endswith(block.start)), "")
        if opened:
            raise PolicyError(
                f"endpoint {self._policy.url}: a chat endpoint begins its own turns, so none can be opened with "
                f"{opened}. Leave the mode forced_search out."
            )
        self._messages.append({"role": "user", "content": said})
        self._pending = []
        choice = await self._policy.complete(
            {
                "model": self._policy.model,
                "messages": self._messages,
                "max_tokens": max_tokens,
                "temperature": self._temperature,
                "seed": self._seed,
                "stop": list(self._ends),
            }
        )
        text = str(choice["message"]["content"] or "").encode("utf-8", errors="replace").decode("utf-8")
        stop = TurnStop.LENGTH
        if choice["finish_reason"] != "length":
            text, stop = _closed(text, self._blocks), TurnStop.END_OF_TEXT
        end = first_end(text, self._ends)
        if end is not None:  # the rule of turn_ends: an end string comes before any other stop
            text, stop = text[:end], TurnStop.TAG
        self._messages.append({"role": "assistant", "content": text})
        ids = tuple(self._policy.tokenizer(text, add_special_tokens=False)["input_ids"])
        return SampledTurn(ids, (0.0,) * len(ids), text, stop)

    def close(self) -> None:
        """See `Session.close`."""


def _closed(text: str, blocks: tuple[Block, ...]) -> str:
    """The text with its end tag, which the endpoint took for its stop and removed, or the rest of a tag begun."""
    last = max(blocks, key=lambda block: text.rfind(block.start))
    if text.rfind(last.start) <= text.rfind(last.end):
        return text
    begun = next(length for length in range(len(last.end) - 1, -1, -1) if text.endswith(last.end[:length]))
    return text + last.end[begun:]
