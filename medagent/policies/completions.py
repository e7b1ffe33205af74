"""A policy behind token-level completion endpoints (vLLM's server, one or many).

Token ids go in; token ids and log-probs come out. Nothing is decoded and encoded again, so what such a policy samples
can be trained on. Every dialogue stays with one replica, whose prefix cache holds it. If that replica is lost,
another reads the dialogue from the beginning.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from uuid import uuid4

from transformers import PreTrainedTokenizerBase

from medagent.errors import PolicyError
from medagent.pieces import Block
from medagent.policies.http_endpoint import Endpoint, EndpointGoneError
from medagent.policies.turn_ends import TurnEnds, end_token_ids
from medagent.policy import Policy, SampledTurn, Session, TurnStop

# All are sent: a server takes a missing one from the model's generation_config.json, and would sample from another
# distribution than the trainer computes.
UNTRUNCATED = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
REST_S = 30.0  # seconds until a replica that did not answer is asked again


@dataclass
class HttpCompletions:
    """Completions in the form of OpenAI's API, with token ids for the prompt, from an HTTP endpoint.

    It is a replica of one policy, with its number of dialogues, and the monotonic time until which it is not asked.
    """

    endpoint: Endpoint
    dialogues: int = 0
    resting_until: float = 0.0

    @property
    def name(self) -> str:
        """The endpoint in errors."""
        return f"endpoint {self.endpoint.url}"

    async def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """The first choice: `token_ids`, `logprobs.token_logprobs` and `finish_reason`.

        Raises `EndpointGoneError` where another replica may do.
        """
        answer = await self.endpoint.post("completions", body)
        if answer.status_code == 404:  # it was restarted and lacks this iteration's weights
            raise EndpointGoneError(f"{self.name}: no longer knows the model {body['model']!r}.")
        if answer.status_code != 200:
            raise self.endpoint.refusal(answer, str(body["model"]))
        try:
            return dict(answer.json()["choices"][0])
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise PolicyError(f"{self.name}: found {answer.text[:200]!r}, wanted a completion.") from error


@dataclass
class CompletionPolicy(Policy):
    """Samples turns from replicas that all serve `model`. A new dialogue goes to the one with fewest.

    Each turn carries a seed that follows from the dialogue's seed. Servers that batch give equal samples only as far as
    their arithmetic does.

    `end_ids` are the model's end-of-turn ids: `end_token_ids` of a loaded model, or `stored_end_token_ids` of a folder
    or hub name. None means the tokenizer's alone. Our servers ignore generation_config.json, so they must be sent.
    """

    replicas: Sequence[HttpCompletions]
    model: str
    tokenizer: PreTrainedTokenizerBase
    rest_s: float = REST_S
    end_ids: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if not self.replicas:
            raise PolicyError("completion endpoints: none given, wanted one or more. Name them.")
        self.end_ids = end_token_ids(self.tokenizer) if self.end_ids is None else self.end_ids

    def open(self, *, seed: int, temperature: float, blocks: tuple[Block, ...]) -> "CompletionSession":
        return CompletionSession(self, seed=seed, temperature=temperature, blocks=blocks)

    async def disconnect(self) -> None:
        for replica in self.replicas:
            await replica.endpoint.disconnect()

    def take(self) -> HttpCompletions:
        """The answering replica with fewest dialogues. If none answers, it is the one that has rested longest."""
        now = time.monotonic()
        awake = [replica for replica in self.replicas if replica.resting_until <= now]
        if awake:
            chosen = min(awake, key=lambda replica: replica.dialogues)
        else:
            chosen = min(self.replicas, key=lambda replica: replica.resting_until)
        chosen.dialogues += 1
        return chosen

    async def complete(self, replica: HttpCompletions, body: dict[str, Any]) -> tuple[HttpCompletions, dict[str, Any]]:
        """The first choice for a body, and the replica that gave it. If a replica is gone, the next is asked."""
        last: EndpointGoneError | None = None
        for _ in self.replicas:
            try:
                return replica, await replica.complete(body)
            except EndpointGoneError as gone:
                last = gone
                replica.resting_until = time.monotonic() + self.rest_s
                following = self.take()
                following.dialogues -= 1  # the session moves its count once it has an answer
                replica = following
        raise PolicyError(f"all {len(self.replicas)} replicas are gone; of the last: {last}") from last


class CompletionSession(Session):
    """A dialogue with a `CompletionPolicy`, with all its tokens so far."""

    def __init__(self, policy: CompletionPolicy, *, seed: int, temperature: float, blocks: tuple[Block, ...]) -> None:
        self._policy, self._seed, self._temperature = policy, seed, temperature
        self._ends = TurnEnds.of(policy.tokenizer, blocks, policy.end_ids or ())
        self._token_ids: list[int] = []
        self._read, self._turn = 0, 0  # tokens that have been sent
        self._replica: HttpCompletions | None = None
        self._name = uuid4().hex

    def append(self, token_ids: list[int]) -> None:
        self._token_ids += token_ids

    async def sample(self, *, max_tokens: int) -> SampledTurn:
        if len(self._token_ids) == self._read:
            raise PolicyError("nothing to continue from: append the prompt or an observation before sampling a turn.")
        policy = self._policy
        replica = self._replica or policy.take()
        self._replica = replica  # `close` undoes it, also where the call fails
        body = {
            "model": policy.model,
            "prompt": self._token_ids,
            "max_tokens": max_tokens,
            "temperature": self._temperature,
            **UNTRUNCATED,
            "stop": list(self._ends.strings),
            "stop_token_ids": sorted(self._ends.token_ids),
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            "logprobs": 0,
            "return_token_ids": True,
            "session_id": self._name,
            "seed": turn_seed(self._seed, self._turn),
        }
        answered, choice = await policy.complete(replica, body)
        if answered is not replica:
            replica.dialogues -= 1
            answered.dialogues += 1
            self._replica = answered
        token_ids, logprobs = self._sampled(choice, max_tokens)
        length = choice.get("finish_reason") == "length"
        turn = self._ends.cut(
            token_ids, logprobs, max_tokens=max_tokens, otherwise=TurnStop.LENGTH if length else TurnStop.END_OF_TEXT
        )
        self._token_ids += turn.token_ids
        self._read, self._turn = len(self._token_ids), self._turn + 1
        return turn

    def _sampled(self, choice: dict[str, Any], max_tokens: int) -> tuple[list[int], list[float]]:
        assert self._replica is not None
        name = self._replica.name
        token_ids = choice.get("token_ids")
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
        if not token_ids or logprobs is None or len(logprobs) != len(token_ids) or len(token_ids) > max_tokens:
            raise PolicyError(
                f"{name}: found {len(token_ids or [])} token ids and {len(logprobs or [])} "
                f"log-probs, wanted as many of each (1 to {max_tokens}). The server must honour return_token_ids and "
                "logprobs, as vLLM 0.10.2 and later do."
            )
        for number, value in enumerate(logprobs):
            if not (isinstance(value, int | float) and math.isfinite(value)):
                raise PolicyError(
                    f"{name}: found the log-prob {value!r} at token {number} of turn {self._turn + 1} (dialogue "
                    f"{self._name}), wanted a finite number. Its weights are damaged or its dtype overflows: hand it "
                    "an earlier checkpoint, or serve it in bfloat16 or float32."
                )
        return [int(token) for token in token_ids], [float(value) for value in logprobs]

    def close(self) -> None:
        if self._replica is not None:
            self._replica.dialogues -= 1
            self._replica = None


def turn_seed(seed: int, turn: int) -> int:
    """The seed of one turn, 63 bits."""
    return int.from_bytes(sha256(f"{seed}|{turn}".encode()).digest()[:8], "big") >> 1
