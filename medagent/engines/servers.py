"""vLLM servers elsewhere as the engine, reached over HTTP."""

import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import httpx
from transformers import AutoTokenizer

from medagent.agent_spec import AgentSpec
from medagent.engines.base import Engine, EngineSetup, PolicyWeights
from medagent.engines.weight_sync_check import WeightSyncCheck, save_adapter
from medagent.errors import ConfigError, PolicyError
from medagent.models.agent_weights import base_path
from medagent.policies.completions import CompletionPolicy, HttpCompletions
from medagent.policies.http_endpoint import Endpoint, EndpointGoneError
from medagent.policies.turn_ends import stored_end_token_ids
from medagent.policies.vllm.server import VllmApi

log = logging.getLogger(__name__)


class ServersEngine(Engine):
    """vLLM servers that serve the trained base, each iteration with a new adapter.

    `urls` are their addresses, such as http://node1:8000. `model` is the name under which they serve the base.
    `adapters` is a folder that trainer and servers see under the same path. Each iteration's adapter is written there,
    and loaded over the servers' API under a name of its own.

    Start the servers with `vllm serve MODEL --enable-lora --max-lora-rank RANK --logprobs-mode processed_logprobs` and
    VLLM_ALLOW_RUNTIME_LORA_UPDATING=1. A server that is gone is left out until the next sync. Without any server the
    run stops. The key is read from MEDAGENT_API_KEY.

    An opened agent needs no `adapters`: `model` is then the name under which the servers serve its weights, which is
    that of an adapter or of an export. The servers decide when weights change.
    """

    takes_adapters = True

    def __init__(
        self,
        urls: list[str],
        model: str,
        adapters: str = "",
        timeout_s: float = 600.0,
        retries: int = 3,
        backoff_s: float = 1.0,
    ) -> None:
        if not urls:
            raise ConfigError("engine servers: urls is empty. Name one server or more, such as http://node1:8000.")
        if not model:
            raise ConfigError(
                "engine servers: model is empty. Give the name of the model that they serve with --model."
            )
        self._urls, self._model, self._adapters = urls, model, adapters
        self._timeout_s, self._retries, self._backoff_s = timeout_s, retries, backoff_s
        self._key = os.environ.get("MEDAGENT_API_KEY", "")
        self._servers: list[_Server] = []
        self._setup: EngineSetup | None = None
        self._num_syncs = 0
        self._run = uuid4().hex[:12]  # many trainers may share servers and folder

    def open(self, folder: Path, spec: AgentSpec, *, lockstep: bool = False) -> CompletionPolicy:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        ends = stored_end_token_ids(tokenizer, base_path(folder, spec))
        sources = [HttpCompletions(self._endpoint(url)) for url in self._urls]
        return CompletionPolicy(sources, self._model, tokenizer, end_ids=ends)

    def _endpoint(self, url: str) -> Endpoint:
        return Endpoint(url, self._key, self._timeout_s, self._retries, self._backoff_s)

    def _api(self, root: str) -> VllmApi:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        client = httpx.Client(base_url=root, timeout=self._timeout_s, headers=headers)
        return VllmApi(client, f"server {root}", retries=self._retries, backoff_s=self._backoff_s)

    def start(self, weights: PolicyWeights, setup: EngineSetup) -> None:
        """See `Engine.start`: every server must be there and serve the model."""
        if not self._adapters:
            raise ConfigError(
                "engine servers: adapters is not set. Name a folder that trainer and servers see under the same path."
            )
        self._setup = setup
        for root in (url.rstrip("/").removesuffix("/v1") for url in self._urls):
            server = _Server(self._endpoint(f"{root}/v1"), self._api(root), f"server {root}", _check(weights))
            served = server.api.models()
            if self._model not in served:
                raise ConfigError(
                    f"{server.where}: serves {', '.join(served) or 'nothing'}, wanted {self._model!r}. Start it with "
                    "--served-model-name, or correct model."
                )
            self._servers.append(server)

    def sync_weights(self, weights: PolicyWeights, *, version: int) -> CompletionPolicy:
        if self._setup is None:
            raise ConfigError("engine servers: was not started. RolloutData.setup does so in a training run.")
        self._num_syncs += 1
        name = f"policy-{self._run}-{version}-{self._num_syncs}"
        folder = Path(self._adapters) / name
        save_adapter(weights, folder)
        probe = self._setup.probe_ids
        wanted, base = weights.logprobs(probe), weights.base_logprobs(probe)
        for server in self._servers:
            try:
                server.api.load_adapter(name, folder)
                if server.check.is_new:
                    server.check.compare_base(server.api.logprobs(list(probe), model=self._model), base)
                found = server.api.logprobs(list(probe), model=name)
                former, server.adapter = server.adapter, ""
                if former and former in server.api.models():  # a server that was started anew has none
                    server.api.unload_adapter(former)
            except EndpointGoneError as gone:
                log.warning("left out of iteration %d: %s", version, gone)
                server.adapter, server.check = "", _check(weights)  # it may come back as another process
                continue
            server.check(found, wanted, where=server.where)
            server.adapter = name
        there = [server for server in self._servers if server.adapter]
        self._remove_folders(but={name, *(server.adapter for server in there)})
        if not there:
            raise PolicyError(f"all {len(self._servers)} servers are gone. Start them and the same command again.")
        return CompletionPolicy(
            [HttpCompletions(server.endpoint) for server in there],
            name,
            weights.tokenizer,
            end_ids=weights.end_ids,
        )

    def _remove_folders(self, *, but: set[str]) -> None:
        for folder in Path(self._adapters).glob(f"policy-{self._run}-*"):
            if folder.name not in but:
                shutil.rmtree(folder)

    def close(self) -> None:
        """See `Engine.close`: the servers unload this run's adapters."""
        for server in self._servers:
            try:
                if server.adapter:
                    server.api.unload_adapter(server.adapter)
            except PolicyError as error:
                log.warning("adapter %s was not unloaded: %s", server.adapter, error)
            server.adapter = ""
        self._remove_folders(but=set())

    def metrics(self) -> dict[str, float]:
        """See `Engine.metrics`: those of the server that agrees least."""
        worst = max((server.check for server in self._servers), key=lambda check: check.gap)
        replicas = sum(bool(server.adapter) for server in self._servers)
        return {**worst.metrics(), "sampler/replicas": float(replicas)}


@dataclass
class _Server:
    """One server, the check of its syncs, and the name of the adapter that it serves; empty if it has none."""

    endpoint: Endpoint
    api: VllmApi
    where: str
    check: WeightSyncCheck
    adapter: str = ""


def _check(weights: PolicyWeights) -> WeightSyncCheck:
    return WeightSyncCheck(weights.dtype, four_bits=weights.four_bit)
