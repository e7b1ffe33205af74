"""Where a served agent's turns are sampled: in this process, by vLLM on this machine, or by vLLM servers elsewhere."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from transformers import AutoConfig, AutoTokenizer

from medagent.agent_folder import adapter_folder, base_path, has_adapter, in_process
from medagent.agent_spec import AgentSpec
from medagent.errors import ConfigError, PolicyError
from medagent.models.plain_lora import check_adapter
from medagent.models.text_length import room_on_server
from medagent.policies.completions import CompletionPolicy, HttpCompletions
from medagent.policies.http_endpoint import Endpoint
from medagent.policies.turn_ends import stored_end_token_ids
from medagent.policies.vllm.server import MODEL, VllmServer, VllmSettings
from medagent.policy import Policy

log = logging.getLogger("medagent.serving")


class Engine(Protocol):
    """Opens the policy of an agent's folder, and opens it again when the folder changes."""

    def open(self, folder: Path, spec: AgentSpec) -> Policy:
        """A policy with the folder's present weights. Blocks while they load."""
        ...

    def lives(self) -> bool:
        """Whether it can sample, as far as is known without a request."""
        ...

    def close(self) -> None:
        """Free what was started; safe to call twice."""
        ...


class InProcessSampling:
    """Loads the weights into the service's process. Waiting questions join the batch at any token."""

    def open(self, folder: Path, spec: AgentSpec) -> Policy:
        """See `Engine.open`."""
        return in_process(folder, spec, lockstep=False)

    def lives(self) -> bool:
        """See `Engine.lives`."""
        return True

    def close(self) -> None:
        """See `Engine.close`."""


@dataclass
class AdapterPolicy(CompletionPolicy):
    """Samples with one adapter, which is unloaded with it."""

    unload: Callable[[], None] = lambda: None

    async def disconnect(self) -> None:
        """See `Policy.disconnect`."""
        await super().disconnect()
        await asyncio.to_thread(self.unload)


@dataclass
class VllmSampling:
    """Starts a vLLM server, which serves the base and the agent's adapter.

    A changed folder brings a new adapter. Another base needs a restart of the service.
    """

    settings: VllmSettings = VllmSettings()
    log: Path | None = None
    _server: VllmServer | None = None
    _base: tuple[str, str, int] = ("", "", 0)
    _opened: int = 0
    _scratch: Path | None = None

    def open(self, folder: Path, spec: AgentSpec) -> Policy:
        """See `Engine.open`. Raises `PolicyError` where the new weights need a new start."""
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
            self._base = base
            self._server = VllmServer(
                base[0],
                dtype=spec.dtype,
                max_model_len=room_on_server(
                    AutoConfig.from_pretrained(weights), spec.limits.max_total_tokens, f"agent {folder}"
                ),
                lora_rank=rank_of(adapter) if adapter else 0,
                settings=self.settings,
                log=self.log,
            )
        elif base != self._base or adapter is None:
            raise PolicyError(
                f"agent {folder}: its base, dtype and longest dialogue {base} are not those that vLLM was started "
                f"with, {self._base}. Start the service again."
            )
        server = self._server.wait()
        tokenizer, source = AutoTokenizer.from_pretrained(folder), HttpCompletions(server.endpoint())
        ends = stored_end_token_ids(tokenizer, base[0])
        if adapter is None:
            return CompletionPolicy([source], MODEL, tokenizer, end_ids=ends)
        name = self._load(server, adapter)
        return AdapterPolicy([source], name, tokenizer, end_ids=ends, unload=partial(self._unload, name))

    def _load(self, server: VllmServer, adapter: Path) -> str:
        """Serve a copy of the adapter under a new name.

        A name's weights never change: running answers may still read the former ones.
        """
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="medagent-adapters-"))
        self._opened += 1
        name = f"agent-{self._opened}"
        shutil.copytree(adapter, self._scratch / name)
        server.api.load_adapter(name, self._scratch / name)
        return name

    def _unload(self, name: str) -> None:
        """Unload the adapter once no answer uses it."""
        if self._server is None or self._scratch is None:
            return
        try:
            self._server.api.unload_adapter(name)
        except PolicyError as error:
            log.warning("adapter %s stays loaded: %s", name, error)
        shutil.rmtree(self._scratch / name, ignore_errors=True)

    def lives(self) -> bool:
        """See `Engine.lives`."""
        return self._server is not None and self._server.runs

    def close(self) -> None:
        """See `Engine.close`."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._scratch is not None:
            shutil.rmtree(self._scratch)
            self._scratch = None


@dataclass(frozen=True)
class ServersSampling:
    """Uses running vLLM servers that serve the agent's weights under one name.

    The name is that of an adapter, or of what `medagent export` wrote. The servers decide when weights change.
    """

    addresses: Sequence[str]
    model: str

    def __post_init__(self) -> None:
        """Check that both are given."""
        if not self.model:
            raise ConfigError("engine servers: which model they serve is not said. Give its name with --model.")

    def open(self, folder: Path, spec: AgentSpec) -> Policy:
        """See `Engine.open`. The key is read from the environment variable MEDAGENT_API_KEY."""
        key = os.environ.get("MEDAGENT_API_KEY", "")
        sources = [HttpCompletions(Endpoint(address, key, retries=1)) for address in self.addresses]
        tokenizer = AutoTokenizer.from_pretrained(folder)
        weights = base_path(folder, spec)
        return CompletionPolicy(sources, self.model, tokenizer, end_ids=stored_end_token_ids(tokenizer, weights))

    def lives(self) -> bool:
        """See `Engine.lives`."""
        return True

    def close(self) -> None:
        """See `Engine.close`."""


def rank_of(adapter: Path) -> int:
    """The rank of a LoRA adapter in peft's form."""
    from peft import PeftConfig

    return int(PeftConfig.from_pretrained(str(adapter)).r)
