"""The adapters that a vLLM worker reports, as vLLM keeps them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from medagent.engines.weight_sync_check import served_adapter
from medagent.policies.vllm.worker import AdapterChecksums
from medagent.training.engines import ModuleWeights
from medagent.training.lora import LoraSettings
from medagent.training.module import AgentModule
from tests.training.support import perturb


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
    worker = AdapterChecksums()
    manager = SimpleNamespace(list_adapters=lambda: {7: SimpleNamespace(loras=loras)})
    worker.model_runner = SimpleNamespace(lora_manager=SimpleNamespace(_adapter_manager=manager))
    assert worker.held_adapters() == {"7": served_adapter(ModuleWeights(module))}
