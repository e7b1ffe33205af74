"""A small module, rollouts of the starter policy, and what one step learns from."""

from __future__ import annotations

from pathlib import Path

import pytest

from medagent.agent import Agent, Job
from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.policies.huggingface import HFPolicy
from medagent.training.advantages import GAE
from medagent.training.module import AgentModule
from medagent.training.prepare import prepare
from medagent.training.rewards import OutcomeReward
from studies.starter_base.lessons import STARTER_LIMITS, STARTER_PROTOCOL
from tests.training.golden.make import make_base
from tests.training.support import make_module


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base of the golden run."""
    return make_base(tmp_path_factory.mktemp("tiny") / "base")


@pytest.fixture
def module() -> AgentModule:
    return make_module()


@pytest.fixture(scope="module")
def rollouts(starter, retriever):
    agent = Agent(HFPolicy(*starter), retriever, STARTER_PROTOCOL, STARTER_LIMITS, top_k=2)
    questions = StarterBenchmark("train", limit_per_kind=8).questions()
    jobs = [Job(question, seed=i, force_search=i % 2 == 0) for i, question in enumerate(questions)]
    return [OutcomeReward()(rollout) for rollout in agent.run_all(jobs)]


@pytest.fixture
def experience(module, retriever, rollouts):
    return prepare(module, rollouts, estimator=GAE(), reduce=lambda tensor: tensor)
