"""One engine (vLLM or Hugging Face) in a Ray actor: it takes weights and answers completion requests.

The class is plain and does not import Ray; `training.engines.ray` makes actors of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from medagent.causal_lm import fastest_device, hidden_states, load_causal_lm, project
from medagent.policies.completions import HttpCompletions
from medagent.policies.huggingface import HFPolicy, HFSession
from medagent.policies.vllm.server import MODEL, VllmServer, VllmSettings
from medagent.policy import TurnStop
from medagent.protocol import Block

EngineKind = Literal["vllm", "huggingface"]


@dataclass(frozen=True)
class ReplicaSettings:
    """What a replica needs to load its model. `model` is a hub name or a folder that its machine can read."""

    kind: EngineKind
    model: str
    dtype: str
    max_tokens: int
    vllm: VllmSettings = VllmSettings()


class RayReplica:
    """One engine. Requests carry the version of the weights that they are meant for."""

    def __init__(self, settings: ReplicaSettings) -> None:
        self._version = -1
        self._engine: _Vllm | _HuggingFace = _Vllm(settings) if settings.kind == "vllm" else _HuggingFace(settings)

    async def push(self, version: int, weights: Mapping[str, Tensor], probe: list[int]) -> list[float]:
        """Take weights by their names in the checkpoint.

        Returns the log-probs of the probe's tokens after the first, computed with these weights.
        """
        self._engine.load(weights)
        self._version = version
        return self._engine.logprobs(probe)

    async def complete(self, version: int, body: dict[str, Any]) -> dict[str, Any]:
        """The first choice for a request, as `Completions.complete` gives it.

        Where the weights are others, it returns {"stale": their version}.
        """
        if version != self._version:
            return {"stale": self._version}
        return await self._engine.complete(body)

    async def forget(self, dialogue: str) -> None:
        """A dialogue has ended."""
        self._engine.forget(dialogue)


class _Vllm:
    def __init__(self, settings: ReplicaSettings) -> None:
        self._server = VllmServer(
            settings.model, dtype=settings.dtype, max_model_len=settings.max_tokens + 1, settings=settings.vllm
        ).wait()
        self._completions = HttpCompletions(self._server.endpoint())

    def load(self, weights: Mapping[str, Tensor]) -> None:
        self._server.push_weights(weights, weights.items())

    def logprobs(self, token_ids: list[int]) -> list[float]:
        return self._server.api.logprobs(token_ids, model=MODEL)

    async def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        return await self._completions.complete({**body, "model": MODEL})

    def forget(self, dialogue: str) -> None:
        """The server's own cache decides."""


class _HuggingFace:
    """Keeps the KV cache of each dialogue, as the in-process policy does."""

    def __init__(self, settings: ReplicaSettings) -> None:
        model, tokenizer = load_causal_lm(settings.model, dtype=settings.dtype, device=fastest_device())
        self._policy = HFPolicy(model, tokenizer, lockstep=False)
        self._dialogues: dict[str, tuple[HFSession, list[int]]] = {}

    def load(self, weights: Mapping[str, Tensor]) -> None:
        for name in list(self._dialogues):
            self.forget(name)
        self._policy.load_weights(weights.items())

    @torch.no_grad()
    def logprobs(self, token_ids: list[int]) -> list[float]:
        ids = torch.tensor([token_ids], device=self._policy.model.device)
        scores = torch.log_softmax(project(self._policy.model, hidden_states(self._policy.model, input_ids=ids)), -1)
        found: list[float] = scores[0, :-1].gather(1, ids[0, 1:, None])[:, 0].tolist()
        return found

    async def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        name, prompt = str(body["session_id"]), list(body["prompt"])
        session, known = self._dialogues.get(name, (None, []))
        if session is None or prompt[: len(known)] != known:
            self.forget(name)
            blocks = tuple(Block("", end) for end in body["stop"])
            session, known = self._policy.open(seed=0, temperature=float(body["temperature"]), blocks=blocks), []
            ends = session.dialogue.ends
            session.dialogue.ends = replace(ends, token_ids=ends.token_ids | set(body.get("stop_token_ids", ())))
            self._dialogues[name] = (session, known)
        session.reseed(int(body.get("seed", 0)))
        session.append(prompt[len(known) :])
        turn = await session.sample(max_tokens=int(body["max_tokens"]))
        self._dialogues[name] = (session, [*prompt, *turn.token_ids])
        return {
            "token_ids": list(turn.token_ids),
            "logprobs": {"token_logprobs": list(turn.logprobs)},
            "finish_reason": "length" if turn.stop is TurnStop.LENGTH else "stop",
        }

    def forget(self, dialogue: str) -> None:
        if dialogue in self._dialogues:
            self._dialogues.pop(dialogue)[0].close()
