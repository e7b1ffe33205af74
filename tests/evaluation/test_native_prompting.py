"""Evaluation of an untrained model by native tool calls."""

from __future__ import annotations

import pytest

from medagent.agent import Agent
from medagent.errors import InputError
from medagent.evaluation.modes import Mode, agent_for
from medagent.evaluation.prompting import with_prompting
from medagent.policies.huggingface import HFPolicy
from medagent.retrieval.controls import NoRetriever
from medagent.tool_protocol import ToolProtocol
from tests.training.test_native_calls import starter_with_tools


def test_an_untrained_model_is_asked_by_native_calls() -> None:
    agent = Agent(HFPolicy(*starter_with_tools()), NoRetriever(), trained=False)
    asked = with_prompting(agent, "hf:model", "tools", [Mode.SEARCH], [])
    assert isinstance(asked.protocol, ToolProtocol)
    assert asked.protocol.answering_only(given=False).functions == ()  # from memory: no tool is offered


def test_a_search_cannot_be_forced_where_it_has_no_tag() -> None:
    agent = Agent(HFPolicy(*starter_with_tools()), NoRetriever(), ToolProtocol(), trained=False)
    with pytest.raises(InputError, match="native tool calls have no tag"):
        agent_for(agent, Mode.FORCED_SEARCH, [])
