"""A passage that the limit on observations leaves out was never shown: nothing may count it.

Every search finds two passages, and the second has the evidence. With room for one, nobody has read it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from medagent.agent import Agent, GivenSearch, Job
from medagent.answer_forms import citations
from medagent.evaluation.grading.citations import ground
from medagent.evaluation.grading.grade import grade
from medagent.evaluation.metrics import summarize
from medagent.evaluation.rollout_files import readable, rollout_from
from medagent.evidence.answers import Steps, checked
from medagent.evidence.check import EvidenceCheck
from medagent.protocol import TagProtocol
from medagent.retrieval.controls import NoRetriever
from medagent.retrieval.passages import Hit, Passage
from medagent.training.forward import TURNS
from medagent.training.prepare import evidence
from medagent.training.rewards import TurnRewards
from medagent.types import Limits, Question, Rollout
from tests.recording import RecordingPolicy

GOLD = ("gold 0", "gold 1", "gold 2")
QUESTION = Question("q", "Which helps?", ("zinc salts", "copper"), "A", gold_passage_ids=GOLD)
ROOM_FOR_ONE = len("\n<information>\n- other 0: Nothing of use [1].\n</information>\n") + 3


def found(number: int) -> list[Hit]:
    return [
        Hit(Passage(f"other {number}", f"other {number}", "Nothing of use."), 2.0),
        Hit(Passage(f"gold {number}", f"gold {number}", "Zinc salts help."), 1.0),
    ]


class Finds:
    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Hit]]:
        return [found(int(query)) for query in queries]


def dialogue(room: int) -> Rollout:
    """Three searches, then an answer that cites six passages."""

    def script(read: str, turn: int) -> str:
        said = [f"<search>{turn}</search>"] * 3
        return [*said, "<answer>zinc salts (A) [1] [2] [3] [4] [5] [6]</answer>"][turn]

    policy = RecordingPolicy(script)
    agent = Agent(policy, Finds(), TagProtocol(instructions=""), Limits(4, 100, room, 10_000), top_k=2)
    (rollout,) = agent.run_all([Job(QUESTION)])
    read = policy.dialogues[0].text.removesuffix("</answer>").rpartition("<answer>")[0]
    assert citations(read) == list(range(1, len(rollout.hits) + 1)), "numbers go on from search to search"
    for number, hit in enumerate(rollout.hits, start=1):
        assert f"- {hit.passage.title}: {hit.passage.text.rstrip('.')} [{number}].\n" in read
    return rollout


def test_a_given_search_and_those_after_it_show_what_fits() -> None:
    said = ["<search>1</search>", "<answer>zinc salts (A) [2]</answer>"]
    policy = RecordingPolicy(lambda read, turn: said[turn])
    agent = Agent(policy, Finds(), TagProtocol(instructions=""), Limits(4, 100, ROOM_FOR_ONE, 10_000), top_k=2)
    (rollout,) = agent.run_all([Job(QUESTION, given=GivenSearch("0"))])
    assert [[hit.passage.id for hit in turn.hits] for turn in rollout.turns] == [["other 0"], ["other 0"], []]
    assert "- other 0: Nothing of use [2].\n" in policy.dialogues[0].text


@pytest.fixture(scope="module")
def cut() -> Rollout:
    return dialogue(ROOM_FOR_ONE)


@pytest.fixture(scope="module")
def whole() -> Rollout:
    return dialogue(1_000)


def test_only_what_was_shown_is_a_hit(cut: Rollout, whole: Rollout) -> None:
    assert [hit.passage.id for hit in cut.hits] == ["other 0", "other 1", "other 2"]
    assert [hit.passage.id for hit in whole.hits] == ["other 0", "gold 0", "other 1", "gold 1", "other 2", "gold 2"]
    assert [len(turn.hits) for turn in cut.turns] == [1, 1, 1, 0]


def test_it_earns_nothing(cut: Rollout, whole: Rollout) -> None:
    reward = TurnRewards(gold_hit=0.2, search_cost=0.02)
    assert [turn.reward for turn in reward(cut).turns] == pytest.approx([-0.02, -0.02, -0.02, 0.0])
    assert [turn.reward for turn in reward(whole).turns] == pytest.approx([0.18, 0.18, 0.18, 0.0])


def test_it_is_no_evidence(cut: Rollout, whole: Rollout) -> None:
    after = [row[TURNS:] for row in evidence(cut)]
    assert after == [[0.0, 0.0, 0.0, 1.5, 0.0, 0.0]] * 5
    after = [row[TURNS:] for row in evidence(whole)]
    thirds = [0.0, 1 / 3, 2 / 3, 1.0, 1.0]
    assert [row[1] for row in after] == pytest.approx(thirds)
    assert [row[0] for row in after] == [0.0, 1.0, 1.0, 1.0, 1.0]
    assert [row[4] for row in after] == [0.0, 0.5, 0.5, 0.5, 0.0]


def test_it_cannot_be_cited(cut: Rollout, whole: Rollout) -> None:
    assert grade(cut).cited == (1, 2, 3)
    assert grade(whole).cited == (1, 2, 3, 4, 5, 6)
    answer = checked(cut, EvidenceCheck(shown="all"))
    assert (answer.removed_citations, [source.number for source in answer.citations]) == (3, [1, 2, 3])
    assert answer.text == "zinc salts (A) [1] [2] [3]"
    assert checked(whole, EvidenceCheck(shown="all")).removed_citations == 0


def test_it_grounds_nothing(cut: Rollout, whole: Rollout) -> None:
    missed, met = ground([cut]), ground([whole])
    assert (missed.gold_any, missed.gold_all, missed.cited_gold, missed.citation_recall) == (0.0, 0.0, 0.0, 0.0)
    assert (met.gold_any, met.gold_all, met.cited_gold, met.citation_recall) == (1.0, 1.0, 1.0, 1.0)
    assert (missed.citation_precision, met.citation_precision) == (0.0, 0.5)
    both = summarize([cut, whole]).grounding
    assert (both.gold_any, both.gold_all, both.searched) == (0.5, 0.5, 1.0)


@pytest.mark.parametrize("number", [0, 1])
def test_records_and_steps_tell_the_same(cut: Rollout, whole: Rollout, number: int) -> None:
    rollout = (cut, whole)[number]
    steps = Steps(TagProtocol(), NoRetriever())
    shown = [(each["number"], each["passage"]["id"]) for turn in rollout.turns for each in steps(turn)["passages"]]
    assert shown == [(at, hit.passage.id) for at, hit in enumerate(rollout.hits, start=1)]
    back = rollout_from(readable(rollout))
    assert [hit.passage.id for hit in back.hits] == [hit.passage.id for hit in rollout.hits]
    assert grade(back) == grade(rollout)
    assert ground([back]) == ground([rollout])
    assert back.num_searches == rollout.num_searches == 3
