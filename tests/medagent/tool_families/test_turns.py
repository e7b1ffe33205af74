"""What a turn's calls are named, how it is ended where the model did not, and how the tokenizer tells to read it."""

import re

import pytest

from medagent.agent import Agent, Job
from medagent.policies.scripted import ScriptedPolicy
from medagent.tool_calls import Message, ToolCall, ToolResult
from medagent.tool_protocol import ToolProtocol
from medagent.types import Limits, Question
from tests.medagent.tool_families.more import FAMILIES
from tests.recording import Finds

PROTOCOL = ToolProtocol(instructions="")


def test_the_calls_of_a_turn_have_ids_that_differ_and_results_name_them() -> None:
    tokenizer, results = FAMILIES["mistral-v3"].tokenizer(), [ToolResult("search", error="x")] * 3
    ids, _ = PROTOCOL.encode_results(tokenizer, results, first_number=1, max_tokens=900)
    named = re.findall(r'"call_id": "(.*?)"', tokenizer.decode(ids))
    assert len(set(named)) == 3
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", each) for each in named)
    calls = tuple(ToolCall("search", {"query": each}) for each in "abc")
    written = PROTOCOL.template(tokenizer).turn_text(Message("assistant", "", calls=calls))
    assert re.findall(r'"id": "(.*?)"', written) == named


def test_a_template_that_writes_the_id_in_place_of_the_name_shows_the_name() -> None:
    tokenizer = FAMILIES["hermes"].tokenizer()
    tokenizer.chat_template = (
        "{{ tools | tojson }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "{% for c in m.tool_calls or [] %}<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>"
        "{{ c.function.arguments | tojson }}<|tool_call_end|>"
        "{% endfor %}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    written = PROTOCOL.written_turn(tokenizer, query="gout")
    assert written.startswith("<|tool_call_begin|>functions.search:0<")
    assert PROTOCOL.parse(written).query == "gout"


@pytest.mark.parametrize("name", ["glm", "plain-next"])
def test_a_call_that_ends_by_the_models_own_token_gets_the_templates_end(name: str) -> None:
    family = FAMILIES[name]
    tokenizer, call = family.tokenizer(), family.call([("search", {"query": "gout"})])
    for end in (family.ends[0], tokenizer.eos_token):
        policy = ScriptedPolicy(tokenizer, lambda read, turn, end=end: call + end)
        agent = Agent(policy, Finds(), PROTOCOL, Limits(2, 600, 600, 6_000))
        (rollout,) = agent.run_all([Job(Question("q", "Gout?"))])
        observation = tokenizer.decode(rollout.turns[0].observation_ids)
        assert observation.startswith(family.ends[0]) == (end == tokenizer.eos_token)


RESPONSE_TEMPLATE = {
    "start_anchor": "<turn>",
    "fields": {
        "thinking": {"open": "<<", "close": ">>"},
        "tool_calls": {
            "open_pattern": r"\[(?P<name>[a-z]+)\]",
            "close": "[/]",
            "content": "json",
            "repeats": True,
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {},
    },
}


def test_a_turn_is_read_as_the_tokenizer_tells_and_else_leniently() -> None:
    tokenizer = FAMILIES["hermes"].tokenizer()
    tokenizer.response_template = RESPONSE_TEMPLATE
    read = PROTOCOL.read(tokenizer, '<<why?>>[search]{"query": "gout"}[/]')
    assert (read.think, read.query) == ("why?", "gout")
    assert PROTOCOL.read(tokenizer, "<<why?>>Colchicine [1].").answer == "Colchicine [1]."
    lenient = '```json\n{"name": "search", "arguments": {"query": "gout"}}\n```'
    for said in (lenient, '<tool_call>{"name": "search", "arguments": {"query": "gout"}}</tool_call>'):
        assert PROTOCOL.read(tokenizer, said).query == "gout"
    assert PROTOCOL.read(tokenizer, '[search]{"query": [/]').answer == '[search]{"query": [/]'
    policy = ScriptedPolicy(
        tokenizer, lambda read, turn: ['[search]{"query": "gout"}[/]<|im_end|>', "x<|im_end|>"][turn]
    )
    (rollout,) = Agent(policy, Finds(), PROTOCOL).run_all([Job(Question("q", "Gout?"))])
    assert [turn.query for turn in rollout.turns] == ["gout", None]
