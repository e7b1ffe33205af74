"""One rule of where a turn ends, whoever samples it: a table of stops."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import pytest

from medagent.errors import PolicyError
from medagent.pieces import Block
from medagent.policies import batch
from medagent.policies.chat_endpoint import ChatReply, RemotePolicy, byte_tokenizer
from medagent.policies.completions import CompletionPolicy
from medagent.policies.huggingface import HFPolicy
from medagent.policies.scripted import ScriptedPolicy
from medagent.policies.turn_ends import end_token_ids, stored_end_token_ids
from medagent.policy import TurnStop
from tests.medagent.policies.support import SMALL, TAGS, FakeSource, forced, one_turn, tiny_model, word_tokenizer

WORDS = word_tokenizer(
    "<other>", "<", "</", "search", "answer", ">", "q", "><", ">.", ">\n", " ", "\n", "></answer>", "</search>"
)
LONG = "</a very long end of a search, which takes many tokens>"


@dataclass(frozen=True)
class Stop:
    """Tokens that a model goes on with, and the turn that they are."""

    tokens: list[str]
    count: int
    stop: TurnStop
    text: str
    max_tokens: int = 64
    ends: tuple[str, ...] = ("</search>", "</answer>")
    bytewise: bool = False


def query(*last: str) -> list[str]:
    return ["<", "search", ">", "q", "</", "search", *last, "q", "q"]


TAG, END, LENGTH = TurnStop.TAG, TurnStop.END_OF_TEXT, TurnStop.LENGTH
WHOLE = "<search>q</search>"
TABLE = {
    "an end tag": Stop(query(">"), 7, TAG, WHOLE),
    "white space in the last token": Stop(query(">\n"), 7, TAG, WHOLE),
    "another tag's beginning in the last token": Stop(query("><"), 7, TAG, WHOLE),
    "a full stop in the last token": Stop(query(">."), 7, TAG, WHOLE),
    "two ends in one token": Stop(query("></answer>"), 7, TAG, WHOLE),
    "an end tag as one token": Stop(["<", "search", ">", "q", "</search>", "q"], 5, TAG, WHOLE),
    "an end tag and then white space": Stop(query(">", "\n"), 7, TAG, WHOLE),
    "no end tag yet": Stop(["</", "search", "q", ">", "<end>", "q"], 5, END, "</searchq>"),
    "the tokenizer's end": Stop(["q", "<end>", "q"], 2, END, "q"),
    "another end of the model": Stop(["q", "q", "<other>", "q"], 3, END, "qq"),
    "the end at once": Stop(["<end>", "q"], 1, END, ""),
    "the limit": Stop(["q", "q", "q"], 2, LENGTH, "qq", max_tokens=2),
    "a tag at the limit": Stop(query("><"), 7, TAG, WHOLE, max_tokens=7),
    "the model's end at the limit": Stop(["q", "<end>", "q"], 2, END, "q", max_tokens=2),
    "a tag that is the model's end": Stop(["q", "<end>", "q"], 2, TAG, "q<end>", ends=("<end>",)),
    "an end that is white space": Stop(["q", " ", "\n", "q"], 3, TAG, "q \n", ends=("\n",)),
    "an end longer than sixteen tokens": Stop([*"x", *LONG, *"y"], 1 + len(LONG), TAG, "x" + LONG, 99, (LONG,), True),
    "an end of split characters": Stop([*"x】。y"], 7, TAG, "x】。", ends=("】。",), bytewise=True),
    "a prefix of split characters": Stop([*"x】。y"], 4, TAG, "x】", ends=("】",), bytewise=True),
}


def setting(case: Stop) -> tuple[Any, list[int], tuple[Block, ...]]:
    tokenizer = byte_tokenizer() if case.bytewise else WORDS
    if case.bytewise:
        ids = tokenizer("".join(case.tokens), add_special_tokens=False)["input_ids"]
        tokenizer.pad_token_id = 0
    else:
        ids = tokenizer.convert_tokens_to_ids(case.tokens)
    return tokenizer, ids, tuple(Block("<x>", end) for end in case.ends)


def model_of(tokenizer):
    model = tiny_model("llama", len(tokenizer), **{**SMALL, "eos_token_id": None})
    model.generation_config.eos_token_id = [1, 2] if tokenizer is WORDS else None
    return model


class Saying(FakeSource):
    """A completion server that knows no stop, and says all it is given up to the limit."""

    def __init__(self, ids: list[int], *, reason: str = "length", logprobs: list[Any] | None = None) -> None:
        self.ids, self.reason, self.logprobs, self.bodies = ids, reason, logprobs, []

    async def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        self.bodies.append({**body, "prompt": list(body["prompt"])})
        ids = self.ids[: body["max_tokens"]]
        values = self.logprobs or [-0.5] * len(ids)
        return {"token_ids": ids, "logprobs": {"token_logprobs": values}, "finish_reason": self.reason}


@pytest.mark.parametrize("name", TABLE)
def test_in_process_and_through_completions_a_turn_ends_at_the_same_token(name: str, monkeypatch) -> None:
    case = TABLE[name]
    tokenizer, ids, blocks = setting(case)
    model = model_of(tokenizer)
    here = HFPolicy(model, tokenizer)
    monkeypatch.setattr(batch, "project", forced(tokenizer, len(tokenizer), ids))
    wanted = (tuple(ids[: case.count]), case.stop, case.text)
    found = one_turn(here, [3, 4], max_tokens=case.max_tokens, blocks=blocks)
    assert (found.token_ids, found.stop, found.text) == wanted
    assert len(found.logprobs) == case.count, "the token that ends a turn is an action"
    for said in (ids, ids[: case.count]):  # a server that goes on, and one that stops as vLLM does
        source = Saying(said, reason="stop" if said is not ids and case.stop is not LENGTH else "length")
        there = CompletionPolicy([source], "base", tokenizer, end_ids=end_token_ids(tokenizer, model))
        found = one_turn(there, [3, 4], max_tokens=case.max_tokens, blocks=blocks)
        assert (found.token_ids, found.stop, found.text) == wanted
        assert len(found.logprobs) == case.count


def test_a_tag_at_the_limit_of_a_script_is_a_tag() -> None:
    policy = ScriptedPolicy(byte_tokenizer(), lambda read, turn: WHOLE + "\n")
    for room, stop in ((len(WHOLE), TAG), (len(WHOLE) - 1, LENGTH), (99, TAG)):
        found = one_turn(policy, [3, 4], max_tokens=room)
        assert (found.text, found.stop) == (WHOLE[:room], stop)
    silent = one_turn(ScriptedPolicy(byte_tokenizer(), lambda read, turn: ""), [3, 4])
    assert (silent.token_ids, silent.text, silent.stop) == ((), "", END)


@pytest.mark.parametrize(
    ("said", "reason", "text", "stop"),
    [
        ("<search>q", "stop", WHOLE, TAG),
        (WHOLE, "stop", WHOLE, TAG),
        (WHOLE + " \n", "stop", WHOLE, TAG),
        (WHOLE + ". So", "stop", WHOLE, TAG),
        (WHOLE + "<answer>B", "stop", WHOLE, TAG),
        (WHOLE, "length", WHOLE, TAG),
        ("<search>q", "length", "<search>q", LENGTH),
        ("no idea", "stop", "no idea", END),
    ],
)
def test_a_chat_endpoint_ends_by_the_same_rule(said: str, reason: str, text: str, stop: TurnStop) -> None:
    policy = RemotePolicy("http://nowhere", "model")

    async def complete(body: dict[str, Any]) -> ChatReply:
        return ChatReply(said, "", TurnStop.LENGTH if reason == "length" else TurnStop.END_OF_TEXT)

    policy.complete = complete
    found = one_turn(policy, [3, 4], blocks=TAGS)
    assert (found.text, found.stop) == (text, stop)


def test_a_server_that_stops_for_a_reason_of_its_own_is_believed() -> None:
    ids = WORDS.convert_tokens_to_ids(["q", "q"])
    for reason, stop in (("stop", END), ("length", LENGTH)):
        found = one_turn(CompletionPolicy([Saying(ids, reason=reason)], "base", WORDS), [3], max_tokens=9)
        assert (found.token_ids, found.text, found.stop) == (tuple(ids), "qq", stop)


def test_the_next_turn_goes_on_after_the_token_that_ended_the_last(monkeypatch) -> None:
    """Tokens that a server wrote beyond the end are no part of the dialogue."""
    ids = WORDS.convert_tokens_to_ids(query("><"))
    source = Saying(ids)
    policy = CompletionPolicy([source], "base", WORDS)

    async def two() -> None:
        session = policy.open(seed=0, temperature=1.0, blocks=TAGS)
        for _ in range(2):
            session.append([3, 4])
            await session.sample(max_tokens=9)
        session.close()

    asyncio.run(two())
    assert source.bodies[1]["prompt"] == [3, 4, *ids[:7], 3, 4]


def test_all_end_ids_of_a_model_are_known_and_sent(tmp_path) -> None:
    model = model_of(WORDS)
    model.config.eos_token_id = 5
    assert end_token_ids(WORDS) == (1,)
    assert end_token_ids(WORDS, model) == (1, 2, 5)
    model.generation_config.eos_token_id = [2, len(WORDS) + 7]
    assert end_token_ids(WORDS, model) == (1, 2, 5), "an id that no text has is none"
    model.generation_config.eos_token_id = [1, 2]
    model.save_pretrained(tmp_path)
    assert stored_end_token_ids(WORDS, str(tmp_path)) == (1, 2, 5)
    (tmp_path / "generation_config.json").unlink()
    assert stored_end_token_ids(WORDS, str(tmp_path)) == (1, 5)
    source = Saying([6, 7])
    one_turn(CompletionPolicy([source], "base", WORDS, end_ids=(1, 2, 5)), [3])
    assert source.bodies[0]["stop_token_ids"] == [1, 2, 5]
    assert source.bodies[0]["stop"] == ["</search>", "</answer>"]
    one_turn(CompletionPolicy([source], "base", WORDS), [3])
    assert source.bodies[1]["stop_token_ids"] == [1], "the tokenizer's, where no others are given"


def test_a_wrapper_ends_where_its_decoder_does(tmp_path) -> None:
    settings = {**SMALL, "num_hidden_layers": 2, "eos_token_id": 5}
    picture = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = tiny_model("gemma3", len(WORDS), text_config=settings, vision_config=picture)
    model.config.eos_token_id, model.generation_config.eos_token_id = 2, None
    assert end_token_ids(WORDS, model) == (1, 2, 5)
    model.config.save_pretrained(tmp_path)
    assert stored_end_token_ids(WORDS, str(tmp_path)) == (1, 2, 5)


def test_a_server_that_says_more_than_it_may_is_refused() -> None:
    class Endless(Saying):
        async def complete(self, body: dict[str, Any]) -> dict[str, Any]:
            return await super().complete({**body, "max_tokens": body["max_tokens"] + 1})

    policy = CompletionPolicy([Endless(WORDS.convert_tokens_to_ids(["q"] * 9))], "base", WORDS)
    with pytest.raises(PolicyError, match=r"found 5 token ids and 5 log-probs, wanted as many of each \(1 to 4\)"):
        one_turn(policy, [3], max_tokens=4)


def test_tokens_added_later_complete_ends_too() -> None:
    tokenizer = word_tokenizer("a", "b")
    policy = CompletionPolicy([Saying([2, 3])], "base", tokenizer)
    assert one_turn(policy, [2], blocks=(Block("", "b"),)).stop is TAG
    tokenizer.add_tokens(["cb"])
    found = one_turn(replace(policy, replicas=[Saying([2, 4, 3])]), [2], blocks=(Block("", "b"),))
    assert (found.token_ids, found.stop) == ((2, 4), TAG)
