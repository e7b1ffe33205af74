"""A pass reads a row up to the state that predicts its last marked token, and no further."""

from __future__ import annotations

import pytest
import torch

import medagent.training.forward as passes_module
import medagent.training.prefixes as prefixes_module
from medagent.models.causal_lm import load_causal_lm
from medagent.training.adapters import SharedBase
from medagent.training.execution import Execution
from medagent.training.lora import LoraSettings
from medagent.types import NEW_CONTEXT

WAYS = {"padded": Execution(), "packed": Execution(packed=True), "tree": Execution(shared_prefixes=True)}
LENGTHS, LAST = (20, 14, 17), (11, 14, 0)  # the second's last marked token is the first after its end


def rows() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 300, (3, 20), generator=generator)
    attention = torch.arange(20) < torch.tensor(LENGTHS)[:, None]
    mask = torch.zeros_like(attention)
    mask[0, [4, 7, 11]] = True
    mask[1, [9, 14]] = True
    return ids, attention, mask


@pytest.mark.parametrize("way", WAYS)
def test_what_follows_the_last_marked_token_is_not_read(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base, _ = load_causal_lm("starter")
    roles = SharedBase(base.requires_grad_(False), policy=LoraSettings(), critic=None, execution=WAYS[way])
    ids, attention, mask = rows()
    alone = [
        roles.policy_scores(ids[row : row + 1], attention[row : row + 1], mask[row : row + 1], temperature=1.0)
        for row in range(2)
    ]
    sizes = []
    module = prefixes_module if way == "tree" else passes_module
    original = module.hidden_states

    def counting(model, **inputs):
        sizes.append(inputs["input_ids"].numel())
        return original(model, **inputs)

    monkeypatch.setattr(module, "hidden_states", counting)
    scores = roles.policy_scores(ids, attention, mask, temperature=1.0)
    needed = [max(1, last) for last in LAST]
    assert sizes == [3 * max(needed) if way == "padded" else sum(needed)]
    for row, single in enumerate(alone):
        torch.testing.assert_close(scores.logprobs_BT[row], single.logprobs_BT[0], rtol=1e-4, atol=1e-5)
    changed = ids.clone()
    changed[0, 12:] = 7
    again = roles.policy_scores(changed, attention, mask, temperature=1.0).logprobs_BT
    torch.testing.assert_close(again, scores.logprobs_BT, rtol=1e-4, atol=1e-5)
    assert (scores.logprobs_BT[mask] < 0).all()
    assert (scores.logprobs_BT[~mask] == 0).all()


@pytest.mark.parametrize("way", WAYS)
def test_a_pass_that_chooses_nothing_adds_nothing(way: str) -> None:
    """As rollouts whose prompt left no room for a turn."""
    base, _ = load_causal_lm("starter")
    roles = SharedBase(base.requires_grad_(False), policy=LoraSettings(), critic=LoraSettings(), execution=WAYS[way])
    ids, attention, _ = rows()
    none = torch.zeros_like(attention)
    scores = roles.policy_scores(ids, attention, none, temperature=1.0)
    scores.logprobs_BT.sum().backward()
    values = roles.values(ids, attention, none)
    values.sum().backward()
    assert not scores.logprobs_BT.any()
    assert not values.any()
    assert not any(each.grad is not None and each.grad.any() for each in roles.parameters())


@pytest.mark.parametrize("way", WAYS)
def test_what_follows_a_new_context_is_read_as_a_row_of_its_own(way: str) -> None:
    base, _ = load_causal_lm("starter")
    roles = SharedBase(base.requires_grad_(False), policy=LoraSettings(), critic=None, execution=WAYS[way])
    ids, attention, mask = rows()
    joined = torch.cat([ids[0], torch.tensor([NEW_CONTEXT]), ids[1, :14]])[None]
    marks = torch.cat([mask[0], torch.tensor([False]), mask[1, :14]])[None]
    found = roles.policy_scores(joined, torch.ones_like(joined, dtype=torch.bool), marks, temperature=1.0)
    mask[1, 14] = False  # lies behind its end
    apart = roles.policy_scores(ids, attention, mask, temperature=1.0)
    torch.testing.assert_close(found.logprobs_BT[marks], apart.logprobs_BT[mask], rtol=1e-4, atol=1e-5)
