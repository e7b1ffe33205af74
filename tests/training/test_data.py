"""The data module: which questions an iteration asks, and how its rollouts become minibatches."""

from __future__ import annotations

import random

import pytest
import torch

from medagent.agent import Agent
from medagent.errors import ConfigError
from medagent.protocol import TagProtocol
from medagent.training.agent_data import AgentSettings
from medagent.training.batching import split_by_length, split_minibatches
from medagent.training.experience import loss_weights
from medagent.training.rollouts.questions import order_of_pass
from medagent.types import Limits
from tests.training.support import make_data


def test_questions_of_an_iteration_are_arithmetic(retriever) -> None:
    data = make_data(retriever, num_questions=30)
    total = len(data.questions)
    asked = [question.id for iteration in range(total) for question in data.questions_of(iteration)]
    assert len(asked) == 30 * total
    for start in range(0, len(asked), total):
        assert len(set(asked[start : start + total])) == total, "every question once a pass"
    assert [q.id for q in make_data(retriever, num_questions=30).questions_of(7)] == asked[210:240]
    assert [q.id for q in make_data(retriever, num_questions=30, seed=1).questions_of(0)] != asked[:30]


def test_a_pass_over_the_questions_is_shuffled_once(retriever) -> None:
    data = make_data(retriever, num_questions=30, seed=77)
    total = len(data.questions)
    order_of_pass.cache_clear()
    asked = [question.id for iteration in range(total) for question in data.questions_of(iteration)]
    assert order_of_pass.cache_info().misses == 30, "one shuffle for each of 30 passes"
    data.questions_of(0)  # what a rollback or another run asks again
    assert [question.id for question in data.questions_of(0)] == asked[:30]
    wanted = list(range(total))
    random.Random("77:0").shuffle(wanted)
    assert asked[:total] == [data.questions[index].id for index in wanted]


def test_rollouts_are_made_by_the_rules_of_the_run(retriever, monkeypatch) -> None:
    data, made = make_data(retriever), []
    data.agent_settings = AgentSettings(TagProtocol(instructions="Be brief."), Limits(3, 41, 130, 470), top_k=5)
    monkeypatch.setattr(Agent, "run_all", lambda agent, jobs: made.append(agent) or [])
    data.collect(None, temperature=1.0, iteration=0, version=0, rank=0, world_size=1)  # type: ignore[arg-type]
    (agent,), rules = made, data.agent_settings
    assert (agent.protocol, agent.limits, agent.top_k) == (rules.protocol, rules.limits, 5)
    assert agent.retriever is retriever


def test_batches_that_cannot_be_filled_are_refused(retriever) -> None:
    with pytest.raises(ConfigError, match="cannot fill"):
        make_data(retriever, num_questions=3)


def test_minibatches_partition_the_rollouts() -> None:
    parts = split_minibatches(10, num_minibatches=3, seed=4)
    assert sorted(index for part in parts for index in part) == list(range(10))
    assert sorted(map(len, parts)) == [3, 3, 4]
    assert split_minibatches(10, num_minibatches=3, seed=5) != parts
    lengths = [5, 50, 7, 60, 9, 55, 8, 6]
    groups = split_by_length(range(8), lengths, parts=3)
    assert sorted(index for group in groups for index in group) == list(range(8))
    assert all(groups)
    assert max(lengths[i] for i in groups[0]) <= min(lengths[i] for i in groups[-1])
    assert [len(g) for g in split_by_length(range(3), [1, 1, 99], parts=3)] == [1, 1, 1]
    with pytest.raises(ValueError, match="cannot fill"):
        split_by_length([0], [1], parts=2)


def test_loss_weights_by_hand() -> None:
    mask = torch.tensor([[False, True, True], [False, True, False]])
    rollout_mean = loss_weights(mask, reduction="rollout-mean", num_tokens=3, num_rollouts=2, factor=2.0)
    assert rollout_mean.tolist() == [[0, 0.5, 0.5], [0, 1, 0]]
    token_mean = loss_weights(mask, reduction="token-mean", num_tokens=3, num_rollouts=2, factor=3.0)
    assert token_mean.tolist() == [[0, 1, 1], [0, 1, 0]]
    rollout_sum = loss_weights(mask, reduction="rollout-sum", num_tokens=3, num_rollouts=2, factor=3.0)
    assert rollout_sum.tolist() == [[0, 1.5, 1.5], [0, 1.5, 0]]
