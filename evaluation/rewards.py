"""The reward of a rollout is its grade: 1 for a right answer, a little for a well-formed wrong one, 0 otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from evaluation.grading import grade
from medagent.records import Rollout


@dataclass(frozen=True)
class OutcomeReward:
    """`correct` for the right option; `well_formed` for an answer that names one option but the wrong one."""

    correct: float = 1.0
    well_formed: float = 0.1

    def __call__(self, rollout: Rollout) -> Rollout:
        """The rollout with its reward and success filled in."""
        result = grade(rollout)
        reward = self.correct if result.correct else self.well_formed if result.parsed else 0.0
        return rollout.graded(reward, success=result.correct)
