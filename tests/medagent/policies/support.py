"""Tiny random models of any family, and dialogues with them."""

from __future__ import annotations

import asyncio
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from medagent.pieces import Block
from medagent.policies.huggingface import HFPolicy
from medagent.policy import Policy, SampledTurn
from medagent.protocol import TagProtocol

TAGS = TagProtocol().blocks
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}


class FakeSource:
    """The rest of a source of completions: nothing is connected."""

    name, dialogues, resting_until = "server", 0, 0.0

    @property
    def endpoint(self) -> FakeSource:
        """Itself, to be disconnected."""
        return self

    async def disconnect(self) -> None:
        """Nothing to do."""


def tiny_model(family: str, vocab_size: int, *, attention: str = "sdpa", **settings: Any) -> PreTrainedModel:
    """A random model of a family. A wrapper's decoder has its settings under `text_config`."""
    torch.manual_seed(0)
    if "text_config" in settings:
        settings["text_config"] = {**settings["text_config"], "vocab_size": vocab_size}
    else:
        settings["vocab_size"] = vocab_size
    config = AutoConfig.for_model(family, **settings)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()


def word_tokenizer(*words: str) -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are these words, after a padding and an end token."""
    ids = {word: number for number, word in enumerate(["<pad>", "<end>", *words])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<pad>"))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>")


def one_turn(
    policy: Policy,
    prompt: list[int],
    *,
    max_tokens: int = 8,
    blocks: tuple[Block, ...] = TAGS,
    temperature: float = 1.0,
    seed: int = 0,
) -> SampledTurn:
    """The first turn of a dialogue."""

    async def run() -> SampledTurn:
        session = policy.open(seed=seed, temperature=temperature, blocks=blocks)
        session.append(list(prompt))
        try:
            return await session.sample(max_tokens=max_tokens)
        finally:
            session.close()

    return asyncio.run(run())


def two_dialogues(policy: HFPolicy) -> list[tuple[list[int], list[int], list[float]]]:
    """Two dialogues of two turns, sampled together: their texts, the places of sampled tokens and their log-probs."""

    async def run() -> list[tuple[list[int], list[int], list[float]]]:
        sessions = [policy.open(seed=seed, temperature=1.0, blocks=()) for seed in range(2)]
        texts, places = [list(range(20, 60)), list(range(30, 47))], [[], []]
        logprobs: list[list[float]] = [[], []]
        for session, text in zip(sessions, texts, strict=True):
            session.append(list(text))
        for _ in range(2):
            turns = await asyncio.gather(*(s.sample(max_tokens=6 + 3 * i) for i, s in enumerate(sessions)))
            for index, turn in enumerate(turns):
                places[index] += range(len(texts[index]), len(texts[index]) + len(turn.token_ids))
                logprobs[index] += turn.logprobs
                observation = list(range(60, 63 + 4 * index))
                sessions[index].append(observation)
                texts[index] += [*turn.token_ids, *observation]
        for session in sessions:
            session.close()
        return list(zip(texts, places, logprobs, strict=True))

    return asyncio.run(run())


@torch.no_grad()
def furthest_from_plain(model: PreTrainedModel, dialogues: list[tuple[list[int], list[int], list[float]]]) -> float:
    """The largest distance of sampled log-probs from those of one plain pass of the whole model, in nats."""
    furthest = 0.0
    for text, places, logprobs in dialogues:
        scores = model(input_ids=torch.tensor([text])).logits[0].float().log_softmax(-1)
        plain = torch.tensor([float(scores[place - 1, text[place]]) for place in places])
        furthest = max(furthest, float((plain - torch.tensor(logprobs)).abs().max()))
    return furthest


def forced(tokenizer: PreTrainedTokenizerBase, vocab_size: int, tokens: list[int]) -> Any:
    """A replacement of `project` whose scores make these tokens certain, one after the other."""
    waiting = list(tokens)

    def project(model: PreTrainedModel, hidden: torch.Tensor) -> torch.Tensor:
        scores = torch.zeros(*hidden.shape[:-1], vocab_size)
        scores[..., waiting.pop(0)] = 50.0
        return scores

    return project
