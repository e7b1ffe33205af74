"""Scores and log-probs that are not numbers are errors that name the dialogue, never tokens."""

from __future__ import annotations

import asyncio
import math

import pytest
import torch

from medagent.errors import PolicyError
from medagent.models.base_models import STARTER
from medagent.models.causal_lm import load_causal_lm, project
from medagent.policies import batch
from medagent.policies.completions import CompletionPolicy
from medagent.policies.huggingface import HFPolicy
from medagent.policy import SampledTurn
from tests.medagent.policies.support import TAGS, FakeSource, one_turn, word_tokenizer

PROMPT = list(range(20, 40))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_weights_that_are_not_numbers_are_named_at_the_first_token(temperature: float) -> None:
    model, tokenizer = load_causal_lm(STARTER)
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight[0, 0] = math.nan
    policy = HFPolicy(model, tokenizer)
    with pytest.raises(PolicyError, match="seed 7, turn 1, token 0: the model's scores hold no distribution"):
        one_turn(policy, PROMPT, seed=7, temperature=temperature)


@pytest.mark.parametrize("lockstep", [True, False])
@pytest.mark.parametrize("bad", ["nan", "plus", "all minus"])
def test_one_bad_row_fails_alone(starter, monkeypatch, bad: str, lockstep: bool) -> None:
    model, tokenizer = starter
    policy = HFPolicy(model, tokenizer, lockstep=lockstep)
    spoilt = False

    def spoiling(model, hidden):
        nonlocal spoilt
        scores = project(model, hidden)
        scores[:, 5] = -math.inf  # a masked entry is legitimate
        if len(scores) == 3 and not spoilt:
            spoilt, row = True, scores[1]
            row[slice(None) if bad == "all minus" else 3] = {"nan": math.nan, "plus": math.inf}.get(bad, -math.inf)
        return scores

    async def run() -> list[SampledTurn | BaseException]:
        sessions = [policy.open(seed=seed, temperature=1.0, blocks=()) for seed in range(3)]
        for session in sessions:
            session.append(list(PROMPT))
        turns = await asyncio.gather(*(s.sample(max_tokens=24) for s in sessions), return_exceptions=True)
        again = next(session for session, turn in zip(sessions, turns, strict=True) if isinstance(turn, PolicyError))
        again.append([3])
        with pytest.raises(PolicyError, match="an earlier turn of this dialogue failed"):
            await again.sample(max_tokens=2)
        for session in sessions:
            session.close()
        return turns

    monkeypatch.setattr(batch, "project", spoiling)
    turns = asyncio.run(run())
    assert [isinstance(turn, PolicyError) for turn in turns].count(True) == 1
    for seed, turn in enumerate(turns):
        if isinstance(turn, PolicyError):
            assert f"seed {seed}, turn 1" in str(turn)
            continue
        assert isinstance(turn, SampledTurn)
        assert len(turn.token_ids) == 24 or turn.token_ids[-1] in policy.end_ids
        assert 5 not in turn.token_ids
        assert all(math.isfinite(value) for value in turn.logprobs)


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf, "-0.5"])
def test_log_probs_of_an_endpoint_must_be_numbers(value) -> None:
    tokenizer = word_tokenizer("a", "b")

    class Bad(FakeSource):
        name = "server 3"

        async def complete(self, body):
            return {"token_ids": [2, 3], "logprobs": {"token_logprobs": [-0.5, value]}, "finish_reason": "stop"}

    with pytest.raises(PolicyError, match="server 3: found the log-prob .* at token 1 of turn 1"):
        one_turn(CompletionPolicy([Bad()], "base", tokenizer), [2], blocks=TAGS)
