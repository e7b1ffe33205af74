"""Samplers say which experts they chose, token by token: the in-process one, and what a vLLM server returns."""

from __future__ import annotations

import asyncio
import base64
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from medagent.errors import ConfigError, PolicyError
from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.models.causal_lm import load_causal_lm
from medagent.policies.batch import LEAST_COMMON
from medagent.policies.completions import CompletionPolicy
from medagent.policies.huggingface import HFPolicy
from medagent.routing import Routers
from medagent.routing_record import RoutingShape
from tests.medagent.policies.support import FakeSource
from tests.mixtures import FAMILIES, dialogues, make_mixture

QUESTIONS = StarterBenchmark("train", limit_per_kind=1).questions()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_record_has_what_a_plain_pass_chooses(family: str, tmp_path: Path) -> None:
    make_mixture(tmp_path, family, experts=8, layers=3)
    model, tokenizer = load_causal_lm(str(tmp_path))
    policy = HFPolicy(model, tokenizer, record_routing=True)
    found = dialogues(policy, QUESTIONS, opening=range(30, 30 + LEAST_COMMON))  # which are read by themselves
    assert len({len(rollout.token_ids) for rollout in found}) > 1, "rows end at different places"
    routers = Routers(model)
    for rollout in found:
        record = rollout.routing
        assert record is not None
        assert len(record) == len(rollout.token_ids) - 1, "the last token is not read"
        with routers.recorded() as recording, torch.no_grad():
            model(input_ids=torch.tensor([rollout.token_ids[:-1]]))
        # In float32 two right computations choose alike, but for ties.
        same = np.sort(record.experts, axis=-1) == np.sort(recording.experts.numpy(), axis=-1)
        assert same.mean() > 0.999


def test_nothing_is_recorded_unless_asked_for(tmp_path: Path, starter) -> None:
    make_mixture(tmp_path, "mixtral", experts=8, layers=1)
    (rollout, *_) = dialogues(HFPolicy(*load_causal_lm(str(tmp_path))), QUESTIONS)
    assert rollout.routing is None
    with pytest.raises(ConfigError, match="wanted a mixture of experts"):
        HFPolicy(*starter, record_routing=True)


@dataclass
class Server(FakeSource):
    """Answers with two tokens more than the turn keeps, and with experts that tell their token's place."""

    tokens: tuple[int, ...] = (20, 21, 22)
    missing: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)

    async def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        self.bodies.append(body)
        last = len(body["prompt"]) + len(self.tokens) - 1 - self.missing
        places = np.arange(body["routed_experts_prompt_start"], last, dtype=np.uint8)
        rows = np.broadcast_to(places[:, None, None], (len(places), 3, 2))
        with io.BytesIO() as file:
            np.save(file, rows + np.arange(3, dtype=np.uint8)[:, None] * 100)
            sent = base64.b64encode(file.getvalue()).decode()
        return {
            "token_ids": list(self.tokens),
            "logprobs": {"token_logprobs": [-1.0] * len(self.tokens)},
            "finish_reason": "stop",
            "routed_experts": sent,
        }


SHAPE = RoutingShape((0, 2), "uint8")


def test_a_servers_record_follows_the_turns(tokenizer) -> None:
    server = Server()
    session = CompletionPolicy([server], "m", tokenizer, end_ids=(21,), routing=SHAPE).open(
        seed=0, temperature=1.0, blocks=()
    )

    async def talk():
        session.append([1, 2, 3])
        first = await session.sample(max_tokens=8)
        session.append([7])
        return first, await session.sample(max_tokens=8)

    first, second = asyncio.run(talk())
    assert first.token_ids == (20, 21), "what follows an end is dropped"
    assert [body["routed_experts_prompt_start"] for body in server.bodies] == [0, 4]
    assert first.routing.experts[:, 0, 0].tolist() == [0, 1, 2, 3], "the prompt and the first sampled token"
    assert second.routing.experts[:, 0, 0].tolist() == [4, 5, 6], "the end, the observation, and one sampled token"
    assert first.routing.experts[:, 1, 1].tolist() == [200, 201, 202, 203], "dense layers have no row"


@pytest.mark.parametrize(("missing", "dropped"), [(1, False), (0, True)])
def test_a_server_that_returns_other_experts_is_refused(missing: int, dropped: bool, tokenizer) -> None:
    server = Server(missing=missing)
    if dropped:
        complete = server.complete

        async def without(body):
            return {**await complete(body), "routed_experts": None}

        server.complete = without
    session = CompletionPolicy([server], "m", tokenizer, routing=SHAPE).open(seed=0, temperature=1.0, blocks=())
    session.append([1, 2, 3])
    with pytest.raises(PolicyError, match=r"server: its experts cannot be read .*--enable-return-routed-experts"):
        asyncio.run(session.sample(max_tokens=8))
