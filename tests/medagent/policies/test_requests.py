"""The requests to samplers: temperature and seed of each dialogue and turn, and its greatest length."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from medagent.agent import Agent, Job
from medagent.policies.chat_endpoint import ChatReply, RemotePolicy, byte_tokenizer
from medagent.policies.completions import CompletionPolicy
from medagent.policies.huggingface import HFPolicy
from medagent.policy import TurnStop
from medagent.protocol import TagProtocol
from medagent.retrieval.passages import Hit, Passage
from medagent.types import Limits, Question, rollout_seed
from tests.medagent.policies.support import FakeSource
from tests.recording import RecordingPolicy

BLOCKS = TagProtocol().blocks
SEEDS = [rollout_seed(0, iteration=i, question_id=q, sample=s) for i in range(2) for q in "ab" for s in range(2)]


class OnePassage:
    def search(self, queries, *, top_k):
        return [[Hit(Passage("p", "gout", "Allopurinol."), 1.0)] for _ in queries]


class RecordedCompletions(FakeSource):
    """Searches in a dialogue's first turn and answers in its second; keeps every body."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    async def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        self.bodies.append({**body, "prompt": list(body["prompt"])})
        tokenizer = byte_tokenizer()
        searched = "</search>" in str(tokenizer.decode(body["prompt"]))
        text = "<answer>(A) [1]</answer>" if searched else "<search>gout</search>"
        ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
        return {"token_ids": ids, "logprobs": {"token_logprobs": [-0.25] * len(ids)}, "finish_reason": "stop"}


class RecordedChat(RemotePolicy):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.bodies: list[dict[str, Any]] = []

    async def complete(self, body: dict[str, Any]) -> ChatReply:
        self.bodies.append({**body, "messages": list(body["messages"])})
        text = "<answer>(A) [1]" if len(body["messages"]) > 1 else "<search>gout"
        return ChatReply(text, "", TurnStop.END_OF_TEXT)


def ask(policy, temperature: float) -> None:
    jobs = [Job(Question(f"q{n}", f"number {n}"), seed=seed, temperature=temperature) for n, seed in enumerate(SEEDS)]
    limits = Limits(3, 1_000, 1_000, 10_000)
    rollouts = Agent(policy, OnePassage(), TagProtocol(instructions=""), limits, top_k=1).run_all(jobs)
    assert [rollout.answer for rollout in rollouts] == ["(A) [1]"] * len(jobs)
    assert [len(rollout.turns) for rollout in rollouts] == [2] * len(jobs)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
def test_each_request_of_a_completion_carries_temperature_and_a_seed_of_its_own(temperature: float) -> None:
    source = RecordedCompletions()
    ask(CompletionPolicy([source], "m", byte_tokenizer(), end_ids=(1, 300)), temperature)
    for body in source.bodies:
        assert {name: value for name, value in body.items() if name not in ("prompt", "seed", "session_id")} == {
            "model": "m",
            "temperature": temperature,
            "max_tokens": 1_000,
            "stop": ["</search>", "</answer>"],
            "stop_token_ids": [1, 300],
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            "return_token_ids": True,
            "logprobs": 0,
            # Whatever the server's own defaults are, nothing reshapes the distribution.
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
        }
    by_dialogue: dict[str, list[int]] = {}
    for body in source.bodies:
        by_dialogue.setdefault(body["session_id"], []).append(body["seed"])
    assert [len(seeds) for seeds in by_dialogue.values()] == [2] * len(SEEDS)
    assert len({body["seed"] for body in source.bodies}) == 2 * len(SEEDS), "every turn of every dialogue"
    again = RecordedCompletions()
    ask(CompletionPolicy([again], "m", byte_tokenizer()), temperature)
    assert sorted(body["seed"] for body in again.bodies) == sorted(body["seed"] for body in source.bodies)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
def test_each_request_of_a_chat_carries_temperature_and_its_dialogues_seed(temperature: float) -> None:
    policy = RecordedChat("http://127.0.0.1:9/v1", "m")
    ask(policy, temperature)
    for body in policy.bodies:
        kept = {name: value for name, value in body.items() if name not in ("messages", "seed")}
        assert kept == {
            "model": "m",
            "temperature": temperature,
            "max_tokens": 1_000,
            "stop": ["</search>", "</answer>"],
        }
    assert sorted({body["seed"] for body in policy.bodies}) == sorted({seed % 2**31 for seed in SEEDS})
    assert len({body["seed"] for body in policy.bodies}) == len(SEEDS)


def test_the_loop_opens_each_dialogue_as_its_job_says() -> None:
    policy = RecordingPolicy(lambda read, turn: "<answer>(A)</answer>")
    agent = Agent(policy, OnePassage(), TagProtocol(instructions=""))
    jobs = [Job(Question(f"q{n}", "?"), seed=100 + n, temperature=n / 4) for n in range(4)]
    agent.run_all(jobs)
    agent.stream(jobs, max_open=1, on_done=lambda job, rollout: None)
    asyncio.run(agent.run(jobs[3]))
    wanted = [(job.seed, job.temperature) for job in (*jobs, *jobs, jobs[3])]
    assert [(dialogue.seed, dialogue.temperature) for dialogue in policy.dialogues] == wanted


VOCABULARY = 64


@pytest.fixture(scope="module")
def flat() -> HFPolicy:
    """A model that finds every token equally likely: what it samples shows the draws themselves."""
    words = {f"w{number}": number for number in range(VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")), pad_token="w0", eos_token="w1"
    )
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        eos_token_id=1,
        bos_token_id=None,
    )
    model = Qwen2ForCausalLM(config).eval()
    with torch.no_grad():
        model.get_output_embeddings().weight.zero_()
    return HFPolicy(model, tokenizer, lockstep=False)


async def turns(policy: HFPolicy, seed: int, count: int, length: int = 6) -> list[tuple[int, ...]]:
    session = policy.open(seed=seed, temperature=1.0, blocks=BLOCKS)
    said = []
    for _ in range(count):
        session.append([5])
        said.append((await session.sample(max_tokens=length)).token_ids)
    session.close()
    return said


def test_draws_differ_by_dialogue_by_turn_and_by_place(flat: HFPolicy) -> None:
    said = {seed: asyncio.run(turns(flat, seed, 3)) for seed in range(6)}
    starts = [turn[:2] for dialogue in said.values() for turn in dialogue]
    assert len(set(starts)) > len(starts) - 2, "two of 64 tokens agree once in 4096 by chance"
    assert len({token for dialogue in said.values() for turn in dialogue for token in turn}) > VOCABULARY / 2
    assert all(len(set(turn)) > 1 for dialogue in said.values() for turn in dialogue if len(turn) > 2)
    assert asyncio.run(turns(flat, 3, 3)) == said[3]
