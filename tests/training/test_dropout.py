"""No pass drops anything at random: not with checkpointed layers, not in training mode, whatever the base asks for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import (
    BioGptConfig,
    BioGptForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    OPTConfig,
    OPTForCausalLM,
)
from transformers.modeling_layers import GradientCheckpointingLayer

from medagent.engines.in_process import WeightSync
from medagent.models.base_models import STARTER
from medagent.models.causal_lm import load_causal_lm
from medagent.training.adapters import CRITIC, POLICY
from medagent.training.engines import InProcessEngine, ModuleWeights
from medagent.training.execution import Execution
from medagent.training.lora import LoraSettings
from medagent.training.module import AgentModule
from medagent.training.sft.supervised import SupervisedModule
from tests.training.support import perturb, setup_of

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
FAMILIES = {
    "opt": (
        OPTForCausalLM,
        OPTConfig,
        {"ffn_dim": 128, "word_embed_proj_dim": 64, "dropout": 0.5, "attention_dropout": 0.5, "layerdrop": 0.5},
    ),
    "biogpt": (
        BioGptForCausalLM,
        BioGptConfig,
        {
            "intermediate_size": 128,
            "hidden_dropout_prob": 0.5,
            "attention_probs_dropout_prob": 0.5,
            "activation_dropout": 0.5,
            "layerdrop": 0.5,
            "scale_embedding": False,
        },
    ),
    "falcon": (FalconForCausalLM, FalconConfig, {"hidden_dropout": 0.5, "attention_dropout": 0.5, "alibi": False}),
    "gpt_neox": (
        GPTNeoXForCausalLM,
        GPTNeoXConfig,
        {"intermediate_size": 128, "hidden_dropout": 0.5, "attention_dropout": 0.5, "use_parallel_residual": False},
    ),
}


@pytest.fixture(scope="module", params=FAMILIES)
def base(request, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random base with every kind of dropout that its family has."""
    model, config, settings = FAMILIES[request.param]
    _, tokenizer = load_causal_lm(STARTER)
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    model(config(vocab_size=len(tokenizer), **SMALL, **IDS, **settings)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make(base: Path, *, checkpointing: bool, kind: type[AgentModule] = AgentModule) -> AgentModule:
    torch.manual_seed(0)
    adapters = {"policy_lora": LoraSettings(4, 8)}
    if kind is AgentModule:
        adapters["critic_lora"] = LoraSettings(4, 8)
    made = kind(base_model=str(base), execution=Execution(gradient_checkpointing=checkpointing), **adapters)
    perturb(made)
    return made


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    ids = torch.arange(20, 60).view(2, 20)
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[:, 0] = False
    return ids, torch.ones_like(mask), mask


@pytest.mark.parametrize("kind", [AgentModule, SupervisedModule])
def test_two_reads_are_equal(base: Path, kind: type[AgentModule]) -> None:
    seen = []
    for checkpointing in (False, True):
        made = make(base, checkpointing=checkpointing, kind=kind)
        for mode in (True, False, True):
            made.train(mode)
            with torch.no_grad():
                seen.append(made.shared_base.reference_logprobs(*inputs(), temperature=1.0))
        with_gradient = made.shared_base.policy_scores(*inputs(), temperature=1.0).logprobs_BT
        assert torch.equal(with_gradient, made.shared_base.policy_scores(*inputs(), temperature=1.0).logprobs_BT)
    assert all(torch.equal(each, seen[0]) for each in seen)


def test_checkpointed_layers_are_computed_again_and_give_the_same_gradients(base: Path) -> None:
    found = []
    for checkpointing in (False, True):
        made = make(base, checkpointing=checkpointing).train()
        layer = next(each for each in made.modules() if isinstance(each, GradientCheckpointingLayer))
        adapters: list[str] = []
        layer.register_forward_pre_hook(
            lambda *_, made=made, adapters=adapters: adapters.append(made.shared_base._active)
        )
        values = made.shared_base.values(*inputs())
        scores = made.shared_base.policy_scores(*inputs(), temperature=1.0)
        (values.sum() + scores.logprobs_BT.sum()).backward()
        again = sorted([POLICY, CRITIC]) if checkpointing else []
        assert adapters[:2] == [CRITIC, POLICY]
        assert sorted(adapters[2:]) == again
        found.append([p.grad for p in (*made.shared_base.policy_parameters(), *made.shared_base.critic_parameters())])
    for plain, checkpointed in zip(*found, strict=True):
        torch.testing.assert_close(checkpointed, plain, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("weight_sync", ["merged", "adapter"])
def test_the_sampler_drops_nothing(base: Path, weight_sync: WeightSync, tmp_path: Path) -> None:
    made = make(base, checkpointing=False).train()
    engine = InProcessEngine(weight_sync)
    engine.start(ModuleWeights(made), setup_of(made, tmp_path))
    for version in range(2):
        policy = engine.sync_weights(ModuleWeights(made), version=version)
        assert engine.metrics()["sampler/probe_gap"] < 1e-4
        assert not policy.model.training
        perturb(made)


def test_only_what_is_needed_for_the_backward_pass_is_kept(base: Path) -> None:
    kept = []
    for checkpointing in (False, True):
        made = make(base, checkpointing=checkpointing)
        sizes: list[int] = []

        def pack(tensor: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            made.shared_base.policy_scores(*inputs(), temperature=1.0)
        kept.append(sum(sizes))
    assert kept[1] < 0.8 * kept[0]


def test_a_layer_that_fails_is_checkpointed_at_its_next_pass(base: Path) -> None:
    made = make(base, checkpointing=True)
    with pytest.raises(RuntimeError):
        made.shared_base.base.get_decoder()(inputs_embeds=torch.zeros(1, 4, 3))
    layers = [each for each in made.modules() if isinstance(each, GradientCheckpointingLayer)]
    assert layers
    assert all(layer.training for layer in layers)
