"""Routing is recorded and replayed: the selection alone, so the router keeps its gradient.

Expected values are of a block written here in loops and double precision.
"""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from medagent.errors import ConfigError
from medagent.routing import Routers, has_routers, no_record
from medagent.routing_record import RoutingRecord
from tests.mixtures import FAMILIES, make_mixture

IDS = torch.arange(7, 24)[None]


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    return make_mixture(tmp_path_factory.mktemp(request.param), request.param, experts=8, layers=2)


def recorded(model: PreTrainedModel, routers: Routers) -> tuple[Tensor, Tensor]:
    with routers.recorded() as recording, torch.no_grad():
        logits = model(input_ids=IDS).logits
    return logits, recording.experts


def others(experts_NLK: Tensor, num_experts: int) -> Tensor:
    """A selection of other experts for every token."""
    return ((experts_NLK.long() + 3) % num_experts).to(experts_NLK.dtype)


def block_by_hand(block: nn.Module, hidden_NH: Tensor, experts_NK: Tensor, router: Tensor) -> Tensor:
    """A mixture's output in double precision, token by token and expert by expert."""
    up, down = (getattr(block.experts, name).detach().double() for name in ("gate_up_proj", "down_proj"))
    rows = []
    for hidden, chosen in zip(hidden_NH.double(), experts_NK.tolist(), strict=True):
        scores = [(router[expert] * hidden).sum() for expert in range(len(router))]
        parts = [scores[expert].exp() for expert in chosen]
        row = torch.zeros_like(hidden)
        for expert, part in zip(chosen, parts, strict=True):
            gate, value = (up[expert] @ hidden).chunk(2)
            row = row + part / sum(parts) * (down[expert] @ (gate / (1 + (-gate).exp()) * value))
        rows.append(row)
    return torch.stack(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_models_own_selection_replayed_changes_no_bit(model, dtype: torch.dtype) -> None:
    made = copy.deepcopy(model).to(dtype)
    routers = Routers(made)
    logits, experts = recorded(made, routers)
    assert experts.shape == (IDS.shape[1], 2, 2)
    assert experts.dtype == torch.uint8
    with routers.replayed(experts):
        again, same = recorded(made, routers)
    assert torch.equal(again, logits)
    assert torch.equal(same, experts)


def test_router_and_input_have_the_gradients_of_a_computation_by_hand(model) -> None:
    generator = torch.Generator().manual_seed(1)
    block = model.model.layers[0].mlp
    hidden = torch.randn(1, 6, 64, generator=generator, requires_grad=True)
    towards = torch.randn(6, 64, generator=generator)
    routers = Routers(model)
    chosen = torch.tensor([[4, 1], [0, 7], [2, 3], [6, 5], [1, 2], [7, 4]], dtype=torch.uint8)
    with routers.replayed(chosen[:, None].expand(6, 2, 2)):
        output = block(hidden)
    found = torch.autograd.grad((output[0] * towards).sum(), [block.gate.weight, hidden])
    router = block.gate.weight.detach().double().requires_grad_()
    again = hidden.detach().double().requires_grad_()
    wanted_output = block_by_hand(block, again[0], chosen, router)
    wanted = torch.autograd.grad((wanted_output * towards).sum(), [router, again])
    torch.testing.assert_close(output[0].double(), wanted_output, rtol=1e-4, atol=1e-5)
    for one, other in zip(found, wanted, strict=True):
        assert float(other.abs().max()) > 1e-3, "there is a gradient"
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-5)


def test_a_token_without_a_record_keeps_the_live_selection(model) -> None:
    routers = Routers(model)
    _, own = recorded(model, routers)
    given = others(own, routers.num_experts)
    given[4:9] = no_record(given.dtype)
    with routers.replayed(given):
        logits, experts = recorded(model, routers)
    assert torch.equal(experts[:4], given[:4])
    assert torch.equal(experts[9:], given[9:])
    assert int(experts.max()) < routers.num_experts
    first = experts[4:9, 0]
    with routers.replayed(given):
        assert torch.equal(recorded(model, routers)[1][4:9, 0], first)
    assert not torch.equal(logits, recorded(model, routers)[0])


def test_a_record_has_what_was_replayed_whichever_began_first(model) -> None:
    routers = Routers(model)
    given = others(recorded(model, routers)[1], 8)
    with routers.recorded() as recording, routers.replayed(given), torch.no_grad():
        model(input_ids=IDS)
    assert torch.equal(recording.experts, given)


def test_a_record_of_other_tokens_is_refused(model) -> None:
    routers = Routers(model)
    _, own = recorded(model, routers)
    with routers.replayed(own[:-1]), pytest.raises(ValueError, match="of 16 tokens cannot be replayed over 17"):
        recorded(model, routers)


def test_nothing_is_left_on_the_model(model) -> None:
    routers = Routers(model)
    plain, own = recorded(model, routers)
    with routers.replayed(own), routers.replayed(others(own, 8)):
        pass
    assert routers.now is None
    assert not any(router._forward_hooks for router in routers.modules)
    assert torch.equal(copy.deepcopy(model)(input_ids=IDS).logits, plain)


def test_routers_stand_in_the_order_of_their_layers(model) -> None:
    assert Routers(model).layers == (0, 1)
    assert Routers(model).bytes_of_a_token == 4


def test_a_dense_model_has_none(starter) -> None:
    assert not has_routers(starter[0])
    with pytest.raises(ConfigError, match=r"found Qwen2ForCausalLM|found LlamaForCausalLM|wanted a mixture of experts"):
        Routers(starter[0])


def test_many_experts_take_two_bytes(tmp_path: Path) -> None:
    made = make_mixture(tmp_path, "qwen3_moe", experts=256, layers=1)
    routers = Routers(made)
    assert (routers.dtype, routers.bytes_of_a_token) == (torch.int16, 4)
    assert recorded(made, routers)[1].dtype == torch.int16


def test_records_are_joined_and_compared_by_their_bytes() -> None:
    one, two = np.arange(8, dtype=np.uint8).reshape(2, 2, 2), np.arange(4, dtype=np.uint8).reshape(1, 2, 2)
    joined = RoutingRecord.joined([RoutingRecord.of(one), None, RoutingRecord.of(two)])
    assert joined is not None
    assert len(joined) == 3
    assert joined == RoutingRecord.of(np.concatenate([one, two]))
    assert np.array_equal(joined.experts[2], two[0])
    assert RoutingRecord.joined([None]) is None
