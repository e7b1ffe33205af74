"""Native tool calls in training: what a base cannot write is refused, and every way of training reads them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from medagent.errors import ConfigError
from medagent.models.causal_lm import load_causal_lm
from medagent.tool_protocol import ToolProtocol
from medagent.training.advantages import GAE
from medagent.training.compatibility import check_protocol
from medagent.training.execution import Execution
from medagent.training.prepare import prepare
from medagent.types import Rollout, Turn
from tests.medagent.support import HERMES
from tests.training.support import gradients, make_module, perturb


def starter_with_tools():
    base, tokenizer = load_causal_lm("starter")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>", "<tool_call>"]})
    tokenizer.chat_template = HERMES
    base.resize_token_embeddings(len(tokenizer) + 20, mean_resizing=False)
    return base, tokenizer


def test_a_base_that_cannot_write_the_tokens_of_calls_is_refused() -> None:
    base, tokenizer = starter_with_tools()
    with torch.no_grad():
        base.get_output_embeddings().weight[-22:] = 0.5  # as reserved tokens that no training has touched
    with pytest.raises(ConfigError, match="cannot write '<tool_call>', as 21 other tokens"):
        check_protocol(base, tokenizer, ToolProtocol())
    check_protocol(base, tokenizer, ToolProtocol(call_form="json"))


def test_tokens_that_were_trained_are_taken() -> None:
    base, tokenizer = starter_with_tools()
    with torch.no_grad():
        base.get_output_embeddings().weight.normal_()
    check_protocol(base, tokenizer, ToolProtocol())


def with_contexts_anew(rollout: Rollout) -> Rollout:
    """The same rollout, each later turn of which begins in a context of its own, with the same tokens."""
    read, turns = list(rollout.prompt_ids), list[Turn]()
    for number, turn in enumerate(rollout.turns):
        turns.append(replace(turn, context_ids=tuple(read)) if number else turn)
        read += [*turn.token_ids, *turn.observation_ids]
    return replace(rollout, turns=tuple(turns))


@pytest.mark.parametrize("execution", [Execution(), Execution(packed=True), Execution(shared_prefixes=True)])
def test_turns_in_contexts_of_their_own_are_trained_as_in_one(rollouts, execution: Execution, tmp_path) -> None:
    found = []
    several = [rollout for rollout in rollouts if len(rollout.turns) > 1][:6]
    assert several
    for rows in (several, [with_contexts_anew(rollout) for rollout in several]):
        module = make_module(execution=execution)
        perturb(module)
        experience = prepare(module, rows, estimator=GAE(lam=0.9), reduce=lambda total: total)
        mask = experience.mask_BT
        snoop = gradients(module, [experience], tmp_path)
        fields = (experience.values_BT, experience.advantages_BT, experience.returns_BT, experience.loss_weights_BT)
        found.append([each[mask] for each in fields] + [snoop.policy[0], snoop.critic[0]])
    for plain, apart in zip(*found, strict=True):
        torch.testing.assert_close(apart, plain, rtol=1e-3, atol=1e-5)
