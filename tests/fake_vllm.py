"""A small server that speaks vLLM's API with a real model and real adapters behind it, and fails on demand."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from medagent.models.base_models import STARTER
from medagent.models.causal_lm import load_causal_lm
from medagent.protocol import TagProtocol


class FakeVllm(ThreadingHTTPServer):
    """Greedy whatever the temperature. `failing` answers 503; `forgetful` takes adapters and goes on with the base."""

    daemon_threads = True

    def __init__(self, name: str = "base") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        base, self.tokenizer = load_causal_lm(STARTER)
        self.models: dict[str, PreTrainedModel | PeftModel] = {name: base}
        self.bodies: list[dict[str, Any]] = []
        self.failing = self.forgetful = self.without_ids = False
        self.lock = Lock()
        self._thread = Thread(target=self.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def load(self, name: str, folder: str) -> None:
        base, _ = load_causal_lm(STARTER)
        assert (Path(folder) / "adapter_model.safetensors").exists()
        self.models[name] = base if self.forgetful else PeftModel.from_pretrained(base, folder).eval()

    @torch.no_grad()
    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        model = self.models[body["model"]]
        ids = list(body["prompt"])
        if "prompt_logprobs" in body:
            logprobs = torch.log_softmax(model(torch.tensor([ids])).logits[0].float(), -1)
            rows = [None, *({str(token): {"logprob": float(logprobs[at, token])}} for at, token in enumerate(ids[1:]))]
            return {"prompt_logprobs": rows}
        return _greedy(model, self.tokenizer, ids, body)


def _greedy(
    model: PreTrainedModel | PeftModel, tokenizer: PreTrainedTokenizerBase, ids: list[int], body: dict[str, Any]
) -> dict[str, Any]:
    sampled: list[int] = []
    values: list[float] = []
    reason = "length"
    while len(sampled) < body["max_tokens"]:
        logprobs = torch.log_softmax(model(torch.tensor([ids + sampled])).logits[0, -1].float(), -1)
        sampled.append(int(logprobs.argmax()))
        values.append(float(logprobs.max()))
        if sampled[-1] in [tokenizer.eos_token_id, *body["stop_token_ids"]] or tokenizer.decode(sampled).endswith(
            tuple(block.end for block in TagProtocol().blocks)
        ):
            reason = "stop"
            break
    return {"token_ids": sampled, "logprobs": {"token_logprobs": values}, "finish_reason": reason}


class _Handler(BaseHTTPRequestHandler):
    server: FakeVllm

    def do_GET(self) -> None:
        self._say(200, {"data": [{"id": name} for name in self.server.models]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or "null")
        fake = self.server
        if fake.failing:
            self._say(503, {"error": "busy"})
            return
        with fake.lock:
            if self.path == "/v1/load_lora_adapter":
                fake.load(body["lora_name"], body["lora_path"])
                self._say(200, {})
            elif self.path == "/v1/unload_lora_adapter":
                del fake.models[body["lora_name"]]
                self._say(200, {})
            else:
                fake.bodies.append(body)
                choice = fake.complete(body)
                if fake.without_ids:
                    choice.pop("token_ids", None)
                self._say(200, {"choices": [choice]})

    def _say(self, status: int, answer: object) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *arguments: object) -> None:
        """Be silent."""
