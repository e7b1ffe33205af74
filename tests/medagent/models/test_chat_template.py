"""Around the question: chat templates on a fixed day, the tokenizer's beginning of text, and thoughts left open."""

from __future__ import annotations

from datetime import datetime
from unittest import mock

import pytest
import transformers.utils.chat_template_utils as template_utils
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerBase

from medagent.agent import Agent, GivenSearch, Job
from medagent.agent_spec import AgentSpec, read_spec, write_spec
from medagent.errors import ConfigError
from medagent.models.chat_template import beginning_of_text
from medagent.policies.scripted import ScriptedPolicy
from medagent.protocol import TagProtocol
from medagent.retrieval.passages import Hit, Passage
from medagent.types import Limits, Question, Rollout, StopReason
from tests.medagent.support import byte_level, in_python, sentencepiece_bpe

QUESTION = Question("q", "What treats gout?", ("aspirin", "allopurinol"), "B")
DATED = (
    "{%- if not date_string is defined %}{%- if strftime_now is defined %}"
    '{%- set date_string = strftime_now("%d %b %Y") %}{%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}'
    "{%- endif %}Today Date: {{ date_string }}, {{ strftime_now('%A %B %-d, %Y %H:%M') }}\n"
    "{% for m in messages %}U:{{ m.content }}\n{% endfor %}A:"
)
OPENS = "{% for m in messages %}U:{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}A:<think>\n{% endif %}"
CLOSES = OPENS.replace("<think>\n", "<think>\n\n</think>\n\n")
TURNS = ["I ask</think>\n<search>gout drug</search>", "<think>so</think><answer>allopurinol (B)</answer>"]


def templated(template: str) -> PreTrainedTokenizerBase:
    tokenizer = byte_level()
    tokenizer.chat_template = template
    return tokenizer


def prompt_on(day: datetime, **settings: object) -> str:
    tokenizer = templated(DATED)
    with mock.patch.object(template_utils, "datetime") as clock:
        clock.now.return_value = day
        protocol = TagProtocol(instructions="", chat=True, **settings)  # type: ignore[arg-type]
        return str(tokenizer.decode(protocol.encode_prompt(tokenizer, Question("q", "What?"))))


def test_prompts_do_not_change_with_the_day() -> None:
    first = prompt_on(datetime(2026, 1, 1))
    assert first == prompt_on(datetime(2026, 7, 2))
    assert first.startswith("Today Date: 01 Jan 2025, Wednesday January 1, 2025 00:00\nU:")
    assert prompt_on(datetime(2026, 1, 1), date="2031-12-09").startswith("Today Date: 09 Dec 2031, Tuesday")


@pytest.mark.parametrize(
    "date", ["", "today", "2025-13-01", "2025-02-30", "20250101", "2025-W01-1", "01.02.2025", 2025]
)
def test_a_date_that_is_none_is_refused(date: object) -> None:
    with pytest.raises(ConfigError, match=r"protocol.date: found .* wanted a day as YEAR-MONTH-DAY"):
        TagProtocol(date=date)  # type: ignore[arg-type]


def test_the_date_is_exported_with_the_agent(tmp_path) -> None:
    protocol = TagProtocol(chat=True, date="2031-12-09")
    write_spec(tmp_path, AgentSpec(".", "float32", protocol, Limits(), 2, None))
    assert read_spec(tmp_path).protocol == protocol
    assert protocol.answering_only(given=True).date == "2031-12-09"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("A:", "drops the user's message"),
        ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", "repeats the user's message"),
        ("{{ raise_exception('system first') }}", r"refuses a lone message of the user \(system first\)"),
        (None, "no chat template"),
    ],
)
def test_a_template_that_cannot_wrap_a_question_is_told(template: str | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        TagProtocol(chat=True).encode_prompt(templated(template), QUESTION)  # type: ignore[arg-type]


def test_a_prompt_without_chat_begins_as_the_tokenizer_begins_a_text() -> None:
    tokenizer = sentencepiece_bpe()  # adds <s> before and </s> behind
    ids = TagProtocol(instructions="").encode_prompt(tokenizer, QUESTION)
    assert (ids.count(tokenizer.bos_token_id), ids[0]) == (1, tokenizer.bos_token_id)
    assert tokenizer.eos_token_id not in ids
    again = TagProtocol(instructions="<s>Do.").encode_prompt(tokenizer, QUESTION)
    assert again.count(tokenizer.bos_token_id) == 1
    assert again[0] == tokenizer.bos_token_id


def test_only_the_beginning_counts() -> None:
    tokenizer = byte_level()
    assert beginning_of_text(tokenizer) == beginning_of_text(in_python()) == ()
    for single, wanted in (("$A </s>", []), ("<s> $A", ["<s>"]), ("<s> <|im_end|> $A </s>", ["<s>", "<|im_end|>"])):
        tokenizer = byte_level()
        tokens = [(text, tokenizer.convert_tokens_to_ids(text)) for text in ("<s>", "</s>", "<|im_end|>")]
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=single, special_tokens=tokens)
        assert tokenizer.convert_ids_to_tokens(list(beginning_of_text(tokenizer))) == wanted


