"""A Hugging Face replica behind completions ends turns where the in-process policy does, and at the ids it is sent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from medagent.errors import PolicyError
from medagent.policies import batch
from medagent.policies.completions import CompletionPolicy
from medagent.policies.ray_replica import RayReplica, ReplicaSettings
from medagent.policy import SampledTurn, TurnStop
from tests.medagent.policies.support import SMALL, TAGS, forced, one_turn, tiny_model, word_tokenizer

WORDS = word_tokenizer("<other>", "<", "</", "search", ">", "q", "><", ">.", ">\n")


class Source:
    """The replica as a source of completions, without Ray."""

    name = "replica"

    def __init__(self, folder: Path) -> None:
        settings = ReplicaSettings("huggingface", str(folder), "float32", 64)
        self.replica = RayReplica(settings)

    async def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        return await self.replica.complete(-1, body)

    def forget(self, dialogue: str) -> None:
        asyncio.get_running_loop().create_task(self.replica.forget(dialogue))

    async def disconnect(self) -> None:
        pass


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Source:
    folder = tmp_path_factory.mktemp("replica")
    tiny_model("llama", len(WORDS), **SMALL).save_pretrained(folder)
    WORDS.save_pretrained(folder)
    return Source(folder)


def said(source: Source, monkeypatch, words: list[str], **settings: Any) -> SampledTurn:
    ids = WORDS.convert_tokens_to_ids(words)
    monkeypatch.setattr(batch, "project", forced(WORDS, len(WORDS), ids))
    policy = CompletionPolicy([source], "base", WORDS, **settings)
    return one_turn(policy, [3, 4], max_tokens=12, blocks=TAGS)


@pytest.mark.parametrize("last", [">", "><", ">.", ">\n"])
def test_an_end_tag_inside_a_token_ends_a_turn(source: Source, monkeypatch, last: str) -> None:
    turn = said(source, monkeypatch, ["<", "search", ">", "q", "</", "search", last, "q"])
    assert (turn.text, turn.stop, len(turn.token_ids)) == ("<search>q</search>", TurnStop.TAG, 7)


def test_the_ids_that_it_is_sent_end_a_turn(source: Source, monkeypatch) -> None:
    turn = said(source, monkeypatch, ["q", "<other>", "q"], end_ids=(1, 2))
    assert (turn.text, turn.stop, len(turn.logprobs)) == ("q", TurnStop.END_OF_TEXT, 2)
    turn = said(source, monkeypatch, ["q", "<other>", "q", "<end>", "q"], end_ids=(1,))
    assert (turn.text, turn.stop) == ("q<other>q", TurnStop.END_OF_TEXT)


def test_scores_that_are_not_numbers_reach_the_caller(source: Source, monkeypatch) -> None:
    def broken(model, hidden):
        return hidden[..., :1].expand(*hidden.shape[:-1], len(WORDS)) * float("nan")

    monkeypatch.setattr(batch, "project", broken)
    with pytest.raises(PolicyError, match="hold no distribution"):
        one_turn(CompletionPolicy([source], "base", WORDS), [3, 4])
