"""Citations are checked by the program."""

from __future__ import annotations

import pytest

from medagent.evidence.answers import checked, nearest_sentence
from medagent.evidence.check import EvidenceCheck
from medagent.types import Question, Rollout, StopReason, Turn


def test_citations_without_passages_are_taken_out() -> None:
    turn = Turn((1, 2), (-0.1, -0.3), "", answer=" (B) [0] [12] see [2].", hits=())
    every = EvidenceCheck(shown="all")
    answer = checked(Rollout(Question("q", "Gout?", ("a", "b see")), (5,), (turn,), StopReason.ANSWERED), every)
    assert (answer.text, answer.letter, answer.removed_citations, answer.citations) == ("(B) see.", "B", 3, ())
    assert answer.logprob == pytest.approx(-0.2)
    cut = checked(Rollout(Question("q", "Gout?"), (5,), (turn,), StopReason.MAX_TURNS), every)
    assert (cut.text, cut.logprob, cut.stop_reason) == (
        "No answer: the agent stopped before one (max_turns).",
        None,
        StopReason.MAX_TURNS,
    )
    assert cut.withheld
    assert nearest_sentence("", "x") == (0, 0)