@pytest.mark.parametrize(("start", "count"), [("<s>", 1), ("{{ bos_token }}", 1), ("", 0)])
def test_with_chat_the_template_decides_on_the_beginning(start: str, count: int) -> None:
    tokenizer = sentencepiece_bpe()
    tokenizer.chat_template = start + "{% for m in messages %}{{ m.content }}{% endfor %}"
    ids = TagProtocol(instructions="", chat=True).encode_prompt(tokenizer, QUESTION)
    message = [{"role": "user", "content": "x"}]
    own = tokenizer.apply_chat_template(message, tokenize=True, return_dict=False)
    assert ids.count(tokenizer.bos_token_id) == own.count(tokenizer.bos_token_id) == count


class Shelf:
    def search(self, queries, *, top_k: int) -> list[list[Hit]]:
        return [[Hit(Passage("p", "gout", "It hurts."), 1.0)] for _ in queries]


def rolled_out(template: str, turns: list[str], **job: object) -> tuple[Rollout, str]:
    tokenizer = templated(template)
    protocol = TagProtocol(instructions="", chat=True)
    policy = ScriptedPolicy(tokenizer, lambda read, turn: turns[turn])
    agent = Agent(policy, Shelf(), protocol, Limits(4, 200, 400, 2000))
    (rollout,) = agent.run_all([Job(QUESTION, **job)])  # type: ignore[arg-type]
    return rollout, str(tokenizer.decode(rollout.token_ids))


def test_a_first_turn_in_an_open_thought_parses() -> None:
    rollout, read = rolled_out(OPENS, TURNS)
    assert (rollout.stop_reason, rollout.answer) == (StopReason.ANSWERED, "allopurinol (B)")
    assert rollout.turns[0].query == "gout drug"
    assert rollout.turns[0].text == "<think>\n" + TURNS[0]
    assert TagProtocol().parse(rollout.turns[0].text).think == "I ask"
    assert rollout.turns[1].text == TURNS[1]
    assert "A:<think>\nI ask</think>" in read, "the opening is written once"
    assert rollout.turns[0].forced_prefix == 0


@pytest.mark.parametrize("template", [OPENS.replace("<think>\n", ""), CLOSES])
def test_a_turn_that_forgets_to_open_its_thought_is_read_all_the_same(template: str) -> None:
    rollout, _ = rolled_out(template, TURNS)
    assert (rollout.stop_reason, rollout.turns[0].query) == (StopReason.ANSWERED, "gout drug")
    assert TagProtocol().parse(rollout.turns[0].text).think == "I ask"
    later = [TURNS[1].replace("<think>", "").replace("answer", "search"), TURNS[1].replace("<think>", "")]
    assert rolled_out(OPENS, later)[0].stop_reason is StopReason.ANSWERED


def test_an_empty_thought_of_the_template_leaves_turns_as_they_are() -> None:
    rollout, _ = rolled_out(CLOSES, ["<search>gout drug</search>", TURNS[1]])
    assert rollout.stop_reason is StopReason.ANSWERED
    assert rollout.turns[0].text == "<search>gout drug</search>"


@pytest.mark.parametrize(("force", "rest"), [("force_search", " gout drug</search>"), ("force_answer", "(B)</answer>")])
def test_a_forced_opening_closes_the_open_thought_first(force: str, rest: str) -> None:
    rollout, read = rolled_out(OPENS, [rest, TURNS[1]], **{force: True})
    assert rollout.stop_reason is StopReason.ANSWERED
    tag = "<search>" if force == "force_search" else "<answer>"
    assert f"A:<think>\n\n</think>\n\n{tag}{rest}" in read
    assert rollout.turns[0].query == ("gout drug" if force == "force_search" else None)
    acted = [token for token, acts in zip(rollout.token_ids, rollout.loss_mask, strict=True) if acts]
    assert templated(OPENS).decode(acted).startswith(rest), "what the environment wrote is no action"


def test_a_given_search_closes_the_open_thought_first() -> None:
    rollout, read = rolled_out(OPENS, ["<answer>(B) [1]</answer>"], given=GivenSearch("gout"))
    assert "A:<think>\n\n</think>\n\n<search> gout</search>\n<information>" in read
    assert rollout.stop_reason is StopReason.ANSWERED
    assert rollout.turns[1].text == "<answer>(B) [1]</answer>"
    assert rollout.num_action_tokens == len(rollout.turns[1].token_ids)


def test_without_chat_nothing_is_opened() -> None:
    tokenizer = templated(OPENS)
    assert TagProtocol().opened(tokenizer) == ""
    policy = ScriptedPolicy(tokenizer, lambda read, turn: TURNS[turn])
    (rollout,) = Agent(policy, Shelf(), TagProtocol(), Limits(4, 200, 400, 4000)).run_all([Job(QUESTION)])
    assert rollout.stop_reason is StopReason.ANSWERED
    assert rollout.turns[0].text == TURNS[0]


def test_a_template_that_only_asks_for_date_string_gets_the_protocols_day() -> None:
    tokenizer = templated(
        "{{ date_string | default('26 Jul 2024') }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    )
    protocol = TagProtocol(instructions="", chat=True, date="2031-12-09")
    assert tokenizer.decode(protocol.encode_prompt(tokenizer, Question("q", "What?"))).startswith("09 Dec 2031")
