"""The fused LoRA layers compute what peft's compute, forward and backward."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora.layer import Linear as LoraLinear
from torch import Tensor, nn

from medagent.agent_folder import save_agent
from medagent.agent_spec import read_spec
from medagent.models.agent_weights import load_weights
from medagent.models.base_models import STARTER, model_path
from medagent.models.causal_lm import hidden_states
from medagent.models.fused_lora import FEW_ROWS, FusedLoraLinear, fuse_lora
from tests.training.support import make_module, perturb

MANY = FEW_ROWS + 5


def adapted(*, bias: bool = True, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A linear layer with two adapters that change it, as peft makes it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, 40, bias=bias)).to(dtype).requires_grad_(False)
    config = LoraConfig(r=4, lora_alpha=12, target_modules=["0"])
    made = get_peft_model(model, config, adapter_name="policy")
    made.add_adapter("critic", config)
    for name, parameter in made.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter, std=0.3)
    return made


def gradients(model: nn.Module, x: Tensor, slope: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The output, and the gradient of the input and of every trained weight."""
    x = x.clone().requires_grad_(True)
    model.zero_grad()
    output = model(x)
    output.backward(slope, retain_graph=True)
    output.backward(slope)  # as a second pass over a retained graph
    found = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    return output.detach(), {"x": x.grad, **found}


@pytest.mark.parametrize("adapter", ["policy", "critic"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(MANY,), (2, MANY // 2 + 1), (7,)], ids=["rows", "batch", "few"])
def test_outputs_and_gradients_are_those_of_peft(shape: tuple[int, ...], bias: bool, adapter: str) -> None:
    plain = adapted(bias=bias)
    fused = copy.deepcopy(plain)
    fuse_lora(fused)
    assert any(type(each) is FusedLoraLinear for each in fused.modules())
    x, slope = torch.randn(*shape, 24), torch.randn(*shape, 40)
    for model in (plain, fused):
        model.set_adapter(adapter)
    wanted, found = gradients(plain, x, slope), gradients(fused, x, slope)
    assert torch.allclose(found[0], wanted[0], rtol=1e-5, atol=1e-5)
    assert found[1].keys() == wanted[1].keys()
    assert len(found[1]) == 3, "x, A and B of one adapter"
    for name, value in wanted[1].items():
        assert torch.allclose(found[1][name], value, rtol=1e-5, atol=1e-5 * float(value.abs().max())), name
    assert not torch.allclose(wanted[0], plain.get_base_model()[0].get_base_layer()(x), atol=0.1), "LoRA does something"


def test_without_adapters_it_is_the_base() -> None:
    fused = adapted()
    fuse_lora(fused)
    x = torch.randn(MANY, 24)
    with fused.disable_adapter():
        assert torch.equal(fused(x), fused.get_base_model()[0].get_base_layer()(x))


@pytest.mark.parametrize("rows", [MANY, 7])
def test_in_sixteen_bits_nothing_is_merged_and_gradients_are_in_float32(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = adapted(dtype=torch.bfloat16)
    exact = copy.deepcopy(half).float()
    fuse_lora(half)
    x, slope = torch.randn(rows, 24).bfloat16(), torch.randn(rows, 40).bfloat16()
    wanted, slopes = gradients(exact, x.float(), slope.float())
    monkeypatch.setattr(torch, "addmm", None)
    found, own = gradients(half, x, slope)
    assert own.keys() == slopes.keys()
    assert {each.dtype for name, each in own.items() if name != "x"} == {torch.float32}
    for ours, value in [(found, wanted), *((own[name], slopes[name]) for name in own)]:
        assert (ours.float() - value).norm() < 2**-7 * value.norm()


def test_an_agent_of_sixteen_bits_is_served_exactly_as_its_trainer_reads_it(tmp_path: Path) -> None:
    module = make_module(dtype="bfloat16")
    perturb(module)
    spec = replace(read_spec(Path(model_path(STARTER))), base_model=STARTER, dtype="bfloat16")
    save_agent(tmp_path / "agent", spec, module.tokenizer)
    module.shared_base.save_policy(tmp_path / "agent" / "adapter")
    served, _ = load_weights(tmp_path / "agent", spec)
    ids = torch.arange(20, 44).view(2, 12)
    with torch.no_grad():
        trained, heard = (hidden_states(each, input_ids=ids) for each in (module.shared_base.base, served))
    assert torch.equal(trained, heard)


def test_frozen_weights_and_inputs_get_no_gradient() -> None:
    fused = adapted()
    fuse_lora(fused)
    fused.set_adapter("policy")
    for name, parameter in fused.named_parameters():
        parameter.requires_grad_("lora_B.policy" in name)
    fused(torch.randn(MANY, 24)).square().sum().backward()
    assert [name for name, each in fused.named_parameters() if each.grad is not None] == [
        "base_model.model.0.lora_B.policy.weight"
    ]


def test_other_layers_stay_as_peft_made_them() -> None:
    model = get_peft_model(
        nn.Sequential(nn.Embedding(9, 24), nn.Linear(24, 3)), LoraConfig(r=2, target_modules=["0", "1"])
    )
    before = type(model.get_base_model()[0])
    fuse_lora(model)
    assert type(model.get_base_model()[0]) is before is not LoraLinear
    assert type(model.get_base_model()[1]) is FusedLoraLinear
