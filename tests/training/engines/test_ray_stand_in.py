"""The engine `ray` replaces actors that die or hold other weights; Ray itself is a stand-in in this process.

Real actors are tried in `test_ray.py`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from medagent.engines import ray as engine_module
from medagent.engines.ray import RayEngine
from medagent.errors import ConfigError, PolicyError
from medagent.training.engines import ModuleWeights
from tests.training.engines.support import StandIn
from tests.training.support import make_module, perturb, setup_of


class RayError(Exception):
    """Of Ray."""


class RayActorError(RayError):
    """An actor has died."""


class RayTaskError(RayError):
    """An actor has raised `cause`."""

    cause: Exception | None = None


class Actor:
    """A replica whose methods are asked as Ray's are. A dead one answers nothing."""

    def __init__(self, replica: Any) -> None:
        self.replica, self.alive = replica, True
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> SimpleNamespace:
        async def asked(*arguments: Any) -> Any:
            self.asked.append(name)
            if not self.alive:
                raise RayActorError("the actor died\nits node is gone")
            return await getattr(self.replica, name)(*arguments)

        def remote(*arguments: Any) -> Any:
            answer = asked(*arguments)
            try:
                return asyncio.get_running_loop().create_task(answer)
            except RuntimeError:  # the engine asks from outside, and waits with `get`
                return answer

        return SimpleNamespace(remote=remote)


class Ray(ModuleType):
    """Ray's calls that the engine makes."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.__spec__ = ModuleSpec("ray", None)
        self.exceptions = SimpleNamespace(RayError=RayError, RayActorError=RayActorError, RayTaskError=RayTaskError)
        self.begun = self.stopped = 0
        self.stillborn = False  # whether actors begin dead
        self.options: dict[str, Any] = {}

    def is_initialized(self) -> bool:
        return self.begun > self.stopped

    def init(self, **settings: Any) -> None:
        self.begun += 1

    def shutdown(self) -> None:
        self.stopped += 1

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 4.0}

    def remote(self, **options: Any) -> Callable[[type], SimpleNamespace]:
        self.options = options

        def begin(kind: type, settings: Any) -> Actor:
            actor = Actor(kind(settings))
            actor.alive = not self.stillborn
            return actor

        return lambda kind: SimpleNamespace(remote=lambda settings: begin(kind, settings))

    def put(self, value: Any) -> Any:
        return value

    def get(self, answer: Any, *, timeout: float) -> Any:
        return asyncio.run(answer)

    def kill(self, actor: Actor) -> None:
        actor.alive = False


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    made = Ray()
    monkeypatch.setattr(engine_module, "VllmServer", StandIn)
    monkeypatch.setitem(sys.modules, "ray", made)
    return made


def started(module, folder: Path, **settings: Any) -> RayEngine:
    engine = RayEngine(num_replicas=2, **settings)
    engine.start(ModuleWeights(module), setup_of(module, folder))
    return engine


async def asked(policy) -> tuple[int, ...]:
    session = policy.open(seed=0, temperature=0.0, blocks=())
    session.append([20, 21, 22])
    turn = await session.sample(max_tokens=3)
    session.close()
    await asyncio.sleep(0)
    return turn.token_ids


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_dead_actor_is_replaced_at_the_next_sync(dtype: str, ray: Ray, tmp_path: Path) -> None:
    module = make_module(dtype=dtype)
    engine = started(module, tmp_path)
    first = engine.sync_weights(ModuleWeights(module), version=0)
    assert (len(first.replicas), engine.metrics()["sampler/lost"]) == (2, 0)
    ray.kill(engine._actors[0])
    assert len(asyncio.run(asked(first))) == 3, "the other takes its dialogues"
    perturb(module)
    second = engine.sync_weights(ModuleWeights(module), version=1)
    metrics = engine.metrics()
    assert (len(second.replicas), metrics["sampler/replicas"], metrics["sampler/lost"]) == (2, 2, 1)
    assert [actor.asked.count("push") for actor in engine._actors.values()] == [1, 2], "each is sent weights once"
    assert engine._checks[1].slope == pytest.approx(1.0, abs=0.1), "it has followed"
    assert not engine._checks[0].measurable, "another process begins anew"
    assert len(asyncio.run(asked(second))) == 3
    engine.sync_weights(ModuleWeights(module), version=2)
    with pytest.raises(PolicyError, match=r"all 2 replicas are gone.*has other weights \(version 3, wanted 2\)"):
        asyncio.run(asked(second))
    engine.close()
    assert (ray.begun, ray.stopped) == (1, 1)


def test_one_that_cannot_be_started_again_is_left_out_until_it_can(ray: Ray, tmp_path: Path) -> None:
    module = make_module()
    engine = started(module, tmp_path)
    engine.sync_weights(ModuleWeights(module), version=0)
    ray.stillborn = True
    ray.kill(engine._actors[1])
    assert len(engine.sync_weights(ModuleWeights(module), version=1).replicas) == 1
    assert (engine.metrics()["sampler/replicas"], engine.metrics()["sampler/lost"]) == (1, 2)
    ray.stillborn = False
    assert len(engine.sync_weights(ModuleWeights(module), version=2).replicas) == 2
    ray.stillborn = True
    for actor in engine._actors.values():
        ray.kill(actor)
    with pytest.raises(PolicyError, match=r"all 2 Ray replicas are gone.*\n.*died\nits node is gone\n"):
        engine.sync_weights(ModuleWeights(module), version=3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_actor_that_keeps_what_it_has_is_caught(dtype: str, ray: Ray, tmp_path: Path) -> None:
    module = make_module(dtype=dtype)
    engine = started(module, tmp_path)
    engine.sync_weights(ModuleWeights(module), version=0)
    engine._actors[0].replica._server.deaf = True
    perturb(module, scale=1e-5)
    with pytest.raises(PolicyError, match=r"Ray replica 0: the weight sync failed\. Found \d+ of \d+ weights"):
        engine.sync_weights(ModuleWeights(module), version=1)


def test_more_than_the_cluster_has_is_refused(ray: Ray, tmp_path: Path) -> None:
    module = make_module()
    started(module, tmp_path, cpus=2.0)
    assert (ray.options["num_cpus"], ray.options["num_gpus"]) == (2.0, 0.0)
    with pytest.raises(ConfigError, match="2 replicas want 4.2 CPU, and the cluster has 4"):
        started(module, tmp_path, cpus=2.1)
    with pytest.raises(ConfigError, match="num_replicas 0"):
        RayEngine(num_replicas=0)
    with pytest.raises(ConfigError, match="2 replicas want 1 GPU, and the cluster has 0"):
        started(module, tmp_path, gpus=0.5)


def test_weights_that_came_halfway_answer_no_request(ray: Ray, tmp_path: Path) -> None:
    module = make_module()
    engine = started(module, tmp_path)
    engine.sync_weights(ModuleWeights(module), version=0)
    replica, body = engine._actors[0].replica, {"max_tokens": 2}
    assert "token_ids" in asyncio.run(replica.complete(1, body))
    with pytest.raises(ValueError, match="adapter_config"):
        asyncio.run(replica.push(2, {"other.txt": b""}, []))
    for version in (1, 2):
        assert asyncio.run(replica.complete(version, body)) == {"stale": -1}
