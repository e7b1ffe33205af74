"""Records of rollouts tell what a turn called besides one search."""

from __future__ import annotations

import json

import pytest

from medagent.evaluation.rollout_files import readable, rollout_from
from medagent.tool_calls import ToolCall
from medagent.types import Question, Rollout, StopReason, Turn

SEARCH = ToolCall("search", {"query": "gout"})


@pytest.mark.parametrize(
    "calls", [(ToolCall("dose", {"weight": 64}),), (SEARCH, SEARCH), (ToolCall("x", {}, "unknown"),)]
)
def test_calls_of_tools_are_recorded_and_read_again(calls: tuple[ToolCall, ...]) -> None:
    turns = Turn((), (), "", "gout", calls=calls), Turn((), (), "", answer="colchicine")
    rollout = Rollout(Question("q", "Gout?"), (), turns, StopReason.ANSWERED)
    assert rollout_from(json.loads(json.dumps(readable(rollout)))).turns[0].calls == calls


def test_one_search_is_told_by_its_query_alone() -> None:
    turns = Turn((), (), "", "gout", calls=(SEARCH,)), Turn((), (), "", answer="colchicine")
    row = readable(Rollout(Question("q", "Gout?"), (), turns, StopReason.ANSWERED))
    assert "calls" not in row["turns"][0]
