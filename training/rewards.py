"""The reward of a rollout is its grade; open answers can earn a part: `F1`, `ExactMatch`, `ContainsAnswer`."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from jsonargparse import lazy_instance  # type: ignore[attr-defined]

from medagent.answer_forms import without_citations
from medagent.errors import ConfigError, MedagentError, require
from medagent.evaluation.grading.citations import citations_of
from medagent.evaluation.grading.grade import Verdict, grade
from medagent.evaluation.grading.open_answers import contains, first_answer, list_score, same, token_f1
from medagent.evidence.judges import RULES, support_judge
from medagent.retrieval.passages import names_found
from medagent.types import Rollout, StopReason, Turn

MOST_REWARD = 1e6  # rewards near 1 suit the learning rates; float32 counts to 16 million in ones


class Reward(Protocol):
    """The interface of a reward: it returns a rollout with `reward` and `success` filled in.

    Example: def __call__(self, rollout): return rollout.graded(float(rollout.num_searches > 0), success=True)
    """

    def __call__(self, rollout: Rollout) -> Rollout:
        """The graded rollout."""
        ...


def graded(reward: Reward, rollout: Rollout) -> Rollout:
    """The rollout as `reward` grades it; ConfigError unless that is a rollout with rewards up to `MOST_REWARD`."""
    where = f"data.reward ({type(reward).__name__}), question {rollout.question.id}, sample {rollout.sample}"
    try:
        done = reward(rollout)
    except MedagentError:
        raise
    except Exception as error:  # code of the user's may raise anything
        raise ConfigError(
            f"{where}: raised {type(error).__name__}: {error}, wanted the rollout with its reward. Mend the class and "
            "start the run again: it goes on from its last iteration."
        ) from error
    if not isinstance(done, Rollout):
        raise ConfigError(
            f"{where}: gave {done!r}, wanted the rollout with its reward: return rollout.graded(reward, success=...)."
        )
    given = {"reward": done.reward, **{f"reward of turn {n}": turn.reward for n, turn in enumerate(done.turns)}}
    for what, value in given.items():
        if not isinstance(value, int | float) or not abs(value) <= MOST_REWARD:
            raise ConfigError(
                f"{where}: gave the {what} {value!r}, wanted a Python float from -{MOST_REWARD:g} to {MOST_REWARD:g}. "
                "Mend the class, or scale its rewards: their sums and squares must fit into float32."
            )
    return done


def as_earned(rollout: Rollout) -> Rollout:
    """The reward where an environment has rewarded the rollout itself."""
    return rollout


class OutcomeReward:
    """`correct` for the right option; `well_formed` for an answer that names one option but the wrong one."""

    def __init__(self, correct: float = 1.0, well_formed: float = 0.1) -> None:
        self.correct, self.well_formed = correct, well_formed

    def __call__(self, rollout: Rollout) -> Rollout:
        result = grade(rollout)
        reward = self.correct if result.correct else self.well_formed if result.parsed else 0.0
        return rollout.graded(reward, success=result.correct)


OUTCOME = lazy_instance(OutcomeReward)  # the default of rewards that add to one


class OpenAnswerReward(ABC):
    """Pays an open answer by a score from 0 to 1, so that an answer that is nearly right earns something.

    An answer of score s earns `well_formed` + s * (`correct` - `well_formed`). One that declines to answer earns
    `abstained`, which is never below `well_formed`: a wrong answer must not pay more than none. A rollout without an
    answer of the required form earns 0, or `well_formed` where that is negative. Success is score 1.

    Citations are no part of an answer. The first of ranked answers is scored. A multiple-choice question scores 1 for
    the right option. So data may mix both, and `TurnRewards` takes any of these as its `outcome`.

    To score in another way, derive a class with `score`, and with `score_list` for lists.
    """

    def __init__(self, correct: float = 1.0, well_formed: float = 0.1, abstained: float = 0.1) -> None:
        if not well_formed <= abstained < correct:
            raise ConfigError(
                f"{type(self).__name__}: found well_formed {well_formed}, abstained {abstained}, correct {correct}; "
                "wanted well_formed <= abstained < correct. An agent that earns more for a wrong answer than for none "
                "learns to guess: raise abstained to well_formed at least."
            )
        self.correct, self.well_formed, self.abstained = correct, well_formed, abstained

    @abstractmethod
    def score(self, answer: str, golds: Sequence[str]) -> float:
        """From 0 to 1: how right the answer is, by the best of the right answers."""

    @abstractmethod
    def score_list(self, answer: str, items: Sequence[Sequence[str]]) -> float:
        """From 0 to 1: how right the answer to a list question is. `items` are the entries with their synonyms."""

    def __call__(self, rollout: Rollout) -> Rollout:
        result, question, answer = grade(rollout), rollout.question, without_citations(rollout.answer or "")
        outside = rollout.stop_reason is not StopReason.ANSWERED
        if outside or result.verdict in (Verdict.NO_ANSWER, Verdict.UNPARSED, Verdict.MULTIPLE):
            return rollout.graded(min(0.0, self.well_formed), success=False)
        if question.options or result.correct:
            score = float(result.correct)
        elif question.form == "list":
            score = self.score_list(answer, question.items)
        else:
            score = self.score(first_answer(question, answer), question.golds)
        if result.verdict is Verdict.ABSTAINED and score < 1:
            return rollout.graded(self.abstained, success=False)
        return rollout.graded(self.well_formed + score * (self.correct - self.well_formed), success=score == 1)


class F1(OpenAnswerReward):
    """Token F1 with the best right answer (SQuAD, arXiv 1606.05250).

    "hereditary hemochromatosis" for "Hemochromatosis" scores 2/3. A list scores the F1 of its entries.
    """

    def score(self, answer: str, golds: Sequence[str]) -> float:
        return token_f1(answer, golds)

    def score_list(self, answer: str, items: Sequence[Sequence[str]]) -> float:
        return list_score(answer, items).f1


class ExactMatch(OpenAnswerReward):
    """1 for the words of a right answer, else 0. A list must name every entry and no other."""

    def score(self, answer: str, golds: Sequence[str]) -> float:
        return float(same(answer, golds))

    def score_list(self, answer: str, items: Sequence[Sequence[str]]) -> float:
        return float(list_score(answer, items).f1 == 1)


class ContainsAnswer(OpenAnswerReward):
    """1 for an answer that holds a right one as whole words, with at most `most_extra_words` words beside it.

    A denial or a choice of several holds none: see `medagent.evaluation.grading.open_answers.contains`. A list earns
    the F1 of its entries, where an entry is right when it holds an item so.
    """

    def __init__(
        self, correct: float = 1.0, well_formed: float = 0.1, abstained: float = 0.1, most_extra_words: int = 5
    ) -> None:
        super().__init__(correct, well_formed, abstained)
        require(most_extra_words >= 0, "ContainsAnswer.most_extra_words", most_extra_words, "0 or more")
        self.most_extra_words = most_extra_words

    def score(self, answer: str, golds: Sequence[str]) -> float:
        return float(contains(answer, golds, most_extra_words=self.most_extra_words))

    def score_list(self, answer: str, items: Sequence[Sequence[str]]) -> float:
        return list_score(answer, items, self.score).f1


class TurnRewards:
    """Pays turns on top of the outcome.

    `gold_hit` is paid the first time that a search shows a passage with the evidence. `search_cost` is taken off every
    search.

    With two gold passages a two-hop question pays twice. A question without gold passages pays no hit, so a benchmark
    that names none leaves the outcome and the costs. Hits together pay less than an answer, or searching would be an
    end in itself.
    """

    def __init__(self, outcome: Reward = OUTCOME, gold_hit: float = 0.2, search_cost: float = 0.02) -> None:
        for name, paid in (("gold_hit", gold_hit), ("search_cost", search_cost)):
            require(paid >= 0, f"TurnRewards.{name}", paid, "0 or more")
        self.outcome, self.gold_hit, self.search_cost = outcome, gold_hit, search_cost

    def __call__(self, rollout: Rollout) -> Rollout:
        missing = set(rollout.question.gold_passage_ids)
        turns: list[Turn] = []
        for turn in rollout.turns:
            found = names_found(missing, (hit.passage for hit in turn.hits))
            missing -= found
            paid = self.gold_hit * len(found) - (self.search_cost if turn.query is not None else 0.0)
            turns.append(replace(turn, reward=paid))
        return self.outcome(replace(rollout, turns=tuple(turns)))


class SupportedCitations:
    """Pays citations on top of the outcome, by ALCE's counts (arXiv 2305.14627).

    `supported` is paid in the share of the answer's statements that their cited passages entail. `needless` is taken
    off every citation that does not count: its statement is not entailed, or is so without it. Together they pay less
    than an answer, or citing would be an end in itself. Only right answers are paid: else a wrong answer would be worth
    the passage that says it.

    `support` names what judges this, see `medagent.evidence.judges.support_judge`.
    """

    def __init__(
        self, outcome: Reward = OUTCOME, supported: float = 0.2, needless: float = 0.05, support: str = RULES
    ) -> None:
        for name, paid in (("supported", supported), ("needless", needless)):
            require(paid >= 0, f"SupportedCitations.{name}", paid, "0 or more")
        self.outcome, self.supported, self.needless = outcome, supported, needless
        self.judge = support_judge(support)

    def __call__(self, rollout: Rollout) -> Rollout:
        done = self.outcome(rollout)
        found = citations_of(rollout, grade(rollout), self.judge)
        if not done.success or found is None:
            return done
        earned = self.supported * found.entailed / found.statements - self.needless * (found.citations - found.counted)
        return done.graded(done.reward + earned, success=True)
