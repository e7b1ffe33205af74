"""The reward of a rollout is its grade: 1 for a right answer, a little for a well-formed wrong one, 0 otherwise."""

from __future__ import annotations

from typing import Protocol

from evaluation.grading import grade
from medagent.records import Rollout


class Reward(Protocol):
    """Anything that grades a rollout: it returns the rollout with `reward` and `success` filled in."""

    def __call__(self, rollout: Rollout) -> Rollout:
        """The graded rollout."""
        ...


class OutcomeReward:
    """`correct` for the right option; `well_formed` for an answer that names one option but the wrong one."""

    def __init__(self, correct: float = 1.0, well_formed: float = 0.1) -> None:
        self.correct, self.well_formed = correct, well_formed

    def __call__(self, rollout: Rollout) -> Rollout:
        """The rollout with its reward and success filled in."""
        result = grade(rollout)
        reward = self.correct if result.correct else self.well_formed if result.parsed else 0.0
        return rollout.graded(reward, success=result.correct)
