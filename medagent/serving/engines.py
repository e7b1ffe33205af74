"""What samples a served agent's turns: its weights in this process, vLLM on this machine, or vLLM servers elsewhere."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from transformers import AutoTokenizer

from medagent.causal_lm import model_path
from medagent.completion_policy import CompletionPolicy, HttpCompletions
from medagent.endpoint import Endpoint
from medagent.errors import ConfigError, PolicyError
from medagent.hf_policy import HFPolicy
from medagent.policy import Policy
from medagent.saved import AgentSpec, adapter_folder, load_weights
from medagent.vllm_server import MODEL, VllmServer, VllmSettings


class Engine(Protocol):
    """Opens the policy of an agent's folder, again whenever the folder has changed."""

    def open(self, folder: Path, spec: AgentSpec) -> Policy:
        """A policy with the weights that the folder has now; blocks while they load."""
        ...

    def close(self) -> None:
        """Free what was started; safe to call twice."""
        ...


class InProcess:
    """The weights are loaded beside the service; waiting questions join the batch at any token."""

    def open(self, folder: Path, spec: AgentSpec) -> Policy:
        """See `Engine.open`."""
        return HFPolicy(*load_weights(folder, spec), lockstep=False)

    def close(self) -> None:
        """See `Engine.close`."""


@dataclass
class Vllm:
    """A vLLM server of our own, with the agent's adapter beside its base. A changed folder brings a new adapter; another base needs a new start."""

    settings: VllmSettings = VllmSettings()
    log: Path | None = None
    _server: VllmServer | None = None
    _base: tuple[str, str] = ("", "")
    _names: list[str] = field(default_factory=list)
    _scratch: Path | None = None

    def open(self, folder: Path, spec: AgentSpec) -> Policy:
        """See `Engine.open`. Raises `PolicyError` where the new weights need a new start."""
        adapter = adapter_folder(folder) if (folder / "adapter").exists() else None
        base = (str(folder.resolve()) if spec.base_model == "." else model_path(spec.base_model), spec.dtype)
        if self._server is None:
            self._base = base
            self._server = VllmServer(
                base[0],
                dtype=spec.dtype,
                max_model_len=spec.limits.max_total_tokens + 1,
                lora_rank=rank_of(adapter) if adapter else 0,
                settings=self.settings,
                log=self.log,
            )
        elif base != self._base or adapter is None:
            raise PolicyError(
                f"agent {folder}: its base {base} is not the one that vLLM holds, {self._base}. Start the service again."
            )
        server = self._server.wait()
        name = self._with_adapter(server, adapter) if adapter else MODEL
        return CompletionPolicy([HttpCompletions(server.endpoint())], name, AutoTokenizer.from_pretrained(folder))

    def _with_adapter(self, server: VllmServer, adapter: Path) -> str:
        """Serve a copy under a new name: a name's weights never change, and answers that run may still read the former one."""
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="medagent-adapters-"))
        name = f"agent-{len(self._names) + 1}"
        shutil.copytree(adapter, self._scratch / name)
        server.api.load_adapter(name, self._scratch / name)
        self._names.append(name)
        if len(self._names) > 2:
            oldest = self._names[-3]
            server.api.unload_adapter(oldest)
            shutil.rmtree(self._scratch / oldest)
        return name

    def close(self) -> None:
        """See `Engine.close`."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._scratch is not None:
            shutil.rmtree(self._scratch)
            self._scratch = None


@dataclass(frozen=True)
class Servers:
    """vLLM servers elsewhere that serve the agent's weights under one name (an adapter, or what `medagent export` wrote); they say themselves when those change."""

    addresses: Sequence[str]
    model: str

    def __post_init__(self) -> None:
        """Both must be given."""
        if not self.model:
            raise ConfigError("endpoints: which model they serve is not said. Give its name with --model.")

    def open(self, folder: Path, spec: AgentSpec) -> Policy:
        """See `Engine.open`. The key is read from the environment variable MEDAGENT_API_KEY."""
        key = os.environ.get("MEDAGENT_API_KEY", "")
        sources = [HttpCompletions(Endpoint(address, key, retries=1)) for address in self.addresses]
        return CompletionPolicy(sources, self.model, AutoTokenizer.from_pretrained(folder))

    def close(self) -> None:
        """See `Engine.close`."""


def rank_of(adapter: Path) -> int:
    """The rank of a LoRA adapter in peft's form."""
    from peft import PeftConfig

    return int(PeftConfig.from_pretrained(str(adapter)).r)
