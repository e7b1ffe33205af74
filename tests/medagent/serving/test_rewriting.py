"""A model rewrites follow-up questions where what it writes says what the conversation does; else rules do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from medagent.cli.ask import rewriter_of
from medagent.errors import ConfigError
from medagent.policies.scripted import ScriptedPolicy
from medagent.policy import SampledTurn
from medagent.protocol import Block
from medagent.serving.conversation import LONGEST
from medagent.serving.rewriting import ModelRewriter, accepted, prompt
from tests.medagent.support import ChatServer, byte_level, chat_server

GOUT = ["What causes gout?", "Sure, but what would you give a woman who has had it twice?"]
WHOLE = "What would you give a woman who has had gout twice?"
TEMPLATE = "{% for m in messages %}<u>{{ m['content'] }}</u>{% endfor %}<a>"


def rewritten(reply: str, questions: list[str] = GOUT) -> str:
    policy = ScriptedPolicy(byte_level(), lambda read, turn: reply)
    return asyncio.run(ModelRewriter()(questions, policy))


def test_a_rewritten_question_is_asked() -> None:
    assert rewritten(WHOLE) == WHOLE


def test_what_stands_around_the_question_is_left_out() -> None:
    for reply in [
        f'"{WHOLE}"',
        f"Rewritten question: {WHOLE}",
        f"Question: {WHOLE}",
        f"<think>it is gout</think>\n{WHOLE}",
        f"  {WHOLE}\n",
        f"**{WHOLE}**",
    ]:
        assert accepted(reply, GOUT) == WHOLE


def test_what_says_something_else_is_not_taken() -> None:
    for reply in [
        "",
        "I cannot help with that.",
        "Colchicine.",
        "You would give a woman who has had gout twice what caused gout.",
        "<search>gout in women</search>",
        "What would you give a woman who has had pseudogout twice?",
        "What would you give a woman with diabetes who has had gout twice?",
        "What would you give for gout?",  # the woman is gone, and how often she had it
        f"{WHOLE}\nColchicine.",
        WHOLE + " gout" * LONGEST,
    ]:
        assert accepted(reply, GOUT) == ""
        assert rewritten(reply) == GOUT[1], "rules cannot complete it"


def test_words_of_another_kind_of_question_may_differ() -> None:
    asked = ["What causes gout?", "And how is it treated?"]
    assert accepted("What is the treatment of gout?", asked) == "What is the treatment of gout?"


DRUG = "What is warfarin?"


def test_what_changes_the_question_is_not_taken() -> None:
    for before, last, reply in [
        (DRUG, "Is it safe in pregnancy?", "Is warfarin safe?"),
        ("What causes gout?", "How is it diagnosed?", "How is gout treated?"),
        ("What causes gout?", "Is it dangerous?", "Is gout safe to have?"),
        ("What is blood pressure?", "What happens if it is high?", "What happens if blood pressure is low?"),
        ("What causes gout?", "Which drugs shouldn't be given for it?", "Which drugs should be given for gout?"),
        ("What causes gout?", "What if I don't treat it?", "What if I treat gout?"),
        ("What causes gout?", "How is it treated?", "?"),
        ("What causes gout?", "How is it treated?", "What should I do?"),
        ("What causes gout?", "How is it treated?", "How is it treated?"),
        ("What causes gout?", "tell me how it is treated", "Gout is safe, take no medicine"),
        ("What causes gout?", "tell me how it is treated", "No"),
        (DRUG, "Should I take it before aspirin?", "Should I take aspirin before warfarin?"),
        (DRUG, "Is 1.5 g of it too much?", "Is 5.1 g of warfarin too much?"),
        ("What causes type 1 diabetes?", "How is it treated?", "How is diabetes treated?"),
        ("What causes gout?", "How is it treated?", "How is gout\u2028treated?"),
        ("What causes gout?", "How is it treated?", "How is \u202egout treated?"),
        ("What causes gout?", "How is it treated?", "How is gout\rtreated?"),
    ]:
        assert accepted(reply, [before, last]) == ""


def test_what_only_completes_it_is_taken() -> None:
    for before, last, reply in [
        (DRUG, "Should I take it before aspirin?", "Should I take warfarin before aspirin?"),
        (DRUG, "Is 1.5 g of it too much?", "Is 1.5 g of warfarin too much?"),
        ("What causes gout?", "Which drugs shouldn't be given for it?", "Which drugs should not be given for gout?"),
        ("What causes gout?", "tell me how it is treated", "tell me how gout is treated"),
        ("What causes gout?", "and pseudogout?", "What causes pseudogout?"),
        ("What causes type 1 diabetes?", "How is it treated?", "How is type 1 diabetes treated?"),
    ]:
        assert accepted(reply, [before, last]) == reply


def test_whatever_fails_in_a_model_falls_back_on_the_rules_and_stays_out_of_the_log(caplog) -> None:
    def fails(read: str, turn: int) -> str:
        raise RuntimeError("no memory for: " + read)

    asked = ["What causes gout?", "And how is it treated?"]
    policy = ScriptedPolicy(byte_level(), fails)
    assert asyncio.run(ModelRewriter()(asked, policy)) == "How is gout treated?"
    assert "RuntimeError" in caplog.text
    assert "gout" not in caplog.text


def test_one_rewriter_serves_several_event_loops() -> None:
    rewriter, policy = ModelRewriter(), ScriptedPolicy(byte_level(), lambda read, turn: WHOLE)

    async def many() -> list[str]:
        return await asyncio.gather(*(rewriter(GOUT, policy) for _ in range(20)))

    assert [asyncio.run(many()) for _ in range(2)] == [[WHOLE] * 20] * 2


def test_a_first_question_asks_no_model() -> None:
    def never(read: str, turn: int) -> str:
        raise AssertionError(read)

    policy = ScriptedPolicy(byte_level(), never)
    assert asyncio.run(ModelRewriter()(["How is it treated?"], policy)) == "How is it treated?"


def test_the_model_reads_the_questions_in_its_template_without_their_marks() -> None:
    tokenizer = byte_level()
    tokenizer.chat_template = TEMPLATE
    text = str(tokenizer.decode(prompt(tokenizer, ["What causes gout?", "</search> And its cause?"])))
    assert text.startswith("<u>Below are")
    assert text.endswith("Rewritten question:</u><a>")
    assert "Question 1: What causes gout?\nLast question: " in text
    assert "</search>" not in text


class Silent(ScriptedPolicy):
    """Never replies, and counts what was closed."""

    closed = 0

    def open(self, *, seed: int, temperature: float, blocks: tuple[Block, ...]) -> Any:
        session = super().open(seed=seed, temperature=temperature, blocks=blocks)

        async def sample(*, max_tokens: int) -> SampledTurn:
            await asyncio.Event().wait()
            raise AssertionError

        def close() -> None:
            self.closed += 1

        session.sample, session.close = sample, close  # type: ignore[method-assign]
        return session


def test_a_late_model_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    silent = Silent(byte_level(), lambda read, turn: "")
    found = asyncio.run(ModelRewriter(silent, timeout_s=0.05)(["What causes gout?", "And how is it treated?"], silent))
    assert (found, silent.closed) == ("How is gout treated?", 1)
    assert "not replied within 0.05 s" in caplog.text


@pytest.fixture
def endpoint() -> Iterator[ChatServer]:
    with chat_server(WHOLE) as server:
        yield server


def test_an_endpoint_rewrites_and_where_it_fails_rules_do(
    endpoint: ChatServer, caplog: pytest.LogCaptureFixture
) -> None:
    own = ScriptedPolicy(byte_level(), lambda read, turn: "never asked")
    rewriter = rewriter_of(endpoint.url, model="m", policy=own)
    assert asyncio.run(rewriter(GOUT, own)) == WHOLE
    (asked,) = endpoint.asked
    assert (asked["model"], asked["temperature"]) == ("m", 0.0)
    assert asked["messages"][0]["content"].endswith(f"Last question: {GOUT[1]}\n\nRewritten question:")
    endpoint.status = 401
    assert asyncio.run(rewriter(["What causes gout?", "And how is it treated?"], own)) == "How is gout treated?"
    assert "completed by rules" in caplog.text
    assert "status 401" in caplog.text
    caplog.clear()
    endpoint.error = f"too long: {GOUT[1]}"
    asyncio.run(rewriter(GOUT, own))
    assert "completed by rules" in caplog.text
    assert "woman" not in caplog.text


def test_settings_that_cannot_be_are_refused() -> None:
    for name, model, wanted in [
        ("rules", "m", "together"),
        ("http://127.0.0.1:1/v1", "", "together"),
        ("model", "", "rules, agent or the address"),
        ("agent", "", "no chat template"),
    ]:
        with pytest.raises(ConfigError, match=wanted):
            rewriter_of(name, model=model, policy=ScriptedPolicy(byte_level(), lambda read, turn: ""))


def test_a_template_that_takes_no_lone_message_is_refused_at_once() -> None:
    tokenizer = byte_level()
    tokenizer.chat_template = "{{ raise_exception('no') }}"
    with pytest.raises(ConfigError, match="refuses a lone message"):
        rewriter_of("agent", model="", policy=ScriptedPolicy(tokenizer, lambda read, turn: ""))


def test_an_agent_with_a_chat_template_rewrites_by_itself() -> None:
    tokenizer = byte_level()
    tokenizer.chat_template = TEMPLATE
    policy = ScriptedPolicy(tokenizer, lambda read, turn: WHOLE)
    assert asyncio.run(rewriter_of("agent", model="", policy=policy)(GOUT, policy)) == WHOLE
