"""Real vLLM in bfloat16: healthy syncs pass, and one that is withheld, stale or half applied is caught at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from safetensors.torch import load_file, save_file

from medagent.engines.vllm import ServedAdapters
from medagent.errors import PolicyError
from medagent.policies.vllm.api import VllmApi
from medagent.policies.vllm.server import VllmServer
from medagent.training.engines import ModuleWeights, VllmEngine
from medagent.training.lora import LoraSettings
from medagent.training.module import AgentModule
from tests.training.support import setup_of

pytestmark = pytest.mark.vllm
PUSH, LOAD = VllmServer.push_weights, VllmApi.load_adapter


def make_module(dtype: str) -> AgentModule:
    torch.manual_seed(0)
    return AgentModule(dtype=dtype, policy_lora=LoraSettings(32, 64), critic_lora=None)


def small_step(module: AgentModule, rate: float = 1e-5) -> None:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.shared_base.policy_parameters():
            parameter += rate * torch.randn(parameter.shape, generator=generator).sign()


@pytest.fixture(scope="module", params=["merged float32", "auto bfloat16"])
def engine(request, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[VllmEngine, str]]:
    weight_sync, dtype = request.param.split()
    made, module = VllmEngine(weight_sync=weight_sync), make_module(dtype)
    made.start(ModuleWeights(module), setup_of(module, tmp_path_factory.mktemp(dtype)))
    yield made, dtype
    made.close()


def test_healthy_syncs_raise_no_alarm(engine) -> None:
    made, dtype = engine
    module = make_module(dtype)
    for version in range(6):
        made.sync_weights(ModuleWeights(module), version=version)
        assert made.metrics()["sampler/probe_gap"] < {"float32": 1e-4, "bfloat16": 0.1}[dtype]
        small_step(module)
        small_step(module)


def nothing_pushed(server, like, weights) -> None:
    """No weight is read."""


def old_pushed(server, like, weights) -> None:
    list(weights)  # they are not sent; the server loads what lies in the shared memory from the time before


def half_pushed(server, like, weights) -> None:
    rows = list(weights)[: len(like) // 2]
    PUSH(server, {name: like[name] for name, _ in rows}, rows)


def last_adapter_loaded(api, name, folder) -> None:
    """The newest adapter is a copy of the one before, under the new name."""
    tensors = {key: 0.5 * value for key, value in load_file(folder / "adapter_model.safetensors").items()}
    save_file(tensors, folder / "adapter_model.safetensors")
    LOAD(api, name, folder)


def half_adapter_loaded(api, name, folder) -> None:
    tensors = load_file(folder / "adapter_model.safetensors")
    kept = {key: value for key, value in tensors.items() if ".layers.0." in key}
    assert 0 < len(kept) < len(tensors)
    save_file(kept, folder / "adapter_model.safetensors")
    LOAD(api, name, folder)


MISTAKES = {
    "merged": {"push_weights": [nothing_pushed, old_pushed, half_pushed]},
    "adapter": {"load_adapter": [last_adapter_loaded, half_adapter_loaded]},
}


def test_a_sync_that_fails_is_caught_at_once(engine, monkeypatch: pytest.MonkeyPatch) -> None:
    made, dtype = engine
    module = make_module(dtype)
    made.sync_weights(ModuleWeights(module), version=10)
    for method, mistakes in MISTAKES[made._form].items():
        for mistake in mistakes:
            small_step(module)
            with monkeypatch.context() as patched:
                patched.setattr(VllmServer if method == "push_weights" else VllmApi, method, mistake)
                with pytest.raises(PolicyError, match="the weight sync failed"):
                    made.sync_weights(ModuleWeights(module), version=11)
            made.sync_weights(ModuleWeights(module), version=12)
    if made._form == "adapter":
        small_step(module)
        for method in ("load", "unload"):
            monkeypatch.setattr(ServedAdapters, method, lambda *arguments: None)
        with pytest.raises(PolicyError, match="the weight sync failed"):
            made.sync_weights(ModuleWeights(module), version=13)
