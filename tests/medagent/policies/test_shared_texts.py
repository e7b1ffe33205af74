"""Rows with one text are read once, and sample what they would sample alone."""

from __future__ import annotations

from itertools import takewhile

import pytest

from medagent.agent import Agent, Job
from medagent.policies import batch
from medagent.policies.huggingface import HFPolicy
from medagent.protocol import TagProtocol
from medagent.types import Limits, Rollout
from studies.starter_base.lessons import STARTER_LIMITS, STARTER_PROTOCOL


@pytest.fixture
def passes(monkeypatch) -> list[tuple[int, int]]:
    """Rows and tokens of every pass."""
    seen: list[tuple[int, int]] = []
    plain = batch.hidden_states

    def counted(model, **inputs):
        seen.append(tuple(inputs["input_ids"].shape))
        return plain(model, **inputs)

    monkeypatch.setattr(batch, "hidden_states", counted)
    return seen


def agent_of(starter, retriever) -> Agent:
    return Agent(HFPolicy(*starter), retriever, STARTER_PROTOCOL, STARTER_LIMITS, top_k=2)


def check_alone(agent: Agent, jobs: list[Job], together: list[Rollout]) -> None:
    """Each job gives the rollout that it gave among the others."""
    for job, rollout in zip(jobs, together, strict=True):
        alone = agent.run_all([job])[0]
        assert alone.token_ids == rollout.token_ids
        assert alone.rollout_logprobs == pytest.approx(rollout.rollout_logprobs, abs=1e-4)


def test_samples_of_a_question_read_their_prompt_once(starter, retriever, world, passes) -> None:
    questions = world.questions("train", limit_per_kind=2)
    jobs = [Job(question, seed=10 * n + sample) for n, question in enumerate(questions) for sample in range(5)]
    agent = agent_of(starter, retriever)
    passes.clear()
    together = agent.run_all(jobs)
    assert passes[0][0] == 4, "four prompts"
    assert 4 <= passes[1][0] < 20, "then the first tokens that differ"
    assert max(rows for rows, _ in passes) > passes[1][0], "and more as the rollouts part"
    check_alone(agent, jobs, together)


def test_rollouts_that_are_the_same_are_sampled_as_one(starter, retriever, world, passes) -> None:
    question = world.questions("train", limit_per_kind=1)[1]
    agent = agent_of(starter, retriever)
    passes.clear()
    rollouts = agent.run_all([Job(question, temperature=0.0, force_search=True, seed=seed) for seed in range(6)])
    assert len({tuple(rollout.token_ids) for rollout in rollouts}) == 1
    assert len(rollouts[0].turns) > 1
    assert {rows for rows, _ in passes} == {1}


def test_instructions_before_all_questions_are_read_once(starter, retriever, world, passes) -> None:
    protocol = TagProtocol(instructions="Answer the medical question with a passage that you found. " * 3)
    agent = Agent(HFPolicy(*starter), retriever, protocol, Limits(2, 16, 64, 400), top_k=1)
    jobs = [Job(question, seed=n) for n, question in enumerate(world.questions("train", limit_per_kind=4))]
    passes.clear()
    together = agent.run_all(jobs)
    rows, common = passes[0]
    assert rows == 1
    assert common > 16
    reading = list(takewhile(lambda shape: shape[1] > 1, passes[1:]))
    assert sum(rows for rows, _ in reading) == len(jobs), "the rest apart, in groups of like length"
    assert common + max(width for _, width in reading) == max(len(rollout.prompt_ids) for rollout in together)
    check_alone(agent, jobs, together)


def test_a_temperature_of_its_own_parts_a_row_from_others(starter, retriever, world, passes) -> None:
    question = world.questions("train", limit_per_kind=1)[0]
    agent = agent_of(starter, retriever)
    jobs = [Job(question, temperature=temperature, seed=3) for temperature in (0.0, 1.0, 3.0)]
    passes.clear()
    together = agent.run_all(jobs)
    assert [rows for rows, _ in passes[:2]] == [1, 3], "the prompt together, the rest apart"
    check_alone(agent, jobs, together)
