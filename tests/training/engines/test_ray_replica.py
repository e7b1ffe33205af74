"""A Hugging Face replica behind completions ends turns where the in-process policy does, and at the ids it is sent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from medagent.engines.ray_replica import RayReplica, ReplicaSettings
from medagent.errors import PolicyError
from medagent.policies import batch
from medagent.policies.completions import CompletionPolicy
from medagent.policy import SampledTurn, TurnStop
from tests.medagent.policies.support import SMALL, TAGS, FakeSource, forced, one_turn, tiny_model, word_tokenizer

WORDS = word_tokenizer("<other>", "<", "</", "search", ">", "q", "><", ">.", ">\n")


class Source(FakeSource):
    """The replica as a source of completions, without Ray."""

    def __init__(self, folder: Path) -> None:
        settings = ReplicaSettings("huggingface", str(folder), "float32", 64)
        self.replica = RayReplica(settings)

    async def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        return await self.replica.complete(-1, body)

    def forget(self, dialogue: str) -> None:
        asyncio.get_running_loop().create_task(self.replica.forget(dialogue))


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


def drawn(source: Source, *, seed: int, temperature: float, dialogues: int = 1) -> list[tuple[int, ...]]:
    """The tokens of the last turn of three, of each dialogue. `seed` is the last turn's own."""

    async def one() -> tuple[int, ...]:
        session = CompletionPolicy([source], "base", WORDS).open(seed=seed, temperature=temperature, blocks=())
        session.append([3, 4])
        for _ in range(3):
            turn = await session.sample(max_tokens=6)
            session.append([5])
        return turn.token_ids

    async def run() -> list[tuple[int, ...]]:
        return [await one() for _ in range(dialogues)]

    return asyncio.run(run())


def plain_scores(source: Source) -> list[float]:
    """The log-probs of every token after [3, 4], at temperature 1."""
    return [source.replica._sampler.logprobs([3, 4, token])[-1] for token in range(len(WORDS))]


def test_temperature_0_takes_the_likeliest_token(source: Source) -> None:
    assert len({tuple(drawn(source, seed=seed, temperature=0.0)) for seed in range(6)}) == 1
    body = {"session_id": "x", "prompt": [3, 4], "stop": [], "max_tokens": 1, "temperature": 0.0, "seed": 9}
    scores = plain_scores(source)
    (token,) = asyncio.run(source.complete(body))["token_ids"]
    assert scores[token] == max(scores)


def test_a_turn_is_drawn_by_the_seed_that_is_sent(source: Source) -> None:
    first, second = drawn(source, seed=1, temperature=1.0, dialogues=2)
    assert first == second, "the same seeds draw the same tokens, whatever was drawn before"
    assert len({tuple(drawn(source, seed=seed, temperature=1.0)) for seed in range(6)}) == 6
    body = {"session_id": "y", "prompt": [3, 4], "stop": [], "max_tokens": 8, "temperature": 1.0}

    def turn(seed: int, prompt: list[int]) -> list[int]:
        return list(asyncio.run(source.complete({**body, "prompt": prompt, "seed": seed}))["token_ids"])

    opened = turn(1, [3, 4])
    follow = [turn(seed, [3, 4, *opened, 5]) for seed in (1, 2)]
    asyncio.run(source.replica.forget("y"))
    assert turn(1, [3, 4]) == opened
    assert [turn(1, [3, 4, *opened, 5]), follow[0] != follow[1]] == [follow[0], True]


def test_a_replica_that_takes_a_dialogue_over_draws_as_the_one_before(source: Source) -> None:
    def turn(dialogue: str, prompt: list[int], seed: int) -> list[int]:
        body = {"session_id": dialogue, "prompt": prompt, "stop": [], "max_tokens": 8, "temperature": 1.0, "seed": seed}
        return list(asyncio.run(source.complete(body))["token_ids"])

    for seed in range(6):
        so_far = [3, 4, *turn(f"here {seed}", [3, 4], 1), 5]
        assert turn(f"here {seed}", so_far, seed) == turn(f"there {seed}", so_far, seed)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_log_probs_are_those_at_the_sampling_temperature(source: Source, temperature: float) -> None:
    body = {"session_id": "z", "prompt": [3, 4], "stop": [], "max_tokens": 1, "temperature": temperature, "seed": 3}
    found = asyncio.run(source.complete(body))
    wanted = torch.tensor(plain_scores(source)).div(temperature).log_softmax(-1)[found["token_ids"][0]]
    assert found["logprobs"]["token_logprobs"][0] == pytest.approx(float(wanted), abs=1e-4)


def test_weights_that_came_halfway_answer_no_request(source: Source, monkeypatch) -> None:
    push, weights = source.replica.push, dict(source.replica._sampler._policy.model.state_dict())
    asyncio.run(push(3, weights, []))
    body = {"session_id": "w", "prompt": [3, 4], "stop": [], "max_tokens": 2, "temperature": 0.0, "seed": 1}
    assert "token_ids" in asyncio.run(source.replica.complete(3, body))

    def halfway(weights: object) -> None:
        raise PolicyError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(source.replica._sampler, "load", halfway)
        with pytest.raises(PolicyError, match="the disk is full"):
            asyncio.run(push(4, weights, []))
    for version in (3, 4):
        assert asyncio.run(source.replica.complete(version, body)) == {"stale": -1}
