"""What open answers earn: parts of a reward, abstentions, lists, and settings that would teach guessing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from medagent.errors import ConfigError
from medagent.retrieval.passages import Hit, Passage
from medagent.training.rewards import (
    F1,
    ContainsAnswer,
    ExactMatch,
    OpenAnswerReward,
    OutcomeReward,
    Reward,
    SupportedCitations,
    TurnRewards,
    graded,
)
from medagent.types import Question, Rollout, StopReason, Turn

NOTHING = {"well_formed": 0.0, "abstained": 0.0}  # for an answer that is not right
IRON = Question("q", "Which disease stores iron?", answer="Hemochromatosis", aliases=("bronze diabetes",))
LISTED = Question("l", "Which?", answer="a; b", form="list", items=(("a", "alpha"), ("b",)))
CHOICE = Question("c", "Which?", options=("gout", "lupus"), answer="B")


def answered(answer: str | None, question: Question = IRON) -> Rollout:
    stop = StopReason.MAX_TURNS if answer is None else StopReason.ANSWERED
    return Rollout(question, (1,), (Turn((2,), (0.0,), "", answer=answer),), stop)


def earned(reward: Reward, answer: str | None, question: Question = IRON) -> tuple[float, bool]:
    done = graded(reward, answered(answer, question))
    return pytest.approx(done.reward), done.success


@pytest.mark.parametrize(
    ("answer", "f1", "exact", "contained"),
    [
        ("Hemochromatosis", 1, 1, 1),
        ("the hemochromatosis. [1]", 1, 1, 1),
        ("bronze diabetes", 1, 1, 1),
        ("hereditary hemochromatosis", 2 / 3, 0, 1),  # precision 1/2, recall 1
        ("diabetes", 2 / 3, 0, 0),  # of "bronze diabetes": precision 1, recall 1/2
        ("hemochromatosis or gout", 1 / 2, 0, 0),  # precision 1/3, recall 1; a choice of two contains none
        ("gout", 0, 0, 0),
        ("[1]", 0, 0, 0),
        ("not found", 0, 0, 0),
        (None, 0, 0, 0),
    ],
)
def test_what_an_answer_earns(answer: str | None, f1: float, exact: float, contained: float) -> None:
    for reward, wanted in ((F1(**NOTHING), f1), (ExactMatch(**NOTHING), exact), (ContainsAnswer(**NOTHING), contained)):
        assert earned(reward, answer) == (wanted, wanted == 1)


def test_a_part_lies_between_a_wrong_and_a_right_answer() -> None:
    reward = F1(correct=2.0, well_formed=0.5, abstained=0.6)
    assert earned(reward, "hereditary hemochromatosis") == (0.5 + 2 / 3 * 1.5, False)
    assert earned(reward, "Hemochromatosis") == (2.0, True)
    assert earned(reward, "gout") == (0.5, False)
    assert earned(reward, "I don't know") == (0.6, False)
    assert earned(reward, None) == earned(reward, "[1]") == (0.0, False)


def test_a_penalty_for_wrong_answers_spares_abstentions_and_meets_missing_ones() -> None:
    for kind in (F1, ExactMatch, ContainsAnswer):
        reward = kind(well_formed=-0.5, abstained=0.0)
        assert earned(reward, "gout") == (-0.5, False)
        assert earned(reward, "unknown") == (0.0, False)
        assert earned(reward, None) == (-0.5, False), "to say nothing must not be a way out"


def test_a_right_answer_that_reads_like_an_abstention_is_right() -> None:
    none = replace(IRON, answer="None", aliases=())
    assert earned(F1(well_formed=0.0, abstained=0.2), "none", none) == (1.0, True)
    assert earned(F1(well_formed=0.0, abstained=0.2), "none", IRON) == (0.2, False)


@pytest.mark.parametrize("kind", [F1, ExactMatch, ContainsAnswer])
@pytest.mark.parametrize(
    "settings",
    [{"well_formed": 0.2}, {"abstained": -0.1}, {"correct": 0.0}, {"abstained": 1.0}, {"well_formed": float("nan")}],
)
def test_settings_that_teach_guessing_are_refused(kind: type[OpenAnswerReward], settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"{kind.__name__}: found .* wanted well_formed <= abstained < correct"):
        kind(**settings)


def test_the_length_bound_is_settable() -> None:
    answer = "the iron disease hemochromatosis"  # two words beside it; the article is none
    assert earned(ContainsAnswer(**NOTHING, most_extra_words=2), answer) == (1.0, True)
    assert earned(ContainsAnswer(**NOTHING, most_extra_words=1), answer) == (0.0, False)
    with pytest.raises(ConfigError, match=r"most_extra_words: found -1, wanted 0 or more"):
        ContainsAnswer(most_extra_words=-1)


@pytest.mark.parametrize(
    ("answer", "f1", "exact", "contained"),
    [
        ("b; alpha", 1, 1, 1),
        ("a", 2 / 3, 0, 2 / 3),  # one of one entries, one of two items: 2 * 1 / (1 + 2)
        ("a; c", 1 / 2, 0, 1 / 2),
        ("type b; alpha", 1 / 2, 0, 1),  # "type b" holds b, and is not b
        ("b; type b", 1 / 2, 0, 1 / 2),  # one item twice
        ("a, b", 0, 0, 2 / 3),  # commas separate nothing: one entry, which holds one item
    ],
)
def test_what_a_list_earns(answer: str, f1: float, exact: float, contained: float) -> None:
    for reward, wanted in (
        (F1(**NOTHING), f1),
        (ExactMatch(**NOTHING), exact),
        (ContainsAnswer(**NOTHING, most_extra_words=1), contained),
    ):
        assert earned(reward, answer, LISTED) == (wanted, wanted == 1)


def test_of_ranked_answers_the_first_is_paid() -> None:
    ranked = replace(IRON, form="ranked")
    for reward in (F1(**NOTHING), ExactMatch(**NOTHING), ContainsAnswer(**NOTHING)):
        assert earned(reward, "gout; hemochromatosis", ranked) == (0.0, False)
        assert earned(reward, "hemochromatosis; gout", ranked) == (1.0, True)


def test_multiple_choice_is_paid_as_it_is_graded() -> None:
    for reward in (
        F1(well_formed=-0.5, abstained=0.0),
        ExactMatch(well_formed=-0.5, abstained=0.0),
        ContainsAnswer(well_formed=-0.5, abstained=0.0),
    ):
        assert earned(reward, "(B)", CHOICE) == (1.0, True)
        assert earned(reward, "(A)", CHOICE) == (-0.5, False)
        assert earned(reward, "none of the above", CHOICE) == (0.0, False)
        assert earned(reward, "(A) or (B)", CHOICE) == (-0.5, False)


def test_an_abstention_earns_no_more_than_before_by_the_outcome_alone() -> None:
    assert earned(OutcomeReward(well_formed=0.1), "not found") == (0.0, False)
    assert earned(OutcomeReward(well_formed=0.1), "gout") == (0.1, False)


def test_turns_are_paid_beside_an_open_answer() -> None:
    hit = Hit(Passage("p", "t", "x."), 1.0)
    search = Turn((1,), (0.0,), "", query="x", hits=(hit,))
    question = replace(IRON, gold_passage_ids=("p",))
    answer = Turn((2,), (0.0,), "", answer="hereditary hemochromatosis")
    rollout = Rollout(question, (1,), (search, answer), StopReason.ANSWERED)
    done = TurnRewards(F1(**NOTHING), gold_hit=0.2, search_cost=0.02)(rollout)
    assert [turn.reward for turn in done.turns] == pytest.approx([0.18, 0.0])
    assert (done.reward, done.total_reward) == pytest.approx((2 / 3, 2 / 3 + 0.18))


def test_a_score_of_ones_own_is_two_methods() -> None:
    class Length(OpenAnswerReward):
        def score(self, answer, golds):
            return float(len(answer) <= 10)

        def score_list(self, answer, items):
            return 0.0

    assert earned(Length(), "short") == (1.0, True)
    assert earned(Length(**NOTHING), "a long answer") == (0.0, False)
    with pytest.raises(TypeError, match="abstract"):
        OpenAnswerReward()


CITED = (
    Hit(Passage("p1", "gout", "Allopurinol lowers uric acid."), 1.0),
    Hit(Passage("p2", "gout", "Colchicine relieves attacks."), 0.5),
)


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("(A) [1]", 1.2),
        ("(A)", 1.0),
        ("(A) [2]", 0.95),
        ("(A) [1] [2]", 1.15),
        ("(B) [2]", 0.1),  # wrong answers are not paid for their citations
        ("not found", 0.0),
    ],
)
def test_citations_that_support_a_right_answer_are_paid(answer: str, reward: float) -> None:
    question = Question("q", "What lowers uric acid?", ("allopurinol", "colchicine"), "A")
    turns = (Turn((), (), "", query="x", hits=CITED), Turn((), (), answer, answer=answer))
    rollout = Rollout(question, (), turns, StopReason.ANSWERED)
    assert SupportedCitations(supported=0.2, needless=0.05)(rollout).reward == pytest.approx(reward)
    with pytest.raises(ConfigError, match="wanted 0 or more"):
        SupportedCitations(needless=-0.1)
