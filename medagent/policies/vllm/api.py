"""The calls to a vLLM server apart from completions.

They are adapters, log-probs of a given text, and what a trainer needs (weights, prefix cache, sleep).
"""

import time
from pathlib import Path
from typing import Any

import httpx

from medagent.errors import PolicyError
from medagent.policies.http_endpoint import EndpointGoneError
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
