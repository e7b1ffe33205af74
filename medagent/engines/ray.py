"""Ray actors as the engine: vLLM servers on the machines of a cluster, each of which may be lost.

Needs the extras `ray` and `vllm` on every machine.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from medagent.engines.base import Engine, EngineSetup, PolicyWeights
from medagent.engines.vllm import ServedAdapters
from medagent.engines.weight_sync_check import WeightSyncCheck, require_synced, save_adapter, served_adapter
from medagent.errors import ConfigError, PolicyError
from medagent.models.base_models import model_path
from medagent.models.checksums import Checksum
from medagent.models.text_length import room_on_server
from medagent.policies.completions import CompletionPolicy
from medagent.policies.http_endpoint import EndpointGoneError
from medagent.policies.vllm.server import MODEL, VllmServer, VllmSettings

log = logging.getLogger(__name__)
SHOWN_LINES = 12  # of the error of a replica that is gone


class RayEngine(Engine):
    """`num_replicas` actors on the cluster at `address`, each with a vLLM server.

    An empty address starts a cluster on this machine for the run's time. "auto" joins the one that is there.

    Each actor takes `cpus` and `gpus` of the cluster. A new adapter is put into Ray's object store once and read by
    all. Dialogues go to the actor that has fewest. Those of an actor that dies continue on another, and the next sync
    starts a new one in its place. Every machine needs this package, vLLM, and the base model under the same name or
    path.
    """

    takes_adapters = True

    def __init__(
        self,
        num_replicas: int = 2,
        address: str = "",
        cpus: float = 1.0,
        gpus: float = 0.0,
        seeded: bool = True,
        start_timeout_s: float = 900.0,
        vllm: VllmSettings = VllmSettings(),
    ) -> None:
        if num_replicas < 1:
            raise ConfigError(f"engine ray: found num_replicas {num_replicas}, wanted 1 or more.")
        self._num_replicas, self._address = num_replicas, address
        self._cpus, self._gpus, self._seeded = cpus, gpus, seeded
        self._start_timeout_s, self._vllm = start_timeout_s, vllm
        self._ray: Any = None
        self._began_cluster = False
        self._actors: dict[int, Any] = {}
        self._checks: dict[int, WeightSyncCheck] = {}
        self._probe_ids: tuple[int, ...] = ()
        self._make_server: Callable[[], VllmServer] | None = None
        self._num_syncs = self._lost = self._num_there = 0
        self._last_error = ""

    def start(self, weights: PolicyWeights, setup: EngineSetup) -> None:
        """See `Engine.start`: joins the cluster, or starts one, and asks for the actors."""
        if importlib.util.find_spec("ray") is None:
            raise ConfigError("engine ray: ray is not installed. pip install 'medagent[ray]', or take another engine.")
        import ray

        self._ray, self._probe_ids = ray, setup.probe_ids
        self._make_server = partial(
            VllmServer,
            model_path(weights.base_name),
            dtype=weights.dtype,
            max_model_len=room_on_server(weights.config, setup.max_tokens, f"the base {weights.base_name}"),
            lora_rank=weights.lora_rank,
            settings=self._vllm,
        )
        if not ray.is_initialized():
            try:
                ray.init(address=self._address or "local", include_dashboard=False, log_to_driver=False)
            except ConnectionError as error:
                raise ConfigError(
                    f"engine ray: no cluster at {self._address!r} ({error}). Start one with ray start --head, or "
                    "leave address empty."
                ) from error
            self._began_cluster = True
        have = ray.cluster_resources()
        for name, each in (("CPU", self._cpus), ("GPU", self._gpus)):
            wanted, found = each * self._num_replicas, have.get(name, 0.0)
            if wanted > found:
                raise ConfigError(
                    f"engine ray: {self._num_replicas} replicas want {wanted:g} {name}, and the cluster has {found:g}. "
                    f"Lower num_replicas or {name.lower()}s."
                )
        for number in range(self._num_replicas):
            self._begin(number, weights)

    def _begin(self, number: int, weights: PolicyWeights) -> None:
        options = {"num_cpus": self._cpus, "num_gpus": self._gpus, "max_restarts": 0, "max_concurrency": 1000}
        self._actors[number] = self._ray.remote(**options)(RayReplica).remote(self._make_server)
        self._checks[number] = WeightSyncCheck(weights.dtype, four_bits=weights.four_bit)

    def sync_weights(self, weights: PolicyWeights, *, version: int) -> CompletionPolicy:
        """See `Engine.sync_weights`."""
        if self._make_server is None:
            raise ConfigError("engine ray: was not started. RolloutData.setup does so in a training run.")
        self._num_syncs += 1
        probe = self._probe_ids
        with TemporaryDirectory(prefix="medagent-adapter-") as scratch:
            save_adapter(weights, Path(scratch))
            files = {path.name: path.read_bytes() for path in Path(scratch).iterdir() if path.is_file()}
        stored, expected = self._ray.put(files), served_adapter(weights)
        wanted = weights.logprobs(probe) if len(probe) > 1 else None
        there = []
        self._checks = {number: check for number, check in self._checks.items() if number in self._actors}
        for number, (held, logprobs) in self._pushed(stored, list(probe), weights).items():
            where = f"Ray replica {number}"
            require_synced(expected, held, where=where)
            if wanted is not None:
                self._checks[number](logprobs, wanted, where=where)
            there.append(_RayCompletions(self._ray, self._actors[number], where, self._num_syncs))
        if not there:
            raise PolicyError(
                f"all {self._num_replicas} Ray replicas are gone, and none could be started again; of the "
                f"last:\n{self._last_error}\nMend that, and start the same command again."
            )
        self._num_there = len(there)
        return CompletionPolicy(there, MODEL, weights.tokenizer, seeded=self._seeded, end_ids=weights.end_ids)

    def _pushed(
        self, stored: Any, probe: list[int], weights: PolicyWeights
    ) -> dict[int, tuple[dict[str, Checksum], list[float]]]:
        """Replica -> what `RayReplica.push` returned, for all that took the weights. A dead one is replaced once."""
        found: dict[int, tuple[dict[str, Checksum], list[float]]] = {}
        for attempt in range(2):
            asked = {
                number: actor.push.remote(self._num_syncs, stored, probe)
                for number, actor in self._actors.items()
                if number not in found
            }
            for number, answer in asked.items():
                try:
                    found[number] = self._ray.get(answer, timeout=self._start_timeout_s)
                except (self._ray.exceptions.RayError, TimeoutError) as error:
                    self._last_error = "\n".join(str(error).splitlines()[-SHOWN_LINES:])
                    log.warning("Ray replica %d is gone:\n%s", number, self._last_error)
                    self._lost += 1
                    if not attempt:
                        self._ray.kill(self._actors[number])
                        self._begin(number, weights)
        return found

    def metrics(self) -> dict[str, float]:
        """See `Engine.metrics`: those of the replica that agrees least."""
        worst = max(self._checks.values(), key=lambda check: check.gap)
        return {**worst.metrics(), "sampler/replicas": float(self._num_there), "sampler/lost": float(self._lost)}

    def close(self) -> None:
        """See `Engine.close`."""
        if self._ray is None:
            return
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors = {}
        if self._began_cluster:
            self._ray.shutdown()
        self._ray = None


@dataclass
class _RayCompletions:
    """One actor as a source of completions."""

    _ray: Any
    _actor: Any
    name: str
    _version: int

    async def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """See `Completions.complete`."""
        try:
            choice: dict[str, Any] = await self._actor.complete.remote(self._version, body)
        except self._ray.exceptions.RayActorError as error:
            raise EndpointGoneError(f"{self.name}: died ({str(error).splitlines()[0]}).") from error
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, EndpointGoneError):  # its vLLM died, and the actor lives
                raise EndpointGoneError(f"{self.name}: {error.cause}") from error
            raise PolicyError(f"{self.name}: {error.cause!r}") from error
        if "stale" in choice:
            raise EndpointGoneError(
                f"{self.name}: has other weights (version {choice['stale']}, wanted {self._version})."
            )
        return choice

    async def disconnect(self) -> None:
        """See `Policy.disconnect`: Ray's connections are the process's."""


class RayReplica:
    """A vLLM server in a Ray actor. Requests carry the version of the weights that they are meant for."""

    def __init__(self, make_server: Callable[[], VllmServer]) -> None:
        self._version, self._served = -1, MODEL
        self._server = make_server().wait()
        self._adapters, self._completions = ServedAdapters(self._server), self._server.completions()

    async def push(
        self, version: int, files: Mapping[str, bytes], probe: list[int]
    ) -> tuple[dict[str, Checksum], list[float]]:
        """Load an adapter. Returns its checksums, and the log-probs of the probe's tokens after the first."""
        self._version = -1  # also where loading fails halfway
        self._served = self._adapters.replace(self._served, partial(_write, files))
        checksums = self._server.held_adapter()
        self._version = version
        return checksums, self._server.api.logprobs(probe, model=self._served) if len(probe) > 1 else []

    async def complete(self, version: int, body: dict[str, Any]) -> dict[str, Any]:
        """The first choice for a request, as `Completions.complete` gives it.

        Returns {"stale": version} if it holds the weights of another version.
        """
        if version != self._version:
            return {"stale": self._version}
        return await self._completions.complete({**body, "model": self._served})


def _write(files: Mapping[str, bytes], folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
