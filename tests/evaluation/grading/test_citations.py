from __future__ import annotations

import pytest

from medagent.evaluation.grading.citations import content_words, ground, states_gold
from medagent.retrieval.passages import Hit, Passage
from medagent.types import Question, Rollout, StopReason, Turn

HITS = (
    Hit(Passage("p1", "gout", "Allopurinol lowers uric acid. It is not for acute attacks."), 1.0),
    Hit(Passage("p2", "anemia", "Iron tablets treat the iron deficiency anemias."), 0.5),
)
QUESTION = Question("q", "?", ("allopurinol", "iron deficiency anemia"), "A", gold_passage_ids=("p1", "p9"))


def rollout(answer: str | None, question: Question = QUESTION, *, searched: bool = True) -> Rollout:
    turns = (Turn((), (), "", query="x", hits=HITS),) if searched else ()
    last = () if answer is None else (Turn((), (), "", answer=answer),)
    return Rollout(question, (), (*turns, *last), StopReason.ANSWERED if answer else StopReason.MAX_TURNS)


def test_content_words() -> None:
    assert content_words("The anemias of the Rh- mother") == {"anemia", "rh-", "mother"}
    assert content_words("Rh+") != content_words("Rh-")


@pytest.mark.parametrize(
    ("gold", "hits", "stated"),
    [
        ("allopurinol", HITS, True),
        ("allopurinol", HITS[1:], False),
        ("iron deficiency anemia", HITS[1:], True),
        ("attacks", HITS, False),  # denied
        ("yes", (Hit(Passage("p3", "", "Yes, it does."), 1.0),), False),
        ("", HITS, False),
    ],
)
def test_passages_state_a_right_answer_or_none(gold: str, hits: tuple[Hit, ...], stated: bool) -> None:
    assert states_gold(hits, Question("q", "?", (), gold)) is stated
    options = ("colchicine", gold)
    assert states_gold(hits, Question("q", "?", options, "B" if gold else "")) is stated


def test_precision_recall_and_gold_by_hand() -> None:
    found = ground(
        [
            rollout("(A) [1] [2]"),  # one of two citations supports; the gold answer is in a cited passage
            rollout("(B) [1]"),  # wrong and unsupported, but the cited passage contains the right answer
            rollout("(A)", searched=False),  # no citation
            rollout(None),  # no answer
        ]
    )
    assert found.searched == 0.75
    assert found.answers_judged == 3
    assert found.citation_precision == pytest.approx(1 / 3)
    assert found.citation_recall == pytest.approx(1 / 3)
    assert found.cited_gold == pytest.approx(2 / 3)
    assert (found.gold_any, found.gold_all) == (0.75, 0.0)


def test_yes_and_no_are_not_judged_by_words() -> None:
    decided = Question("q", "?", ("yes", "no"), "A")
    found = ground([rollout("(A) [1]", decided)])
    assert (found.answers_judged, found.citation_precision, found.gold_any) == (0, None, None)


def test_open_answers_are_judged_by_their_own_words() -> None:
    question = Question("q", "?", (), "uric acid", aliases=("urate",))
    found = ground([rollout("uric acid [1]", question), rollout("tablets [2]", question)])
    assert (found.citation_recall, found.cited_gold) == (1.0, 0.5)
