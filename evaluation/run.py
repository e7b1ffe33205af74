"""Runs an agent over questions, through the same rollout loop as training and serving."""

from __future__ import annotations

from collections.abc import Sequence

from medagent.agent import Agent, Job, rollout_seed
from medagent.records import Question, Rollout


def run_benchmark(
    agent: Agent,
    questions: Sequence[Question],
    *,
    temperature: float = 0.0,
    seed: int = 0,
    force_search: bool = False,
) -> list[Rollout]:
    """One rollout a question, in order; temperature 0 is greedy. `force_search` makes every first turn a search."""
    jobs = [
        Job(
            question,
            seed=rollout_seed(seed, iteration=-1, question_id=question.id, sample=0),
            temperature=temperature,
            force_search=force_search,
        )
        for question in questions
    ]
    return agent.run_all(jobs)
