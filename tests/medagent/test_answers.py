"""Citations are checked by the program."""

from __future__ import annotations

import pytest

from medagent.answers import checked, nearest_sentence
from medagent.types import Question, Rollout, StopReason, Turn


def test_citations_without_passages_are_taken_out() -> None:
    turn = Turn((1, 2), (-0.1, -0.3), "", answer=" (B) [0] [12] see [2].", hits=())
    answer = checked(Rollout(Question("q", "?", ("a", "b")), (5,), (turn,), StopReason.ANSWERED))
    assert (answer.text, answer.letter, answer.removed_citations, answer.supported) == ("(B) see.", "B", 3, False)
    assert answer.confidence == pytest.approx(0.8187, abs=1e-3)
    cut = checked(Rollout(Question("q", "?"), (5,), (turn,), StopReason.MAX_TURNS))
    assert (cut.text, cut.confidence, cut.stop_reason) == ("", None, StopReason.MAX_TURNS)
    assert nearest_sentence("", "x") == (0, 0)
