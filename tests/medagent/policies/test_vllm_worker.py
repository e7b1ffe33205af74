"""The weights that a vLLM worker reports: fused, packed and wrong ones, and adapters as vLLM keeps them."""

from __future__ import annotations

import json
from multiprocessing.shared_memory import SharedMemory
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from medagent.engines.weight_sync import served_adapter
from medagent.models.checksums import checksum
from medagent.policies.vllm.worker import WeightReceiver, view
from medagent.training.engines import ModuleWeights
from medagent.training.lora import LoraSettings
from medagent.training.module import AgentModule
from tests.training.support import perturb

PARTS = ("q_proj", "k_proj", "v_proj", "o_proj")


class Served(nn.Module):
    """A layer as vLLM lays it out: q, k and v in one weight."""

    packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}  # noqa: RUF012 (as vLLM's classes have it)

    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.ModuleDict({"qkv_proj": nn.Linear(4, 12, bias=False), "o_proj": nn.Linear(4, 4, bias=False)})
        self.loads = True

    @torch.no_grad()
    def load(self, weights: dict[str, torch.Tensor]) -> None:
        if self.loads:
            rows = [weights[f"attn.{part}.weight"] for part in PARTS[:3]]
            self.attn["qkv_proj"].weight.copy_(torch.cat(rows))
            self.attn["o_proj"].weight.copy_(weights["attn.o_proj.weight"])


class Worker(WeightReceiver):
    def __init__(self, model: Served) -> None:
        self.model_runner = SimpleNamespace(get_model=lambda: model)
        self.reload_weights = lambda weights_iterator: model.load(dict(weights_iterator))


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {f"attn.{part}.weight": torch.randn(4, 4) for part in PARTS}


def push(worker: Worker, weights: dict[str, torch.Tensor]) -> None:
    memory = SharedMemory(create=True, size=64 * len(weights))
    try:
        layout = [[name, "float32", [4, 4], 64 * at] for at, name in enumerate(weights)]
        for name, kind, shape, offset in layout:
            view(memory, kind, shape, offset).copy_(weights[name])
        assert worker.receive_weights(memory.name, json.dumps(layout)) == len(weights)
    finally:
        memory.close()
        memory.unlink()


def wanted(weights: dict[str, torch.Tensor]) -> dict[str, tuple[int, int]]:
    return {name: checksum(weight) for name, weight in weights.items()}


def test_fused_weights_are_held_and_nothing_before_the_first_sync(weights) -> None:
    worker = Worker(Served())
    assert worker.held_weights() == {}
    push(worker, weights)
    assert worker.held_weights() == wanted(weights)


def test_a_weight_that_the_model_did_not_take_is_not_held(weights) -> None:
    model = Served()
    worker = Worker(model)
    push(worker, weights)
    with torch.no_grad():
        model.attn["qkv_proj"].weight[5, 2] += 1e-6
    assert set(worker.held_weights()) == {"attn.o_proj.weight"}
    model.loads = False
    push(worker, {name: weight + 1 for name, weight in weights.items()})
    assert worker.held_weights() == {}


def test_what_a_kernel_has_packed_is_what_was_received(weights) -> None:
    model = Served()
    worker = Worker(model)
    push(worker, weights)
    model.attn["qkv_proj"].weight = nn.Parameter(torch.empty(0))
    assert worker.held_weights() == wanted(weights)


@pytest.mark.parametrize("alpha", [6, 8])  # a scaling of 1.5 rounds in bfloat16, one of 2 does not
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_adapter_is_compared_as_vllm_keeps_it(dtype: str, alpha: int) -> None:
    torch.manual_seed(0)
    module = AgentModule(dtype=dtype, policy_lora=LoraSettings(rank=4, alpha=alpha), critic_lora=None)
    perturb(module)
    scaling = module.policy_lora.alpha / module.policy_lora.rank
    kind = getattr(torch, dtype)
    matrices = {name: weight.to(kind) for name, weight in module.shared_base.adapter_weights().items()}
    loras = {}
    for name in [name for name in matrices if ".lora_A." in name and "k_proj" not in name]:
        a, b = matrices[name], matrices[name.replace("lora_A", "lora_B")] * scaling
        loras[name] = SimpleNamespace(lora_a=a, lora_b=b, scaling=1)
        if "q_proj" in name:  # with k_proj in one fused layer, not yet scaled, and a part without an adapter
            key = name.replace("q_proj", "k_proj")
            others = [matrices[key], matrices[key.replace("lora_A", "lora_B")]]
            loras[name] = SimpleNamespace(
                lora_a=[a, others[0], None], lora_b=[b, others[1], None], scaling=[1, scaling, None]
            )
    worker = Worker(Served())
    manager = SimpleNamespace(list_adapters=lambda: {7: SimpleNamespace(loras=loras)})
    worker.model_runner.lora_manager = SimpleNamespace(_adapter_manager=manager)
    assert worker.held_adapters() == {"7": served_adapter(ModuleWeights(module))}
