"""Servers elsewhere as the engine: vLLM replicas that serve adapters, reached over HTTP."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from uuid import uuid4

import httpx

from medagent.errors import ConfigError, PolicyError
from medagent.policies.completions import CompletionPolicy, HttpCompletions
from medagent.policies.http_endpoint import Endpoint, EndpointGoneError
from medagent.policies.turn_ends import end_token_ids
from medagent.policies.vllm.api import VllmApi
from medagent.training.engines.arrival import ArrivalCheck, base_logprobs, trainer_logprobs
from medagent.training.engines.base import EngineSetup, RolloutEngine
from medagent.training.engines.hand_over import routing_shape, save_adapter
from medagent.training.module import AgentModule

log = logging.getLogger(__name__)


class ServersEngine(RolloutEngine):
    """vLLM servers that serve the trained base, each iteration with a new adapter.

    `urls` are their addresses, such as http://node1:8000. `model` is the name under which they serve the base.
    `adapters` is a folder that trainer and servers see under the same path. Each iteration's adapter is written there,
    and loaded over the servers' API under a name of its own.

    Start the servers with `vllm serve MODEL --enable-lora --max-lora-rank RANK --logprobs-mode processed_logprobs` and
    VLLM_ALLOW_RUNTIME_LORA_UPDATING=1. For `routing_replay` r3 add --enable-return-routed-experts,
    --enable-prefix-caching and VLLM_USE_V2_MODEL_RUNNER=1. A server that is gone is left out until the next hand-over.
    Without any server the run stops. The key is read from MEDAGENT_API_KEY.
    """

    takes_adapters = records_routing = True

    def __init__(
        self,
        urls: list[str],
        model: str,
        adapters: str,
        timeout_s: float = 600.0,
        retries: int = 3,
        backoff_s: float = 1.0,
        seeded: bool = True,
    ) -> None:
        if not urls:
            raise ConfigError("engine servers: urls is empty. Name one server or more, such as http://node1:8000.")
        self._model, self._adapters, self._seeded = model, Path(adapters), seeded
        key = os.environ.get("MEDAGENT_API_KEY", "")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        roots = [url.rstrip("/").removesuffix("/v1") for url in urls]
        self._endpoints = {root: Endpoint(f"{root}/v1", key, timeout_s, retries, backoff_s) for root in roots}
        self._apis = {
            root: VllmApi(
                httpx.Client(base_url=root, timeout=timeout_s, headers=headers),
                f"server {root}",
                retries=retries,
                backoff_s=backoff_s,
            )
            for root in roots
        }
        self._checks: dict[str, ArrivalCheck] = {}
        self._loaded: dict[str, str] = {}  # server -> the adapter it has
        self._setup: EngineSetup | None = None
        self._handed_over = 0
        self._run = uuid4().hex[:12]  # many trainers may share servers and folder

    def start(self, module: AgentModule, setup: EngineSetup) -> None:
        """See `RolloutEngine.start`: every server must be there and serve the model."""
        self._setup = setup
        for root, api in self._apis.items():
            served = api.models()
            if self._model not in served:
                raise ConfigError(
                    f"server {root}: serves {', '.join(served) or 'nothing'}, wanted {self._model!r}. Start it with "
                    "--served-model-name, or correct model."
                )
            if module.routing_replay == "r3" and not api.returns_experts(list(setup.probe_ids), model=self._model):
                raise ConfigError(
                    f"server {root}: returns no experts, wanted those that it chose, for model.routing_replay r3. "
                    "Start vLLM 0.32 with --enable-return-routed-experts --enable-prefix-caching and "
                    "VLLM_USE_V2_MODEL_RUNNER=1, or set model.routing_replay to r2."
                )
            self._checks[root] = ArrivalCheck(module.dtype_name, four_bits=module.execution.quantise != "none")

    def hand_over(self, module: AgentModule, *, version: int) -> CompletionPolicy:
        """See `RolloutEngine.hand_over`."""
        if self._setup is None:
            raise ConfigError("engine servers: was not started. RolloutData.setup does so in a training run.")
        self._handed_over += 1
        name = f"policy-{self._run}-{version}-{self._handed_over}"
        folder = self._adapters / name
        save_adapter(module, folder)
        probe = list(self._setup.probe_ids)
        wanted, base = (ask(module, self._setup.probe_ids) for ask in (trainer_logprobs, base_logprobs))
        there = []
        for root, api in self._apis.items():
            try:
                api.load_adapter(name, folder)
                _require_served(api.roots(), name, folder, where=f"server {root}")
                if self._checks[root].is_new:
                    self._checks[root].compare_base(api.logprobs(probe, model=self._model), base)
                heard = api.logprobs(probe, model=name)
                old = self._loaded.pop(root, None)
                if old is not None and old in api.models():  # one that was started anew has none
                    api.unload_adapter(old)
            except EndpointGoneError as gone:
                log.warning("left out of iteration %d: %s", version, gone)
                self._checks[root] = ArrivalCheck(
                    module.dtype_name, four_bits=module.execution.quantise != "none"
                )  # it may come back as another process
                self._loaded.pop(root, None)
                continue
            self._checks[root](heard, wanted, where=f"server {root}")
            self._loaded[root] = name
            there.append(HttpCompletions(self._endpoints[root]))
        self._remove_folders(but={name, *self._loaded.values()})
        if not there:
            raise PolicyError(
                f"all {len(self._apis)} servers are gone. Start them again; then the same command goes on."
            )
        ends = end_token_ids(module.tokenizer, module.roles.peft)
        shape = routing_shape(module)
        return CompletionPolicy(there, name, module.tokenizer, seeded=self._seeded, end_ids=ends, routing=shape)

    def _remove_folders(self, *, but: set[str]) -> None:
        for folder in self._adapters.glob(f"policy-{self._run}-*"):
            if folder.name not in but:
                shutil.rmtree(folder)

    def close(self) -> None:
        """See `RolloutEngine.close`: the servers forget this run's adapters."""
        for root, name in self._loaded.items():
            try:
                self._apis[root].unload_adapter(name)
            except PolicyError as error:
                log.warning("adapter %s was not unloaded: %s", name, error)
        self._loaded = {}
        self._remove_folders(but=set())

    def metrics(self) -> dict[str, float]:
        """See `RolloutEngine.metrics`: those of the server that agrees least."""
        worst = max(self._checks.values(), key=lambda check: check.gap)
        return {**worst.metrics(), "sampler/replicas": float(len(self._loaded))}


def _require_served(roots: dict[str, str], name: str, folder: Path, *, where: str) -> None:
    """Refuse a server that does not list the adapter, or lists it as read from another folder."""
    if roots.get(name) not in ("", str(folder)):
        raise PolicyError(
            f"{where}: the weights handed over did not arrive. Found {name} served from "
            f"{roots.get(name) or 'nowhere'}, wanted {folder}. Start it again."
        )
