"""What the tests of environments share: a tiny chat tokenizer, and agents whose turns are written beforehand."""

from __future__ import annotations

import json

from medagent.environment import AgentSettings
from medagent.policies.scripted import ScriptedPolicy
from medagent.tool_protocol import ToolProtocol
from medagent.types import Limits
from tests.medagent.support import hermes

LIMITS = Limits(max_turns=4, max_turn_tokens=400, max_observation_tokens=1500, max_total_tokens=8000)


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def agent_in(environment, *turns: str, limits: Limits = LIMITS):
    """The environment's agent with a policy that writes these turns, each ended as the template ends it."""
    policy = ScriptedPolicy(hermes(), lambda read, turn: turns[turn] + "<|im_end|>")
    settings = AgentSettings(ToolProtocol(), limits)
    environment.check(settings)
    return environment.agent(policy, settings)
