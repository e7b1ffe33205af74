"""A benchmark may name whole articles as evidence, which an index holds in pieces: each place counts them alike."""

from dataclasses import replace

import pytest

from medagent.evaluation.grading.citations import ground
from medagent.evaluation.search_recall import recall_of
from medagent.retrieval.passages import Hit, Passage
from medagent.training.forward import TURNS
from medagent.training.prepare import evidence
from medagent.training.rewards import TurnRewards
from medagent.types import Question, Rollout, StopReason, Turn

QUESTION = Question("q", "Does zinc shorten colds?", ("yes", "no"), "A", gold_passage_ids=("pubmed:1",))
PIECES = [Passage(f"pubmed:{n}#{i}", "", f"text {n} {i}", document=f"pubmed:{n}") for n in (1, 2) for i in (1, 2)]


def rollout(*numbers: int) -> Rollout:
    hits = tuple(Hit(PIECES[number], 1.0) for number in numbers)
    search = Turn((1,), (0.0,), "<search>zinc</search>", query="zinc", hits=hits)
    return Rollout(QUESTION, (), (search, Turn((2,), (0.0,), "<answer>A</answer>", answer="A")), StopReason.ANSWERED)


@pytest.mark.parametrize(("shown", "met"), [((1, 2), True), ((0, 1), True), ((2, 3), False)])
def test_a_piece_of_the_article_is_its_evidence(shown: tuple[int, ...], met: bool) -> None:
    found = rollout(*shown)
    grounding = ground([found])
    assert (grounding.gold_any, grounding.gold_all) == (met, met)
    assert evidence(found)[1][TURNS + 1 : TURNS + 3] == [float(met)] * 2
    assert evidence(found)[1][TURNS + 4] == float(met)
    paid = TurnRewards(gold_hit=0.2, search_cost=0.0)(found)
    assert paid.turns[0].reward == pytest.approx(0.2 * met)
    assert recall_of(found, [], top_k=2).passages == float(met)


def test_two_pieces_of_one_article_are_paid_once() -> None:
    once = rollout(0)
    twice = replace(once, turns=(once.turns[0], *rollout(1).turns))
    assert [turn.reward for turn in TurnRewards(gold_hit=0.2, search_cost=0.0)(twice).turns] == [0.2, 0.0, 0.0]
