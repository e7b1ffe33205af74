"""A sampler (vLLM or Hugging Face) in a Ray actor: it takes weights and answers completion requests.

The class is plain and does not import Ray. `medagent.engines.ray` makes actors of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor

from medagent.engines.vllm import ServedAdapters
from medagent.engines.weight_sync import stored_matrices
from medagent.models.causal_lm import fastest_device, load_causal_lm
from medagent.models.checksums import Checksum, of_parameters
from medagent.policies.huggingface import HFPolicy, HFSession
from medagent.policies.vllm.server import MODEL, VllmServer, VllmSettings
from medagent.policy import TurnStop
from medagent.protocol import Block

EngineKind = Literal["vllm", "huggingface"]
Weights = Mapping[str, Tensor] | Mapping[str, bytes]
"""Merged weights by their names in the checkpoint, or the files of an adapter in peft's form."""


@dataclass(frozen=True)
class ReplicaSettings:
    """How a replica loads its model. `model` is a hub name or a folder that its machine can read.

    `lora_rank` is that of the adapters it will be sent, 0 if it will be sent merged weights. `four_bit` keeps the base
    in NF4, for Hugging Face alone.
    """

    kind: EngineKind
    model: str
    dtype: str
    max_model_len: int
    lora_rank: int = 0
    four_bit: bool = False
    vllm: VllmSettings = VllmSettings()


class RayReplica:
    """One sampler. Requests carry the version of the weights that they are meant for."""

    def __init__(self, settings: ReplicaSettings) -> None:
        self._version = -1
        self._sampler: _Vllm | _HuggingFace = _Vllm(settings) if settings.kind == "vllm" else _HuggingFace(settings)

    async def push(self, version: int, weights: Weights, probe: list[int]) -> tuple[dict[str, Checksum], list[float]]:
        """Load weights. Returns their checksums, and the log-probs of the probe's tokens after the first."""
        self._version = -1  # also where loading fails halfway
        checksums = self._sampler.load(weights)
        self._version = version
        return checksums, self._sampler.logprobs(probe) if len(probe) > 1 else []

    async def complete(self, version: int, body: dict[str, Any]) -> dict[str, Any]:
        """The first choice for a request, as `Completions.complete` gives it.

        Returns {"stale": version} if it holds the weights of another version.
        """
        if version != self._version:
            return {"stale": self._version}
        return await self._sampler.complete(body)

    async def forget(self, dialogue: str) -> None:
        """A dialogue has ended."""
        self._sampler.forget(dialogue)


class _Vllm:
    def __init__(self, settings: ReplicaSettings) -> None:
        self._server = VllmServer(
            settings.model,
            dtype=settings.dtype,
            max_model_len=settings.max_model_len,
            lora_rank=settings.lora_rank,
            settings=settings.vllm,
        ).wait()
        self._adapters, self._served = ServedAdapters(self._server), MODEL
        self._completions = self._server.completions()

    def load(self, weights: Weights) -> dict[str, Checksum]:
        if tensors := _tensors(weights):
            self._server.push_weights(tensors, tensors.items())
            return self._server.held_weights()
        former, self._served = self._served, self._adapters.load("policy", partial(_write, weights))
        if former != MODEL:
            self._adapters.unload(former)
        return self._server.held_adapter()

    def logprobs(self, token_ids: list[int]) -> list[float]:
        return self._server.api.logprobs(token_ids, model=self._served)

    async def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        return await self._completions.complete({**body, "model": self._served})

    def forget(self, dialogue: str) -> None:
        """The server's own cache decides."""


class _HuggingFace:
    """Keeps the KV cache of each dialogue, as the in-process policy does."""

    def __init__(self, settings: ReplicaSettings) -> None:
        model, tokenizer = load_causal_lm(
            settings.model, dtype=settings.dtype, device=fastest_device(), four_bit=settings.four_bit
        )
        self._policy = HFPolicy(model, tokenizer, lockstep=False)
        self._has_adapter = False
        self._dialogues: dict[str, tuple[HFSession, list[int]]] = {}

    def load(self, weights: Weights) -> dict[str, Checksum]:
        for name in list(self._dialogues):
            self.forget(name)
        if tensors := _tensors(weights):
            self._policy.load_weights(tensors.items())
            return of_parameters(self._policy.model, tensors)
        with TemporaryDirectory(prefix="medagent-adapter-") as scratch:
            folder = Path(scratch)
            _write(weights, folder)
            if not self._has_adapter:  # puts LoRA layers into the very model that samples
                PeftModel.from_pretrained(self._policy.model, str(folder)).eval()
                self._has_adapter = True
            stored = stored_matrices(load_file(folder / "adapter_model.safetensors"))
        self._policy.load_weights((f"{name}.default.weight", value) for name, value in stored.items())
        held = of_parameters(self._policy.model, [f"{name}.default.weight" for name in stored])
        return {name.removesuffix(".default.weight"): found for name, found in held.items()}

    def logprobs(self, token_ids: list[int]) -> list[float]:
        return self._policy.logprobs(token_ids)

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


def _tensors(weights: Weights) -> dict[str, Tensor]:
    return {name: value for name, value in weights.items() if isinstance(value, Tensor)}


def _write(files: Weights, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        assert isinstance(content, bytes)
        (folder / name).write_bytes(content)
