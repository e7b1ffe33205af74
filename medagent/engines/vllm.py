"""vLLM on this machine as the engine: a server in a process of its own."""

import asyncio
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from weakref import finalize

import torch
from peft import PeftConfig
from transformers import AutoConfig, AutoTokenizer

from medagent.agent_spec import AgentSpec
from medagent.engines.base import Engine, EngineSetup, PolicyWeights
from medagent.engines.weight_sync_check import WeightSyncCheck, require_synced, save_adapter, served_adapter
from medagent.errors import ConfigError, PolicyError
from medagent.models.agent_weights import adapter_folder, base_path, has_adapter
from medagent.models.base_models import model_path
from medagent.models.plain_lora import check_adapter
from medagent.models.text_length import room_on_server
from medagent.policies.completions import CompletionPolicy
from medagent.policies.turn_ends import stored_end_token_ids
from medagent.policies.vllm.server import HAS_TRITON, MODEL, VllmServer, VllmSettings

log = logging.getLogger(__name__)


class VllmEngine(Engine):
    """A vLLM server on this machine that samples with the policy's weights.

    vLLM serves the LoRA beside the base, under a new name at each sync.

    `colocated`: trainer and vLLM share a GPU, and each sleeps while the other works. Otherwise give vLLM GPUs of its
    own (`settings.devices`), or a share of the trainer's (`settings.gpu_memory`). Under DDP every rank starts a server.
    `settings.devices` may then name one GPU per rank, separated by ";".

    An opened agent is served as the base and its adapter. A changed folder brings a new adapter. Another base needs a
    restart of the service.
    """

    takes_adapters = True

    def __init__(self, colocated: bool = False, settings: VllmSettings = VllmSettings()) -> None:
        self._colocated, self._settings = colocated, settings
        self.overlaps = not colocated
        self.trainer_share = 1.0 if colocated or settings.devices else 1.0 - settings.gpu_memory
        self._server: VllmServer | None = None
        self._adapters: ServedAdapters | None = None
        self._setup: EngineSetup | None = None
        self._check: WeightSyncCheck | None = None
        self._served = MODEL
        self._base: tuple[str, str, int] = ("", "", 0)
        self._asleep = False

    def open(self, folder: Path, spec: AgentSpec, *, lockstep: bool = False) -> CompletionPolicy:
        """See `Engine.open`. The adapter is copied: answers that still run keep the weights that they began with."""
        if spec.quantise != "none":
            raise ConfigError(
                f"agent {folder}: was trained on a base in 4 bits ({spec.quantise}), and vLLM would sample with "
                f"the base in {spec.dtype}, which is another model. Take --engine in_process, or serve what "
                "`medagent export` writes: it holds the weights as they were trained."
            )
        adapter = adapter_folder(folder) if has_adapter(folder) else None
        if adapter is not None:
            check_adapter(adapter, beside=True)
        weights = base_path(folder, spec)
        base = (weights, spec.dtype, spec.limits.max_total_tokens)
        if self._server is None:
            longest = room_on_server(
                AutoConfig.from_pretrained(weights, trust_remote_code=False), base[2], f"agent {folder}"
            )
            self._base = base
            self._server = VllmServer(
                weights,
                dtype=spec.dtype,
                max_model_len=longest,
                lora_rank=int(PeftConfig.from_pretrained(str(adapter)).r) if adapter else 0,
                settings=self._settings,
                log=Path(tempfile.gettempdir()) / f"medagent-vllm-{os.getpid()}.log",
            )
        elif base != self._base or adapter is None:
            raise PolicyError(
                f"agent {folder}: its base, dtype and longest dialogue {base} are not those that vLLM was started "
                f"with, {self._base}. Start the service again."
            )
        source = self._server.wait().completions()
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        ends = stored_end_token_ids(tokenizer, weights)
        if adapter is None:
            return CompletionPolicy([source], MODEL, tokenizer, end_ids=ends)
        self._adapters = served = self._adapters or ServedAdapters(self._server)
        name = served.load(partial(shutil.copytree, adapter))
        return _AdapterPolicy([source], name, tokenizer, end_ids=ends, unload=partial(served.try_unload, name))

    def is_alive(self) -> bool:
        return self._server is not None and self._server.runs

    def start(self, weights: PolicyWeights, setup: EngineSetup) -> None:
        """See `Engine.start`; returns while vLLM still loads."""
        self._setup, self._check = setup, WeightSyncCheck(weights.dtype, four_bits=weights.four_bit)
        if weights.has_experts and not HAS_TRITON:
            raise ConfigError(
                "engine vllm: would serve the adapter beside a mixture of experts, which vLLM can only with Triton, so "
                "on a GPU. Take InProcessEngine."
            )
        self._server = VllmServer(
            model_path(weights.base_name),
            dtype=weights.dtype,
            max_model_len=room_on_server(weights.config, setup.max_tokens, f"the base {weights.base_name}"),
            lora_rank=weights.lora_rank,
            sleeps=self._colocated,
            settings=of_rank(self._settings, setup, colocated=self._colocated),
            log=setup.folder / "logs" / f"vllm-{setup.rank}.log",
        )

    def sync_weights(self, weights: PolicyWeights, *, version: int) -> CompletionPolicy:
        if self._server is None or self._setup is None or self._check is None:
            raise ConfigError("engine vllm: was not started. RolloutData.setup does so in a training run.")
        server = self._server.wait()
        if self._asleep:
            torch.cuda.empty_cache()  # vLLM needs the memory that the update has left in torch's cache
            server.wake()
            self._asleep = False
        self._adapters = self._adapters or ServedAdapters(server)
        self._served = self._adapters.replace(self._served, partial(save_adapter, weights))
        require_synced(served_adapter(weights), server.held_adapter(), where="vLLM")
        probe = self._setup.probe_ids
        if len(probe) > 1:
            self._check(server.api.logprobs(list(probe), model=self._served), weights.logprobs(probe), where="vLLM")
        return CompletionPolicy([server.completions()], self._served, weights.tokenizer, end_ids=weights.end_ids)

    def sleep(self) -> None:
        """See `Engine.sleep`: vLLM sleeps where the GPU is shared."""
        if self._colocated and self._server is not None and not self._asleep:
            self._server.sleep()
            self._asleep = True

    def metrics(self) -> dict[str, float]:
        return self._check.metrics() if self._check else {}

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._adapters is not None:
            self._adapters.close()
            self._adapters = None


