"""The calls of the engine `vllm` to a server at each sync, with a stand-in that computes with the real base.

Real vLLM is tried in `tests/vllm`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from medagent.engines import vllm
from medagent.engines.base import EngineSetup
from medagent.engines.vllm import of_rank
from medagent.errors import ConfigError, PolicyError
from medagent.policies.vllm.server import VllmSettings
from medagent.training.engines import ModuleWeights, VllmEngine
from tests.training.engines.support import StandIn
from tests.training.support import make_module, perturb, setup_of


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "VllmServer", StandIn)


def started(module, folder: Path, **settings: Any) -> tuple[VllmEngine, StandIn]:
    engine = VllmEngine(**settings)
    engine.start(ModuleWeights(module), setup_of(module, folder))
    server = engine._server
    assert isinstance(server, StandIn)
    return engine, server


def test_the_server_has_room_for_the_longest_text_and_for_the_adapter(tmp_path: Path) -> None:
    _, server = started(make_module(dtype="bfloat16"), tmp_path)
    settings = {name: server.settings[name] for name in ("max_model_len", "lora_rank", "sleeps")}
    assert settings == {"max_model_len": 513, "lora_rank": 4, "sleeps": False}
    assert server.dtype == "bfloat16"


def test_each_sync_serves_its_own_adapter_and_drops_the_one_before(tmp_path: Path) -> None:
    module = make_module(dtype="bfloat16")
    engine, server = started(module, tmp_path)
    names, folders = [], []
    for version in range(3):
        policy = engine.sync_weights(ModuleWeights(module), version=version)
        assert list(server.adapters) == [policy.model], "the newest alone is served"
        names.append(policy.model)
        folders.append(server.adapters[policy.model])
        assert [folder.exists() for folder in folders] == [False] * version + [True]
        perturb(module, scale=0.05)
    assert len(set(names)) == 3
    assert policy.end_ids == (module.tokenizer.eos_token_id,)
    assert server.calls == ["load", "probe", *["load", "unload", "probe"] * 2]
    assert engine.metrics()["sampler/arrived"] == pytest.approx(1.0, abs=0.1)
    engine.close()
    assert not folders[-1].parent.exists()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_server_that_keeps_what_it_has_is_caught_before_any_probe_could_see_it(dtype: str, tmp_path: Path) -> None:
    module = make_module(dtype=dtype)
    engine, server = started(module, tmp_path)
    engine.sync_weights(ModuleWeights(module), version=0)
    server.deaf = True
    perturb(module, scale=1e-5)
    probes = server.calls.count("probe")
    with pytest.raises(PolicyError, match=r"vLLM: the weight sync failed\. Found \d+ of \d+ weights"):
        engine.sync_weights(ModuleWeights(module), version=1)
    assert server.calls.count("probe") == probes


@pytest.mark.parametrize("colocated", [False, True])
def test_one_that_shares_the_gpu_sleeps_once_and_wakes_before_it_is_handed_weights(
    colocated: bool, tmp_path: Path
) -> None:
    module = make_module()
    engine, server = started(module, tmp_path, colocated=colocated)
    assert server.settings["sleeps"] == colocated
    for version in range(2):
        engine.sync_weights(ModuleWeights(module), version=version)
        engine.sleep()
        engine.sleep()
    engine.sync_weights(ModuleWeights(module), version=2)
    slept, awake = (["sleep"], ["wake"]) if colocated else ([], [])
    again = [*slept, *awake, "load", "unload", "probe"]
    assert server.calls == ["load", "probe", *again, *again]


@pytest.mark.parametrize(
    ("devices", "colocated", "visible", "index", "rank", "wanted"),
    [
        ("", True, "4,5,6", 1, 1, "5"),  # torch counts the visible ones, vLLM is told their own numbers
        ("", True, "", 1, 1, "1"),
        ("", True, "7", None, 0, "7"),
        ("2;3", False, "", 1, 1, "3"),
        ("2,4;3,5", True, "6,7", 0, 0, "2,4"),
    ],
)
def test_each_rank_has_its_gpus(devices, colocated, visible, index, rank, wanted, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    setup = EngineSetup(tmp_path, 512, (), rank, 2, torch.device("cuda", index))
    assert of_rank(VllmSettings(devices=devices), setup, colocated=colocated).devices == wanted


@pytest.mark.parametrize("devices", ["", "4,5", "4;5"])
def test_ranks_without_gpus_of_their_own_are_refused(devices: str, tmp_path: Path) -> None:
    setup = EngineSetup(tmp_path, 512, (), 2, 3, torch.device("cuda", 2))
    with pytest.raises(ConfigError, match=rf"settings.devices .{devices or 'all'}. names GPUs .*one list per rank"):
        of_rank(VllmSettings(devices=devices), setup, colocated=False)
