"""The in-process engine samples the policy itself in every dtype, and a sync that fails is caught at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from medagent.errors import ConfigError, PolicyError
from medagent.policies.huggingface import HFPolicy
from medagent.training.adapters import SharedBase
from medagent.training.engines import InProcessEngine, ModuleWeights
from medagent.training.execution import Execution
from medagent.training.lora import LoraSettings
from medagent.training.module import AgentModule
from tests.training.support import make_module, perturb, setup_of

PROBE = tuple(range(20, 60))


def started(module: AgentModule, tmp_path: Path, **settings) -> InProcessEngine:
    engine = InProcessEngine(**settings)
    engine.start(ModuleWeights(module), setup_of(module, tmp_path))
    return engine


def small_step(module: AgentModule, rate: float = 1e-5) -> None:
    """Move every weight by about the rate, as an optimizer step does."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in module.shared_base.policy_parameters():
            parameter += rate * torch.randn(parameter.shape, generator=generator).sign()


def sampler_logprobs(policy: HFPolicy, probe: tuple[int, ...]) -> Tensor:
    with torch.no_grad():
        scores = policy.model(input_ids=torch.tensor([probe])).logits[0, :-1].float().log_softmax(-1)
    return scores.gather(1, torch.tensor(probe[1:])[:, None])[:, 0].double()


@pytest.mark.parametrize("critic", [None, LoraSettings(4, 8)])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_twin_shares_the_base_and_nothing_that_is_trained(critic, checkpointing: bool, tmp_path: Path) -> None:
    module = AgentModule(
        dtype="bfloat16",
        policy_lora=LoraSettings(4, 8),
        critic_lora=critic,
        execution=Execution(gradient_checkpointing=checkpointing),
    )
    perturb(module)
    policy = started(module, tmp_path).sync_weights(ModuleWeights(module), version=0)
    own, trained = dict(policy.model.named_parameters()), dict(module.shared_base.base.named_parameters())
    for name, parameter in own.items():
        is_lora = ".lora_" in name
        assert (parameter.data_ptr() == trained[name].data_ptr()) != is_lora, name
        assert not parameter.requires_grad
        assert torch.equal(parameter, trained[name])
    assert not any(".critic." in name for name in own)
    before = sampler_logprobs(policy, tuple(range(20, 60)))
    perturb(module)
    assert torch.equal(sampler_logprobs(policy, tuple(range(20, 60))), before), "the trainer's step is not seen"
    assert all(parameter.requires_grad for parameter in module.shared_base.policy_parameters())


def test_a_merge_that_rounding_eats_is_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = AgentModule(dtype="bfloat16", policy_lora=LoraSettings(32, 64), critic_lora=None)
    small_step(module)
    with pytest.raises(ConfigError, match=r"merging loses 9\d% of the adapter.*weight_sync: adapter"):
        started(module, tmp_path, weight_sync="merged").sync_weights(ModuleWeights(module), version=0)
    exact = started(module, tmp_path)
    exact.sync_weights(ModuleWeights(module), version=0)
    assert "sampler/merge_lost" not in exact.metrics(), "nothing is merged"


def test_a_float32_merge_is_whole_and_says_so(module, tmp_path: Path) -> None:
    small_step(module)
    engine = started(module, tmp_path)
    engine.sync_weights(ModuleWeights(module), version=0)
    assert 0 < engine.metrics()["sampler/merge_lost"] < 0.01
    assert engine.metrics()["sampler/probe_gap"] < 1e-4


@pytest.mark.parametrize("rate", [1e-6, 1e-7, 1e-8, 1e-10])
def test_a_float32_run_with_tiny_steps_goes_on(rate: float, module, tmp_path: Path) -> None:
    engine = started(module, tmp_path)
    for version in range(3):
        engine.sync_weights(ModuleWeights(module), version=version)
        small_step(module, rate)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dialogues_go_on_in_a_copy_of_a_checkpointed_base(dtype: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    settings = {"dtype": dtype, "policy_lora": LoraSettings(4, 8), "critic_lora": None}
    checkpointed = AgentModule(execution=Execution(gradient_checkpointing=True), **settings)
    torch.manual_seed(0)
    plain = AgentModule(**settings)

    async def dialogue(policy: HFPolicy) -> list[int]:
        session = policy.open(seed=0, temperature=1.0, blocks=())
        sampled: list[int] = []
        for _ in range(3):
            session.append(list(range(20, 30)))
            sampled += (await session.sample(max_tokens=6)).token_ids
        session.close()
        return sampled

    found = []
    for module in (checkpointed, plain):
        perturb(module)
        ModuleWeights(module).logprobs(PROBE)  # a pass of the trainer before the copy is made
        policy = started(module, tmp_path).sync_weights(ModuleWeights(module), version=0)
        found.append(asyncio.run(dialogue(policy)))
        found.append(asyncio.run(dialogue(policy)))
    assert found[0] == found[1] == found[2] == found[3]


@pytest.mark.quantised
def test_a_base_in_four_bits_is_sampled_in_four_bits(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes", reason="needs the extra qlora")
    module = AgentModule(policy_lora=LoraSettings(4, 8), critic_lora=None, execution=Execution(quantise="nf4"))
    engine = started(module, tmp_path)
    for version in range(2):
        engine.sync_weights(ModuleWeights(module), version=version)
        assert engine.metrics() == {"sampler/probe_gap": pytest.approx(0.0, abs=1e-5)}
        perturb(module)


Load = Callable[[HFPolicy, Iterable[tuple[str, Tensor]]], None]
LOAD = HFPolicy.load_weights


def half_applied(policy: HFPolicy, weights: Iterable[tuple[str, Tensor]]) -> None:
    rows = list(weights)
    LOAD(policy, rows[: len(rows) // 2])


def all_but_one(policy: HFPolicy, weights: Iterable[tuple[str, Tensor]]) -> None:
    LOAD(policy, list(weights)[:-1])


def rounded(policy: HFPolicy, weights: Iterable[tuple[str, Tensor]]) -> None:
    LOAD(policy, [(name, weight.to(torch.float16).to(weight.dtype)) for name, weight in weights])


def stale(policy: HFPolicy, weights: Iterable[tuple[str, Tensor]]) -> None:
    held = dict(policy.model.named_parameters())
    LOAD(policy, [(name, held[name].clone()) for name, _ in weights])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("load", [stale, half_applied, all_but_one, rounded])
def test_a_sync_that_fails_is_caught_at_once(
    dtype: str, load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = make_module(dtype=dtype)
    engine = started(module, tmp_path)
    engine.sync_weights(ModuleWeights(module), version=0)
    small_step(module)  # far less than any probe can see in bfloat16
    monkeypatch.setattr(HFPolicy, "load_weights", load)
    with pytest.raises(PolicyError, match="engine in_process: the weight sync failed"):
        engine.sync_weights(ModuleWeights(module), version=1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_old_weights_that_are_handed_over_again_are_caught_by_the_probe(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = make_module(dtype=dtype)
    engine = started(module, tmp_path)
    source = "merged_policy" if dtype == "float32" else "adapter_weights"
    made = getattr(module.shared_base, source)()
    old = [(name, value.clone()) for name, value in (made.items() if isinstance(made, dict) else made)]
    engine.sync_weights(ModuleWeights(module), version=0)
    perturb(module, scale=0.02)
    again = (lambda self, loss=None: iter(old)) if dtype == "float32" else (lambda self: dict(old))
    monkeypatch.setattr(SharedBase, source, again)
    with pytest.raises(PolicyError, match="weight sync failed"):
        engine.sync_weights(ModuleWeights(module), version=1)
