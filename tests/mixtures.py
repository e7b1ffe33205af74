"""Tiny random mixtures of experts, and dialogues that a policy samples with them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import (
    AutoTokenizer,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from medagent.models.base_models import STARTER, model_path
from medagent.policy import Policy
from medagent.types import Question, Rollout, StopReason, Turn
from studies.starter_base.lessons import STARTER_PROTOCOL

FAMILIES = ("qwen3_moe", "mixtral")


def make_mixture(folder: Path, family: str, *, experts: int = 128, layers: int = 10) -> PreTrainedModel:
    """A random model and the starter's tokenizer, saved into the folder.

    Many experts lie close together and matter much, so that rounding in bfloat16 sends some tokens to others. vLLM's
    CPU build wants heads and widths in multiples of 32.
    """
    tokenizer = AutoTokenizer.from_pretrained(model_path(STARTER))
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": 1024,
        "num_experts_per_tok": 2,
        "initializer_range": 0.1,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "tie_word_embeddings": False,
    }
    torch.manual_seed(0)
    model: PreTrainedModel
    if family == "qwen3_moe":
        model = Qwen3MoeForCausalLM(
            Qwen3MoeConfig(**shape, num_experts=experts, moe_intermediate_size=64, norm_topk_prob=True)
        )
    else:
        model = MixtralForCausalLM(MixtralConfig(**shape, num_local_experts=experts))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "down_proj" in name:
                parameter.mul_(5)
            if name.endswith("gate.weight"):
                parameter.mul_(0.1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model.eval()


def dialogues(
    policy: Policy,
    questions: Sequence[Question],
    *,
    samples: int = 4,
    tokens: int = 24,
    turns: int = 2,
    opening: Sequence[int] = (),
) -> list[Rollout]:
    """Rollouts of turns of at most so many tokens, with an observation between them. All prompts begin alike."""

    async def one(question: Question, sample: int) -> Rollout:
        session = policy.open(seed=sample, temperature=1.0, blocks=STARTER_PROTOCOL.blocks)
        await asyncio.sleep(0)  # all are open before the first is sampled
        prompt, found = [*opening, *STARTER_PROTOCOL.encode_prompt(policy.tokenizer, question)], []
        session.append(prompt)
        for number in range(turns):
            sampled = await session.sample(max_tokens=tokens)
            shown = tuple(range(5, 10 + sample)) if number + 1 < turns else ()
            session.append(list(shown))
            found.append(
                Turn(sampled.token_ids, sampled.logprobs, sampled.text, observation_ids=shown, routing=sampled.routing)
            )
        session.close()
        reward = float(sample % 2)
        return Rollout(question, tuple(prompt), tuple(found), StopReason.MAX_TURNS, sample=sample, reward=reward)

    async def all_of_them() -> list[Rollout]:
        try:
            return await asyncio.gather(*(one(each, sample) for each in questions for sample in range(samples)))
        finally:
            await policy.disconnect()

    return asyncio.run(all_of_them())
