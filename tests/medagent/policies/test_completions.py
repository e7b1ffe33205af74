"""A policy behind completion endpoints samples what the in-process one does, and outlives the loss of an endpoint."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from medagent.agent import Agent, Job
from medagent.errors import PolicyError
from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.policies.completions import CompletionPolicy, HttpCompletions
from medagent.policies.http_endpoint import Endpoint
from medagent.policies.huggingface import HFPolicy
from studies.starter_base.lessons import STARTER_LIMITS, STARTER_PROTOCOL, STARTER_TOP_K
from tests.fake_vllm import FakeVllm

QUESTIONS = StarterBenchmark("train", limit_per_kind=3).questions()
JOBS = [Job(question, temperature=0.0, force_search=True) for question in QUESTIONS]


@pytest.fixture(scope="module")
def servers() -> Iterator[list[FakeVllm]]:
    made = [FakeVllm(), FakeVllm()]
    yield made
    for server in made:
        server.close()


def policy(servers: list[FakeVllm], **settings) -> CompletionPolicy:
    endpoints = [Endpoint(f"{server.url}/v1", retries=1, backoff_s=0.01) for server in servers]
    sources = [HttpCompletions(endpoint) for endpoint in endpoints]
    return CompletionPolicy(sources, "base", servers[0].tokenizer, **settings)


def agent(of, retriever) -> Agent:
    return Agent(of, retriever, STARTER_PROTOCOL, STARTER_LIMITS, STARTER_TOP_K)


def test_it_samples_what_the_model_does(servers, starter, retriever) -> None:
    wanted = agent(HFPolicy(*starter), retriever).run_all(JOBS)
    remote = policy(servers)
    found = agent(remote, retriever).run_all(JOBS)
    assert [rollout.token_ids for rollout in found] == [rollout.token_ids for rollout in wanted]
    assert [rollout.stop_reason for rollout in found] == [rollout.stop_reason for rollout in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert one.rollout_logprobs == pytest.approx(other.rollout_logprobs, abs=1e-4)
    body = servers[0].bodies[-1]
    assert all(isinstance(token, int) for token in body["prompt"]), "no text travels"
    assert body["return_token_ids"]
    assert [replica.dialogues for replica in remote.replicas] == [0, 0]


def test_a_dialogue_stays_with_its_replica_and_load_is_spread(servers, retriever) -> None:
    for server in servers:
        server.bodies.clear()
    agent(policy(servers), retriever).run_all(JOBS)
    asked = [{body["session_id"] for body in server.bodies} for server in servers]
    assert [len(dialogues) for dialogues in asked] == [3, 3]
    assert not asked[0] & asked[1]


def test_a_lost_replica_is_replaced_in_the_middle_of_a_dialogue(servers, starter, retriever) -> None:
    wanted = [rollout.token_ids for rollout in agent(HFPolicy(*starter), retriever).run_all(JOBS)]
    servers[1].failing = True
    try:
        remote = policy(servers)
        assert [rollout.token_ids for rollout in agent(remote, retriever).run_all(JOBS)] == wanted
        assert remote.replicas[1].resting_until > 0
        assert [replica.dialogues for replica in remote.replicas] == [0, 0], "each dialogue counts once"
        servers[0].failing = True
        with pytest.raises(PolicyError, match="all 2 replicas are gone.*503"):
            agent(policy(servers), retriever).run_all(JOBS)
    finally:
        servers[0].failing = servers[1].failing = False


def test_an_endpoint_without_token_ids_is_refused(servers, retriever) -> None:
    servers[0].without_ids = True
    try:
        with pytest.raises(PolicyError, match="found 0 token ids.*return_token_ids"):
            agent(policy(servers[:1]), retriever).run_all(JOBS)
    finally:
        servers[0].without_ids = False


def test_no_endpoint_is_refused(servers) -> None:
    with pytest.raises(PolicyError, match="none given"):
        CompletionPolicy([], "base", servers[0].tokenizer)
