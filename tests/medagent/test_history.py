"""Templates that change earlier turns: found out, and both remedies exact."""

from __future__ import annotations

import pytest

from medagent.agent import Agent, Job
from medagent.errors import ConfigError
from medagent.history import changes, differing_turns
from medagent.models.tool_template import ToolTemplate
from medagent.policies.scripted import ScriptedPolicy
from medagent.retrieval.passages import Hit, Passage
from medagent.tool_protocol import ToolProtocol
from medagent.types import NEW_CONTEXT, Limits, Question
from tests.medagent.support import FORGETFUL, HERMES, hermes

CALL = (
    '<think>\nwhy\n</think>\n\n<tool_call>\n{{"name": "search", "arguments": {{"query": "{}"}}}}\n</tool_call>'
    "<|im_end|>"
)
TURNS = [CALL.format("gout"), CALL.format("gout drug"), "<think>\nso\n</think>\n\nColchicine [1]<|im_end|>"]


class Corpus:
    def search(self, queries, *, top_k):
        return [[Hit(Passage.make("", f"About {query}."), 1.0)] for query in queries]


def forgetful():
    tokenizer = hermes()
    tokenizer.chat_template = FORGETFUL
    return tokenizer


def rolled_out(tokenizer, history):
    policy = ScriptedPolicy(tokenizer, lambda read, turn: TURNS[read.count("<tool_response>")])
    agent = Agent(policy, Corpus(), ToolProtocol(history=history), Limits(4, 400, 400, 4000), top_k=1)
    return agent.run_all([Job(Question("q", "Gout?"))])[0]


def test_a_template_that_keeps_history_is_left_alone() -> None:
    tokenizer = hermes()
    tokenizer.chat_template = HERMES.replace(
        "{{ message.content }}{% for call",
        "{% if message.reasoning_content %}<think>\n{{ message.reasoning_content }}\n</think>\n\n{% endif %}"
        "{{ message.content }}{% for call",
    )
    assert changes(tokenizer, tokenizer.chat_template, "2025-01-01") == ""
    rollout = rolled_out(tokenizer, "rerender")
    assert rollout.answer == "Colchicine [1]"
    assert NEW_CONTEXT not in rollout.token_ids


def test_a_template_that_drops_thoughts_is_found_out() -> None:
    tokenizer = forgetful()
    assert changes(tokenizer, tokenizer.chat_template, "2025-01-01") == "drops the thoughts of earlier turns"


def test_sampled_tokens_are_kept_by_default() -> None:
    tokenizer = forgetful()
    rollout = rolled_out(tokenizer, "keep")
    sampled = [list(turn.token_ids) for turn in rollout.turns]
    assert [tokenizer.decode(ids) for ids in sampled] == TURNS
    assert NEW_CONTEXT not in rollout.token_ids
    assert differing_turns(ToolTemplate(tokenizer, "2025-01-01", ToolProtocol().functions), rollout) == [1, 2]


def test_each_turn_is_trained_in_the_history_that_a_server_shows() -> None:
    tokenizer = forgetful()
    rollout = rolled_out(tokenizer, "rerender")
    contexts = tokenizer.decode([id_ for id_ in rollout.token_ids if id_ != NEW_CONTEXT])
    assert rollout.answer == "Colchicine [1]"
    assert rollout.token_ids.count(NEW_CONTEXT) == 2
    assert contexts.count("<think>") == 3  # of the turns themselves: none is shown again
    assert differing_turns(ToolTemplate(tokenizer, "2025-01-01", ToolProtocol().functions), rollout) == []
    marked = [id_ for id_, sampled in zip(rollout.token_ids, rollout.loss_mask, strict=True) if sampled]
    assert tokenizer.decode(marked) == "".join(TURNS)


def test_a_template_that_changes_history_can_be_refused() -> None:
    with pytest.raises(ConfigError, match="drops the thoughts of earlier turns"):
        rolled_out(forgetful(), "refuse")


def test_the_share_of_turns_with_another_history_is_a_metric() -> None:
    tokenizer = forgetful()
    policy = ScriptedPolicy(tokenizer, None)
    kept, rendered = (rolled_out(tokenizer, history) for history in ("keep", "rerender"))
    assert ToolProtocol().history_metrics(policy, [kept, rendered]) == {"rollout/other_history": 2 / 6}
    assert ToolProtocol().history_metrics(ScriptedPolicy(hermes(), None), [kept]) == {}


def test_a_template_that_moves_the_question_is_kept_or_refused() -> None:
    tokenizer = hermes()
    tokenizer.chat_template = HERMES.replace(
        "<|im_start|>{{ message.role }}\n",
        "<|im_start|>{{ message.role }}{% if loop.first and not loop.last %}!{% endif %}\n",
    )
    assert changes(tokenizer, tokenizer.chat_template, "2025-01-01") == "changes the question"
    with pytest.raises(ConfigError, match="found rerender and a chat template that changes the question"):
        rolled_out(tokenizer, "rerender")
