"""Tokens read are counted once each, forward and backward apart, as an independent count finds them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from medagent.evaluation.viewer.recorded import read_metrics
from medagent.policies.batch import Batch
from medagent.training import adapters
from medagent.training.command import train_command
from medagent.training.data import RolloutData
from medagent.training.default_callbacks import budget_units, tokens_to_sample
from medagent.training.execution import Execution
from medagent.training.experience import tensorize
from medagent.training.module import AgentModule
from medagent.types import Question, Rollout, StopReason, Turn
from tests.training.support import arguments, make_module


def rollout(question: str, prompt: tuple[int, ...], *turns: tuple[tuple[int, ...], tuple[int, ...]]) -> Rollout:
    made = tuple(Turn(ids, (-1.0,) * len(ids), "", "q", observation_ids=seen) for ids, seen in turns)
    return Rollout(Question(question, ""), prompt, made, StopReason.ANSWERED)


FIRST = rollout("a", (5, 6, 7), ((8, 9), (3, 4)), ((10, 11), ()))  # 5 6 7 8 9 3 4 10 | 11
SAME_BEGINNING = rollout("a", (5, 6, 7), ((8, 12), (3,)), ((13,), ()))  # 5 6 7 8 12 3 | 13
CUT = rollout("b", (5, 6, 7), ((8, 9), (3, 4)))  # 5 6 7 8 | 9, and passages that nobody reads


def test_a_sampler_reads_what_samples_of_a_question_share_once() -> None:
    assert tokens_to_sample([FIRST]) == 8
    assert tokens_to_sample([FIRST, SAME_BEGINNING]) == 8 + 2
    assert tokens_to_sample([FIRST, SAME_BEGINNING, CUT]) == 8 + 2 + 4, "another question is read apart"
    assert tokens_to_sample([FIRST, FIRST]) == 8
    assert tokens_to_sample([]) == 0


def test_a_backward_pass_costs_two_forward_ones() -> None:
    assert budget_units(100, 10) == 120


@pytest.mark.parametrize(
    ("execution", "tokens"), [(Execution(), 18), (Execution(packed=True), 18), (Execution(shared_prefixes=True), 10)]
)
def test_every_pass_counts_its_own_tokens(execution: Execution, tokens: int) -> None:
    module = make_module(execution=execution)
    counts = module.shared_base.token_counts
    assert counts.take() == (0, 0)
    tensors = tensorize([FIRST, SAME_BEGINNING, CUT], pad_id=module.pad_id)
    inputs = (tensors.token_ids_BT, tensors.attention_BT, tensors.mask_BT)
    module.shared_base.reference_logprobs(*inputs, temperature=1.0)
    assert counts.take() == (tokens, 0), "nothing goes back through the reference"
    scores = module.shared_base.policy_scores(*inputs, temperature=1.0)
    assert counts.take() == (tokens, 0), "nothing has gone back yet"
    scores.logprobs_BT.sum().backward(retain_graph=True)
    scores.logprobs_BT.sum().backward()
    assert counts.take() == (0, 2 * tokens)
    with counts.paused():
        module.shared_base.policy_scores(*inputs, temperature=1.0).logprobs_BT.sum().backward()
    assert counts.take() == (0, 0), "what only measures"


def distinct(rows: list[list[int]]) -> int:
    """By its own way: one token per prefix."""
    return len({tuple(row[:end]) for row in rows for end in range(1, len(row) + 1)})


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
def test_a_run_counts_what_its_models_read(
    shared: bool, train_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"sampled": 0, "forward": 0, "backward": 0}
    inside: set[str] = set()

    def within(owner: object, name: str, label: str) -> None:
        real = getattr(owner, name)

        def wrapped(*args, **kwargs):
            inside.add(label)
            try:
                return real(*args, **kwargs)
            finally:
                inside.discard(label)

        monkeypatch.setattr(owner, name, wrapped)

    within(RolloutData, "collect", "sampling")
    within(AgentModule, "training_step", "training")
    within(__import__("medagent.training.data", fromlist=["prepare"]), "prepare", "training")
    read_group, common_prefix, states_of = Batch._read_group, Batch._read_common_prefix, adapters.selected_hidden_states

    def group(self, first, pending):
        found["sampled"] += sum(map(len, pending)) * ("sampling" in inside)
        return read_group(self, first, pending)

    def common(self):
        before = self._lengths[:]
        common_prefix(self)
        found["sampled"] += (self._lengths[0] - before[0]) * ("sampling" in inside) if before else 0

    def states(base, execution, ids_BT, attention_BT, mask_BT):
        rows = [row[: max(1, int(mask.nonzero().max()))].tolist() for row, mask in zip(ids_BT, mask_BT, strict=True)]
        count = distinct(rows) if execution.shared_prefixes else sum(map(len, rows))
        if "training" in inside:
            found["forward"] += count
            found["backward"] += count * torch.is_grad_enabled()
        return states_of(base, execution, ids_BT, attention_BT, mask_BT)

    monkeypatch.setattr(Batch, "_read_group", group)
    monkeypatch.setattr(Batch, "_read_common_prefix", common)
    monkeypatch.setattr(adapters, "selected_hidden_states", states)
    settings = {"data.num_questions": 6, "data.num_samples": 4, "data.num_minibatches": 1}
    settings |= {"data.num_micro_batches": 2}
    settings |= {"model.execution": json.dumps({"shared_prefixes": shared})}
    (row,) = read_metrics(train_command(arguments(tmp_path / "run", train_index, epochs=1, **settings)))
    assert min(found.values()) > 500
    assert row["compute/forward_tokens"] == found["sampled"] + found["forward"]
    assert row["compute/backward_tokens"] == found["backward"]
