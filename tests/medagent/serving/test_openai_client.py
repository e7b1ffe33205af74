"""The `openai` client, as its users have it, against a running service with the starter agent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from medagent.agent import Agent
from medagent.policies.huggingface import HFPolicy
from medagent.serving.app import make_app
from studies.starter_base.lessons import STARTER_LIMITS, STARTER_PROTOCOL, STARTER_TOP_K
from tests.medagent.serving.support import served

ASKED: Any = [{"role": "user", "content": "What is the first-line drug for gout?"}]


@pytest.fixture(scope="module")
def client(starter: Any, retriever: Any) -> Iterator[openai.OpenAI]:
    agent = Agent(HFPolicy(*starter, lockstep=False), retriever, STARTER_PROTOCOL, STARTER_LIMITS, STARTER_TOP_K)
    with (
        served(make_app(agent, name="starter")) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def test_models_completions_and_streams(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["starter"]
    whole = client.chat.completions.create(model="starter", messages=ASKED)
    assert whole.choices[0].message.content
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens > 0
    pieces = list(
        client.chat.completions.create(
            model="starter", messages=ASKED, stream=True, stream_options={"include_usage": True}
        )
    )
    said = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert said == whole.choices[0].message.content, "greedy, and so the same"
    assert pieces[-1].usage == whole.usage
    steps = [piece.model_extra["medagent"] for piece in pieces if "medagent" in (piece.model_extra or {})]
    assert steps[-1]["answer"] == whole.model_extra["medagent"]["answer"]


def test_errors_raise_the_openai_clients_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt", messages=ASKED)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="starter", messages=[])
