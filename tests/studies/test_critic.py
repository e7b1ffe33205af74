"""The ceiling that the critic's explained variance is held against (studies/critic/tools/critic.py)."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from medagent.agent import Job
from medagent.retrieval.controls import UnreliableRetriever
from medagent.training.rewards import OutcomeReward
from medagent.types import Rollout
from studies.critic.tools.critic import ceiling, repeated
from tests.evaluation.support import PASSAGES, QUESTIONS, Finds, scripted


class Indexed(Finds):
    passages = PASSAGES

    def search_where(self, queries, *, top_k, where):
        return self.search(queries, top_k=top_k)


def searches_then_reads(read: str, turn: int) -> str:
    """Asks for the disease's drug, and answers rightly where it was found."""
    number = re.findall(r"treats disease (\d+)\?", read)[0]
    if turn == 0:
        return f"<search>disease {number}</search>"
    found = f"Drug {number} treats" in read
    return f"<answer>({'A' if found else 'B'})</answer>"


def before_reading(rollouts: list[Rollout]) -> float:
    """The ceiling where nothing was read yet: of first turns alone."""
    return ceiling([replace(rollout, turns=rollout.turns[:1]) for rollout in rollouts]).share()


def test_a_search_that_fails_is_not_explained_by_the_question() -> None:
    reward = OutcomeReward()
    agent = scripted(searches_then_reads, retriever=UnreliableRetriever(Indexed(), share=0.5))
    rollouts = repeated(agent, QUESTIONS, reward, count=24, seed=1)
    assert rollouts == repeated(agent, QUESTIONS, reward, count=24, seed=1)
    assert [rollout.sample for rollout in rollouts] == [number for number in range(24) for _ in QUESTIONS]
    assert 0.35 < sum(rollout.success for rollout in rollouts) / len(rollouts) < 0.65
    # Unbiased about 0; 20 questions of 24 rollouts have a standard error of 0.013.
    assert abs(before_reading(rollouts)) < 0.06
    jobs = [Job(question, seed=sample) for question in QUESTIONS for sample in range(24)]
    same_failures = [reward(rollout) for rollout in agent.run_all(jobs)]
    assert before_reading(same_failures) == pytest.approx(1.0), (
        "with one hash for all, failures look like hard questions"
    )


def test_turns_that_share_their_reading_with_no_other_are_left_out() -> None:
    agent = scripted(searches_then_reads, retriever=Finds())
    rollouts = repeated(agent, QUESTIONS[:4], OutcomeReward(), count=2, seed=1)
    # Questions 0, 1, 2, 3, and 0 again with the other reward: the two turns of question 0 alone are read twice.
    best = ceiling([replace(rollouts[0], reward=0.0), *rollouts[1:5]])
    assert best.shared.tolist() == [True, True, *[False] * 6, True, True]
    # Unbiased within a pair of 0 and 1: a variance of 1/2, where all of it is 1/4.
    assert best.share() == pytest.approx(-1.0)
    assert best.turn_S.tolist() == [0, 1, 0, 1]
    assert best.share(best.turn_S == 1) == pytest.approx(-1.0)


def test_a_turn_weighs_what_those_of_its_reading_weigh_on_average() -> None:
    """Or failures, which are longer, would count for more than the ceiling knows when the turn begins."""
    agent = scripted(searches_then_reads, retriever=Finds())
    (one,) = repeated(agent, QUESTIONS[:1], OutcomeReward(), count=1, seed=1)
    short, long = (
        replace(one, reward=reward, turns=(replace(one.turns[0], token_ids=tuple(range(length))),))
        for reward, length in ((1.0, 2), (0.0, 10))
    )
    best = ceiling([short, long])
    assert best.weight_S.tolist() == [6.0, 6.0]
    assert best.share() == pytest.approx(-1.0)
