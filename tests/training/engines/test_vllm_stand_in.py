"""The calls of the engine `vllm` to a server at each sync, with a stand-in that computes with the real base.

Real vLLM is tried in `tests/vllm`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor

from medagent.engines import vllm
from medagent.engines.base import EngineSetup
from medagent.engines.vllm import of_rank
from medagent.errors import ConfigError, PolicyError
from medagent.models.causal_lm import load_causal_lm
from medagent.models.checksums import Checksum, checksum, combined, place
from medagent.policies.completions import HttpCompletions
from medagent.policies.http_endpoint import Endpoint
from medagent.policies.vllm.server import MODEL, VllmSettings
from medagent.training.engines import ModuleWeights, VllmEngine
from tests.training.support import make_module, perturb, setup_of


class StandIn:
    """Takes weights as vLLM does, and keeps the calls. A `deaf` one goes on with what it has."""

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

    def completions(self) -> HttpCompletions:
        return HttpCompletions(Endpoint("http://stand-in/v1"))

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

    def push_weights(self, like: Mapping[str, Tensor], weights: Iterable[tuple[str, Tensor]]) -> None:
        self.calls.append("push")
        own = dict(self.base.named_parameters())
        given = dict(weights)
        assert given.keys() == like.keys()
        if not self.deaf:
            with torch.no_grad():
                for name, value in given.items():
                    own[name].copy_(value)
            self.held = {name: checksum(own[name]) for name in given}

    def held_weights(self) -> dict[str, Checksum]:
        return self.held

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


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "VllmServer", StandIn)


def started(module, folder: Path, **settings: Any) -> tuple[VllmEngine, StandIn]:
    engine = VllmEngine(**settings)
    engine.start(ModuleWeights(module), setup_of(module, folder))
    server = engine._server
    assert isinstance(server, StandIn)
    return engine, server


@pytest.mark.parametrize(("dtype", "rank"), [("float32", 0), ("bfloat16", 4)])
def test_the_server_has_room_for_the_longest_text_and_for_the_adapter(dtype: str, rank: int, tmp_path: Path) -> None:
    _, server = started(make_module(dtype=dtype), tmp_path)
    settings = {name: server.settings[name] for name in ("max_model_len", "lora_rank", "sleeps")}
    assert settings == {"max_model_len": 513, "lora_rank": rank, "sleeps": False}
    assert server.dtype == dtype


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
    assert "sampler/merge_lost" not in engine.metrics()
    engine.close()
    assert not folders[-1].parent.exists()


def test_merged_weights_are_pushed_under_one_name(tmp_path: Path) -> None:
    module = make_module()
    engine, server = started(module, tmp_path)
    first = engine.sync_weights(ModuleWeights(module), version=0)
    perturb(module)
    assert engine.sync_weights(ModuleWeights(module), version=1) is first, "dialogues' connections stay"
    assert first.model == MODEL
    assert server.calls == ["push", "probe"] * 2
    assert engine.metrics()["sampler/arrived"] == pytest.approx(1.0, abs=0.01)
    assert 0 < engine.metrics()["sampler/merge_lost"] < 0.01


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


def test_a_merge_that_is_not_the_policy_is_not_probed(tmp_path: Path) -> None:
    module = make_module(dtype="bfloat16")
    perturb(module, scale=1e-5)
    engine, server = started(module, tmp_path, weight_sync="merged", max_merge_lost=2.0)
    engine.sync_weights(ModuleWeights(module), version=0)
    assert server.calls == ["push"]
    assert engine.metrics()["sampler/merge_lost"] > 0.5
    assert engine.metrics()["sampler/measurable"] == 0.0


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
    turn = ["push", "probe"]
    assert server.calls == [*turn, *slept, *awake, *turn, *slept, *awake, *turn]


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
    setup = EngineSetup(tmp_path, 512, (), rank, 2, torch.device("cuda", index), sharded=False)
    assert of_rank(VllmSettings(devices=devices), setup, colocated=colocated).devices == wanted


@pytest.mark.parametrize(
    ("devices", "words"), [("", "on the same GPUs .all."), ("4,5", "4,5"), ("4;5", "names 2 ranks")]
)
def test_ranks_without_gpus_of_their_own_are_refused(devices: str, words: str, tmp_path: Path) -> None:
    setup = EngineSetup(tmp_path, 512, (), 2, 3, torch.device("cuda", 2), sharded=False)
    with pytest.raises(ConfigError, match=words):
        of_rank(VllmSettings(devices=devices), setup, colocated=False)
