"""Real Ray and vLLM: a run goes on when an actor is killed, and the next one has the weights of the moment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from medagent.agent import Agent, Job
from medagent.engines.ray import RayEngine
from medagent.errors import PolicyError
from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.training.callbacks.export import read_metrics
from medagent.training.command import train_command
from medagent.training.data import RolloutData
from medagent.training.engines import InProcessEngine, ModuleWeights
from studies.starter_base.lessons import STARTER_LIMITS, STARTER_PROTOCOL, STARTER_TOP_K
from tests.training.support import arguments, make_module, perturb, setup_of

ray = pytest.importorskip("ray", reason="needs the extra ray; make test-vllm installs it")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayEngine]:
    made = RayEngine(num_replicas=2, cpus=0.5)
    module = make_module()
    made.start(ModuleWeights(module), setup_of(module, tmp_path_factory.mktemp("ray")))
    yield made
    made.close()


def greedy(policy, retriever) -> list[list[int]]:
    agent = Agent(policy, retriever, STARTER_PROTOCOL, STARTER_LIMITS, STARTER_TOP_K)
    questions = StarterBenchmark("train", limit_per_kind=6).questions()
    jobs = [Job(question, temperature=0.0, force_search=True) for question in questions]
    return [rollout.token_ids for rollout in agent.run_all(jobs)]


def test_actors_sample_what_the_module_does_and_one_may_die(engine: RayEngine, retriever) -> None:
    module = make_module()
    for version in range(2):
        policy = engine.sync_weights(ModuleWeights(module), version=version)
        assert greedy(policy, retriever) == greedy(
            InProcessEngine().sync_weights(ModuleWeights(module), version=version), retriever
        )
        perturb(module)
    assert engine.metrics()["sampler/arrived"] == pytest.approx(1.0, abs=0.02)
    wanted = greedy(InProcessEngine().sync_weights(ModuleWeights(module), version=2), retriever)
    policy = engine.sync_weights(ModuleWeights(module), version=2)
    ray.kill(engine._actors[0])
    assert greedy(policy, retriever) == wanted, "the other takes its dialogues"
    assert len(engine.sync_weights(ModuleWeights(module), version=3).replicas) == 2, "another has taken its place"
    assert engine.metrics()["sampler/lost"] == 1
    with pytest.raises(PolicyError, match="all 2 replicas are gone"):
        greedy(policy, retriever)  # never a sample of weights that were not asked for


def test_a_run_completes_though_an_actor_is_killed(
    engine: RayEngine, train_index: Path, tmp_path: Path, monkeypatch
) -> None:
    collect, killed = RolloutData.collect, []

    def kills(self, policy, *, iteration, **how):
        if iteration == 1:
            killed.append(ray.kill(self.engine._actors[1]))
        return collect(self, policy, iteration=iteration, **how)

    monkeypatch.setattr(RolloutData, "collect", kills)
    policy = {
        "class_path": "medagent.training.engines.RayEngine",
        "init_args": {"num_replicas": 2, "cpus": 0.5},
    }
    rows = read_metrics(train_command(arguments(tmp_path / "run", train_index, epochs=3, **{"data.engine": policy})))
    assert len(killed) == 1
    assert [row["sampler/lost"] for row in rows] == [0, 0, 1]
    assert all(row["sampler/replicas"] == 2 for row in rows)
