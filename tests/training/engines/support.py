"""A vLLM server's stand-in, which computes with the real base."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import load_file

from medagent.models.causal_lm import load_causal_lm
from medagent.models.checksums import Checksum, checksum, combined, place
from medagent.policies.vllm.server import MODEL
from tests.medagent.policies.support import FakeSource


class StandIn(FakeSource):
    """Takes adapters as vLLM does, and keeps the calls. A `deaf` one goes on with what it has."""

    def __init__(self, model: str, *, dtype: str, **settings: Any) -> None:
        self.model, self.dtype, self.settings = model, dtype, settings
        self.base = load_causal_lm(model, dtype=dtype)[0]
        self.calls: list[str] = []
        self.adapters: dict[str, Path] = {}
        self.held: dict[str, Checksum] = {}
        self.served: PeftModel | None = None
        self.deaf = False
        self.api = self

    def wait(self) -> StandIn:
        return self

    def completions(self) -> StandIn:
        return self

    async def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        assert body["model"] in (MODEL, *self.adapters)
        ids = [20] * body["max_tokens"]
        return {"token_ids": ids, "logprobs": {"token_logprobs": [0.0] * len(ids)}, "finish_reason": "length"}

    def load_adapter(self, name: str, folder: Path) -> None:
        self.calls.append("load")
        self.adapters[name] = folder
        if self.deaf:
            return
        base = load_causal_lm(self.model, dtype=self.dtype)[0]
        self.served = PeftModel.from_pretrained(base, folder).eval()
        settings = json.loads((folder / "adapter_config.json").read_text())
        scaling, kind = settings["lora_alpha"] / settings["r"], getattr(torch, self.dtype)
        stored = load_file(folder / "adapter_model.safetensors")
        held: dict[str, list[Checksum]] = {}
        for name, value in stored.items():
            kind_of = "lora_A" if ".lora_A." in name else "lora_B"
            cast = value.to(kind) * (scaling if kind_of == "lora_B" else 1)
            held.setdefault(place(name.removesuffix(f".{kind_of}.weight"), kind_of), []).append(checksum(cast))
        self.held = {where: combined(each) for where, each in held.items()}

    def unload_adapter(self, name: str) -> None:
        self.calls.append("unload")
        assert (self.adapters.pop(name) / "adapter_config.json").exists(), "its folder is still there"

    def held_adapter(self) -> dict[str, Checksum]:
        return self.held

    @torch.no_grad()
    def logprobs(self, token_ids: list[int], *, model: str) -> list[float]:
        self.calls.append("probe")
        served = self.base if model == MODEL else self.served
        assert served is not None
        assert model == MODEL or list(self.adapters)[-1] == model
        scores = served(input_ids=torch.tensor([token_ids])).logits[0, :-1].float().log_softmax(-1)
        return scores.gather(1, torch.tensor(token_ids[1:])[:, None])[:, 0].tolist()

    def sleep(self) -> None:
        self.calls.append("sleep")

    def wake(self) -> None:
        self.calls.append("wake")

    def close(self) -> None:
        self.calls.append("close")
