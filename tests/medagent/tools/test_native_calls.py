"""A protocol of tool calls offers the tools of the settings, and an agent without its tools is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from medagent.agent import Agent, Job
from medagent.agent_folder import load_agent
from medagent.agent_spec import AgentSpec, read_spec, write_spec
from medagent.environment import AgentSettings
from medagent.errors import ConfigError
from medagent.models.base_models import STARTER, model_path
from medagent.policies.scripted import ScriptedPolicy
from medagent.retrieval.errors import ToolError
from medagent.retrieval.passages import Passage
from medagent.tool_protocol import ToolProtocol
from medagent.tools.corpus import SEARCH
from medagent.types import Limits, Question
from tests.medagent.test_tool_protocol import hermes
from tests.recording import Finds

DOSE = f"{__name__}.dose"


def dose(per_kg: int, weight: int) -> str:
    """The dose by weight.

    Args:
        per_kg: Milligrams per kilogram.
        weight: Kilograms.
    """
    return f"{per_kg * weight} mg"


def test_calls_of_several_tools_in_a_turn_are_answered_side_by_side() -> None:
    settings = AgentSettings(ToolProtocol("Go."), Limits(3, 400, 800, 6_000), tools=(DOSE, "read"))
    assert isinstance(settings.protocol, ToolProtocol)
    assert [each["function"]["name"] for each in settings.protocol.functions] == ["search", "dose", "read"]
    calls = (
        '<tool_call>{"name": "dose", "arguments": {"per_kg": 2, "weight": 30}}</tool_call>'
        '<tool_call>{"name": "search", "arguments": {"query": "gout"}}</tool_call>'
        '<tool_call>{"name": "dose", "arguments": {"per_kg": "x"}}</tool_call><|im_end|>'
    )
    tokenizer, said = hermes(), [calls, "60 mg [1]<|im_end|>"]
    policy = ScriptedPolicy(tokenizer, lambda read, turn: said[turn])
    agent = Agent(
        policy, Finds(Passage("p", "Gout", "It hurts.")), settings.protocol, settings.limits, tools=settings.made_tools
    )
    (rollout,) = agent.run_all([Job(Question("q", "How much?", answer="60 mg"))])
    assert [hit.passage.text for hit in rollout.hits] == ["60 mg", "It hurts."]
    assert [call.name for call in rollout.turns[0].calls] == ["dose", "search", "dose"]
    assert "weight: Missing required argument" in tokenizer.decode(rollout.turns[0].observation_ids)
    assert rollout.answer == "60 mg [1]"


def test_a_named_search_shows_its_filters() -> None:
    protocol = AgentSettings(ToolProtocol(), tools=("search",)).protocol
    assert isinstance(protocol, ToolProtocol)
    assert list(protocol.functions) == [SEARCH.schema]
    assert set(SEARCH.parameters["properties"]) == {"query", "where", "top_k"}


def test_settings_with_a_tool_that_cannot_be_made_are_refused() -> None:
    with pytest.raises(ToolError, match=r"no_such_module\.tool"):
        AgentSettings(tools=("no_such_module.tool",))


def test_an_agent_is_opened_with_the_tools_that_it_was_trained_with(tmp_path: Path) -> None:
    starter = read_spec(Path(model_path(STARTER)))
    spec = AgentSpec(**{**vars(starter), "tools": {"dose": DOSE}})
    write_spec(tmp_path, spec)
    assert read_spec(tmp_path).tools == {"dose": DOSE}
    for tools, found in (((), r"\[\]"), ((DOSE, "read"), r"\['dose', 'read'\]")):
        with pytest.raises(
            ConfigError, match=rf"""found the tools {found}, wanted \['dose'\]. Give --tools '\["{DOSE}"""
        ):
            load_agent(tmp_path, retriever=Finds(), tools=tools)
    with pytest.raises(ConfigError, match="Leave --tools out"):
        load_agent(Path(model_path(STARTER)), retriever=Finds(), tools=(DOSE,))
