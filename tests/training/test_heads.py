"""Scores of chosen tokens are those of autograd over the whole vocabulary."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from medagent.training.forward import chosen_scores, frozen_head


def head_of(*, bias: bool, dtype: torch.dtype = torch.float32) -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(12, 50, bias=bias, dtype=dtype).requires_grad_(False)


def by_autograd(
    head: nn.Linear, states: Tensor, tokens: Tensor, *, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    logprobs = torch.log_softmax(head(states).float() / temperature, dim=-1)
    p = logprobs.exp()
    entropy = -torch.where(p > 0, p * logprobs, 0.0).sum(-1)
    return logprobs.gather(1, tokens[:, None])[:, 0], p.square().sum(-1), entropy


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("rows", [7, 4096])
def test_values_and_gradient(rows: int, temperature: float, bias: bool) -> None:
    head = head_of(bias=bias)
    states, tokens, slope = 2 * torch.randn(23, 12), torch.randint(50, (23,)), torch.randn(23)
    here, there = (states.clone().requires_grad_(True) for _ in range(2))
    found = chosen_scores(head, here, tokens, temperature=temperature, rows=rows)
    wanted = by_autograd(head, there, tokens, temperature=temperature)
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert [each.requires_grad for each in found] == [True, False, False]
    for _ in range(2):  # a retained graph gives it again
        (first,) = torch.autograd.grad(found[0], here, slope, retain_graph=True)
        (second,) = torch.autograd.grad(wanted[0], there, slope, retain_graph=True)
        assert torch.allclose(first, second, rtol=1e-4, atol=1e-5)


def test_a_token_that_cannot_be_sampled_adds_no_entropy() -> None:
    head = nn.Linear(12, 50).requires_grad_(False)
    head.bias[:49] = -torch.inf
    logprob, collision, entropy = chosen_scores(
        head, torch.randn(3, 12), torch.tensor([49, 49, 49]), temperature=1.0, rows=2
    )
    assert torch.equal(torch.stack([logprob, collision, entropy]), torch.tensor([[0.0] * 3, [1.0] * 3, [0.0] * 3]))


def test_a_pass_without_chosen_tokens_has_scores_and_gradients_of_none() -> None:
    states = torch.randn(0, 12).requires_grad_(True)
    found = chosen_scores(head_of(bias=True), states, torch.zeros(0, dtype=torch.long), temperature=1.0, rows=4)
    assert [each.shape for each in found] == [(0,)] * 3
    found[0].sum().backward()
    assert states.grad is not None
    assert states.grad.shape == (0, 12)


def test_in_sixteen_bits_the_gradient_has_the_states_type() -> None:
    head = head_of(bias=False, dtype=torch.bfloat16)
    states = torch.randn(9, 12, dtype=torch.bfloat16).requires_grad_(True)
    tokens = torch.randint(50, (9,))
    found = chosen_scores(head, states, tokens, temperature=1.0, rows=4)[0]
    assert found.dtype == torch.float32
    found.sum().backward()
    exact = states.detach().float().requires_grad_(True)
    by_autograd(head.float(), exact, tokens, temperature=1.0)[0].sum().backward()
    assert states.grad is not None
    assert states.grad.dtype == torch.bfloat16
    assert torch.allclose(states.grad.float(), exact.grad, atol=0.02)


def test_a_head_that_is_trained_or_wrapped_is_not_taken(starter) -> None:
    model = starter[0]
    assert frozen_head(model) is None or not any(each.requires_grad for each in frozen_head(model).parameters())

    class Wrapped(nn.Linear):
        pass

    class Model:
        def __init__(self, head: nn.Module) -> None:
            self._head = head

        def get_output_embeddings(self) -> nn.Module:
            return self._head

    assert frozen_head(Model(nn.Linear(2, 3))) is None
    assert frozen_head(Model(Wrapped(2, 3).requires_grad_(False))) is None
    frozen = nn.Linear(2, 3).requires_grad_(False)
    assert frozen_head(Model(frozen)) is frozen
