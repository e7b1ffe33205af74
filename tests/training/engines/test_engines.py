"""Engines: weights arrive where rollouts are sampled, and where they do not, the run stops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from medagent.errors import ConfigError, PolicyError
from medagent.evaluation.viewer.recorded import read_metrics
from medagent.policies.vllm.server import VllmApi
from medagent.training.command import train_command
from medagent.training.engines import InProcessEngine, ModuleWeights, ServersEngine, VllmEngine
from tests.fake_vllm import FakeVllm
from tests.training.support import arguments, perturb, setup_of


@pytest.fixture
def servers() -> Iterator[list[FakeVllm]]:
    made = [FakeVllm(), FakeVllm()]
    yield made
    for server in made:
        server.close()


def engine_for(servers: list[FakeVllm], folder: Path, **settings) -> ServersEngine:
    urls = [server.url for server in servers]
    return ServersEngine(urls, "base", str(folder), retries=1, backoff_s=0.01, **settings)


def test_servers_get_each_adapter_and_lose_the_one_before(module, servers, tmp_path: Path) -> None:
    engine = engine_for(servers, tmp_path)
    engine.start(ModuleWeights(module), setup_of(module, tmp_path))
    first = engine.sync_weights(ModuleWeights(module), version=0)
    perturb(module)
    second = engine.sync_weights(ModuleWeights(module), version=1)
    assert first.model != second.model
    assert all(set(server.models) == {"base", second.model} for server in servers)
    assert engine.metrics()["sampler/arrived"] == pytest.approx(1.0, abs=0.01)
    assert engine.metrics()["sampler/replicas"] == 2
    assert [path.name for path in tmp_path.iterdir()] == [second.model], "adapters that nobody serves are gone"


def test_servers_end_turns_at_every_end_of_the_model(module, servers, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module.shared_base.base.generation_config, "eos_token_id", [7, 9])
    engine = engine_for(servers, tmp_path)
    engine.start(ModuleWeights(module), setup_of(module, tmp_path))
    policy = engine.sync_weights(ModuleWeights(module), version=0)
    assert set(policy.end_ids) == {7, 9, module.tokenizer.eos_token_id}
    in_process = InProcessEngine().sync_weights(ModuleWeights(module), version=0)
    session = in_process.open(seed=0, temperature=1.0, blocks=())
    assert session.dialogue.ends.token_ids == set(policy.end_ids)
    session.close()


def test_after_a_resumption_the_probe_begins_with_the_base(module, servers, tmp_path: Path) -> None:
    """Else a trained adapter's distance from the base would count as noise, and nothing could be measured."""
    perturb(module, scale=0.05)
    engine = engine_for(servers, tmp_path)
    engine.start(ModuleWeights(module), setup_of(module, tmp_path))
    engine.sync_weights(ModuleWeights(module), version=7)
    assert engine.metrics()["sampler/measurable"] == 1.0
    assert engine.metrics()["sampler/arrived"] == pytest.approx(1.0, abs=0.01)


def test_a_server_that_ignores_its_adapter_is_caught(module, servers, tmp_path: Path) -> None:
    engine = engine_for(servers, tmp_path)
    engine.start(ModuleWeights(module), setup_of(module, tmp_path))
    engine.sync_weights(ModuleWeights(module), version=0)
    servers[1].forgetful = True
    perturb(module, scale=0.01)
    with pytest.raises(PolicyError, match=f"{servers[1].url}: the weight sync failed"):
        engine.sync_weights(ModuleWeights(module), version=1)


def test_a_failing_server_is_left_out_until_it_answers_again(module, servers, tmp_path: Path) -> None:
    engine = engine_for(servers, tmp_path)
    engine.start(ModuleWeights(module), setup_of(module, tmp_path))
    servers[0].failing = True
    assert len(engine.sync_weights(ModuleWeights(module), version=0).replicas) == 1
    servers[0].failing = False
    perturb(module)
    assert len(engine.sync_weights(ModuleWeights(module), version=1).replicas) == 2
    servers[0].failing = servers[1].failing = True
    with pytest.raises(PolicyError, match="all 2 servers are gone"):
        engine.sync_weights(ModuleWeights(module), version=2)


def test_a_server_that_comes_back_is_judged_anew(module, servers, tmp_path: Path, monkeypatch) -> None:
    """It may be another process on another machine, whose rounding is another: here it hides all that was learnt."""
    engine, setup = engine_for(servers, tmp_path), setup_of(module, tmp_path)
    engine.start(ModuleWeights(module), setup)
    engine.sync_weights(ModuleWeights(module), version=0)
    servers[0].failing = True
    engine.sync_weights(ModuleWeights(module), version=1)
    before = ModuleWeights(module).logprobs(setup.probe_ids)
    perturb(module, scale=0.0002)
    gap = -3 * (ModuleWeights(module).logprobs(setup.probe_ids) - before)
    complete = servers[0].complete

    def elsewhere(body: dict[str, Any]) -> dict[str, Any]:
        answer = complete(body)
        for row, each in zip(answer["prompt_logprobs"][1:], gap.tolist(), strict=True):
            next(iter(row.values()))["logprob"] += each
        return answer

    monkeypatch.setattr(servers[0], "complete", elsewhere)
    servers[0].failing = False
    assert len(engine.sync_weights(ModuleWeights(module), version=2).replicas) == 2
    assert engine.metrics()["sampler/measurable"] == 0.0


def test_of_several_servers_the_one_that_agrees_least_is_logged(module, servers, tmp_path: Path, monkeypatch) -> None:
    engine = engine_for(servers, tmp_path)
    engine.start(ModuleWeights(module), setup_of(module, tmp_path))
    found, off = VllmApi.logprobs, iter([4e-3, 1e-3])

    def shifted(api: VllmApi, token_ids: list[int], *, model: str) -> list[float]:
        apart = 0.0 if model == "base" else next(off)
        return [value + apart for value in found(api, token_ids, model=model)]

    monkeypatch.setattr(VllmApi, "logprobs", shifted)
    engine.sync_weights(ModuleWeights(module), version=0)
    assert engine.metrics()["sampler/probe_gap"] == pytest.approx(4e-3, rel=0.05)


def test_wrong_servers_and_engines_that_were_not_started_are_refused(module, servers, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="urls is empty"):
        ServersEngine([], "base", str(tmp_path))
    wrong = ServersEngine([servers[0].url], "other", str(tmp_path))
    with pytest.raises(ConfigError, match="serves base, wanted 'other'"):
        wrong.start(ModuleWeights(module), setup_of(module, tmp_path))
    with pytest.raises(ConfigError, match="was not started"):
        VllmEngine().sync_weights(ModuleWeights(module), version=0)


@pytest.mark.long
def test_a_run_with_servers_trains(servers, train_index: Path, tmp_path: Path) -> None:
    policy = {
        "class_path": "medagent.training.engines.ServersEngine",
        "init_args": {
            "urls": [server.url for server in servers],
            "model": "base",
            "adapters": str(tmp_path / "shared"),
        },
    }
    settings = {"data.engine": policy, "data.off_policy.importance": "decoupled", "data.off_policy.staleness": 1}
    run = train_command(
        arguments(tmp_path / "run", train_index, epochs=2, **settings, **{"data.off_policy.overlap": "true"})
    )
    rows = read_metrics(run)
    assert [row["rollout/staleness"] for row in rows] == [0, 1]
    assert all(row["sampler/probe_gap"] < 1e-4 for row in rows)
    assert rows[0]["rollout/logprob_gap_max"] < 1e-3
