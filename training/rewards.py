"""The reward of a rollout is its grade: 1 for a right answer, a little for a well-formed wrong one, 0 otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from jsonargparse import lazy_instance  # type: ignore[attr-defined]

from evaluation.grading.grade import grade
from medagent.errors import ConfigError
from medagent.types import Rollout, Turn

MOST_REWARD = 1e6  # rewards near 1 suit the learning rates; float32 counts to 16 million in ones


class Reward(Protocol):
    """The interface of a reward: it returns a rollout with `reward` and `success` filled in."""

    def __call__(self, rollout: Rollout) -> Rollout:
        """The graded rollout."""
        ...


def graded(reward: Reward, rollout: Rollout) -> Rollout:
    """The rollout as `reward` grades it.

    Raises:
        ConfigError: it gave something else than a rollout, or a reward that is no number of at most `MOST_REWARD`.
    """
    done = reward(rollout)
    if not isinstance(done, Rollout):
        raise ConfigError(
            f"data.reward ({type(reward).__name__}): gave question {rollout.question.id}, sample {rollout.sample}, "
            f"{done!r}, wanted the rollout with its reward: return rollout.graded(reward, success=...)."
        )
    given = {"reward": done.reward, **{f"reward of turn {n}": turn.reward for n, turn in enumerate(done.turns)}}
    for what, value in given.items():
        if not isinstance(value, int | float) or not abs(value) <= MOST_REWARD:
            raise ConfigError(
                f"data.reward ({type(reward).__name__}): gave question {rollout.question.id}, sample {rollout.sample}, "
                f"the {what} {value!r}, wanted a finite number from -{MOST_REWARD:g} to {MOST_REWARD:g}, as a Python "
                "float. Mend the class, or scale its rewards: sums and squares of them must fit into float32."
            )
    return done


class OutcomeReward:
    """`correct` for the right option; `well_formed` for an answer that names one option but the wrong one."""

    def __init__(self, correct: float = 1.0, well_formed: float = 0.1) -> None:
        self.correct, self.well_formed = correct, well_formed

    def __call__(self, rollout: Rollout) -> Rollout:
        """The rollout with its reward and success filled in."""
        result = grade(rollout)
        reward = self.correct if result.correct else self.well_formed if result.parsed else 0.0
        return rollout.graded(reward, success=result.correct)


class TurnRewards:
    """Pays turns on top of the outcome.

    `gold_hit` is paid the first time that a search shows a passage with the evidence. `search_cost` is taken off every
    search.

    With two gold passages a two-hop question pays twice. A question without gold passages pays no hit, so a benchmark
    that names none leaves the outcome and the costs. Hits together pay less than an answer, or searching would be an
    end in itself.
    """

    def __init__(
        self, outcome: Reward = lazy_instance(OutcomeReward), gold_hit: float = 0.2, search_cost: float = 0.02
    ) -> None:
        if gold_hit < 0 or search_cost < 0:
            raise ConfigError(
                f"TurnRewards: gold_hit {gold_hit} and search_cost {search_cost} found, wanted 0 or more."
            )
        self.outcome, self.gold_hit, self.search_cost = outcome, gold_hit, search_cost

    def __call__(self, rollout: Rollout) -> Rollout:
        """The rollout with its outcome and the rewards of its turns filled in."""
        missing = set(rollout.question.gold_passage_ids)
        turns: list[Turn] = []
        for turn in rollout.turns:
            found = missing & {hit.passage.id for hit in turn.hits}
            missing -= found
            paid = self.gold_hit * len(found) - (self.search_cost if turn.query is not None else 0.0)
            turns.append(replace(turn, reward=paid))
        return self.outcome(replace(rollout, turns=tuple(turns)))