@dataclass
class _AdapterPolicy(CompletionPolicy):
    """Samples with one adapter, which is unloaded with it."""

    unload: Callable[[], None] = lambda: None

    async def disconnect(self) -> None:
        await super().disconnect()
        await asyncio.to_thread(self.unload)


class ServedAdapters:
    """The adapters that a vLLM server on this machine serves, each under a name and from a folder of its own.

    A name's weights never change: running answers may still read the former ones.
    """

    def __init__(self, server: VllmServer) -> None:
        self._api, self._folder = server.api, Path(tempfile.mkdtemp(prefix="medagent-adapters-"))
        self._remove = finalize(self, shutil.rmtree, self._folder, ignore_errors=True)  # also where nothing closes it
        self._num_loaded, self._closed = 0, False

    def load(self, write: Callable[[Path], object]) -> str:
        """Serve the adapter that `write` puts into the folder it is given; returns its name, such as "adapter-1"."""
        self._num_loaded += 1
        name = f"adapter-{self._num_loaded}"
        write(self._folder / name)
        self._api.load_adapter(name, self._folder / name)
        return name

    def replace(self, former: str, write: Callable[[Path], object]) -> str:
        """The same, after which `former` is served no longer; "policy" names the base, which stays."""
        name = self.load(write)
        if former != MODEL:
            self._api.unload_adapter(former)
            shutil.rmtree(self._folder / former)
        return name

    def try_unload(self, name: str) -> None:
        """Serve it no longer, unless the server refuses or is gone."""
        if self._closed:
            return
        try:
            self._api.unload_adapter(name)
        except PolicyError as error:
            log.warning("adapter %s stays loaded: %s", name, error)
        shutil.rmtree(self._folder / name, ignore_errors=True)

    def close(self) -> None:
        """Remove the folders: the server is gone."""
        self._closed = True
        self._remove()


def of_rank(settings: VllmSettings, setup: EngineSetup, *, colocated: bool) -> VllmSettings:
    """The settings of one rank: its own entry, if `devices` lists several by ";".

    Colocated without a list, a rank takes the trainer's own GPU.
    """
    if not settings.devices and colocated and setup.device.type == "cuda":
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        index = setup.device.index or 0
        return replace(settings, devices=visible.split(",")[index] if visible else str(index))
    lists = settings.devices.split(";")
    if len(lists) == 1 and (setup.num_ranks == 1 or setup.device.type != "cuda"):
        return settings
    if len(lists) < setup.num_ranks:
        raise ConfigError(
            f"engine vllm: settings.devices ({settings.devices or 'all'}) names GPUs for {len(lists)} of "
            f'{setup.num_ranks} ranks. Name one list per rank, such as "4;5;6;7".'
        )
    return replace(settings, devices=lists[setup.rank])
