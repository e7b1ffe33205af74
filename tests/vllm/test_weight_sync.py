"""Real vLLM: healthy syncs pass, and one that is withheld, stale or half applied is caught at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from safetensors.torch import load_file, save_file

from medagent.engines.vllm import ServedAdapters
from medagent.errors import PolicyError
from medagent.policies.vllm.server import VllmApi
from medagent.training.engines import ModuleWeights, VllmEngine
from medagent.training.lora import LoraSettings
from medagent.training.module import AgentModule
from tests.training.support import setup_of

pytestmark = pytest.mark.vllm
LOAD = VllmApi.load_adapter


def make_module(dtype: str) -> AgentModule:
    torch.manual_seed(0)
    return AgentModule(dtype=dtype, policy_lora=LoraSettings(32, 64), critic_lora=None)


def small_step(module: AgentModule, rate: float = 1e-5) -> None:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.shared_base.policy_parameters():
            parameter += rate * torch.randn(parameter.shape, generator=generator).sign()


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def engine(request, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[VllmEngine, str]]:
    made, module = VllmEngine(), make_module(request.param)
    made.start(ModuleWeights(module), setup_of(module, tmp_path_factory.mktemp(request.param)))
    yield made, request.param
    made.close()


def test_healthy_syncs_raise_no_alarm(engine) -> None:
    made, dtype = engine
    module = make_module(dtype)
    for version in range(6):
        made.sync_weights(ModuleWeights(module), version=version)
        assert made.metrics()["sampler/probe_gap"] < {"float32": 1e-4, "bfloat16": 0.2}[dtype]  # alarm at 1e-2 and 0.5
        small_step(module)
        small_step(module)


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


def test_a_sync_that_fails_is_caught_at_once(engine, monkeypatch: pytest.MonkeyPatch) -> None:
    made, dtype = engine
    module = make_module(dtype)
    made.sync_weights(ModuleWeights(module), version=10)
    for mistake in (last_adapter_loaded, half_adapter_loaded):
        small_step(module)
        with monkeypatch.context() as patched:
            patched.setattr(VllmApi, "load_adapter", mistake)
            with pytest.raises(PolicyError, match="the weight sync failed"):
                made.sync_weights(ModuleWeights(module), version=11)
        made.sync_weights(ModuleWeights(module), version=12)
    small_step(module)
    monkeypatch.setattr(ServedAdapters, "replace", lambda self, former, write: former)
    with pytest.raises(PolicyError, match="the weight sync failed"):
        made.sync_weights(ModuleWeights(module), version=13)
