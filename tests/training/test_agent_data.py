"""What all data modules share: nothing is saved or synced while rollouts of the weights before are sampled."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

from medagent.training.data import _Iteration
from medagent.training.prepare import OffPolicy
from medagent.training.rollouts.collection import Background, StaleRollouts
from medagent.types import Question, Rollout, StopReason
from tests.training.support import make_data


def test_a_checkpoint_and_a_sync_wait_for_the_rollouts_of_the_weights_before(retriever, module) -> None:
    for act in ("save", "sync"):
        data = make_data(retriever)
        go, done = threading.Event(), []
        engine = SimpleNamespace(sync_weights=lambda weights, *, version, done=done: done.append("sync"))
        data.engine = engine  # type: ignore[assignment]
        data.background.start(lambda go=go, done=done: done.append(go.wait(10)))
        threading.Timer(0.2, go.set).start()
        if act == "save":
            data.state_dict()
        else:
            data.policy_of(module, version=1)
        assert done == [True, "sync"][: 1 + (act == "sync")], act


def test_ranks_of_several_nodes_keep_stale_rollouts_apart(retriever, module, tmp_path: Path, monkeypatch) -> None:
    """Nodes share a disk, and each has a rank 0 of its own."""
    data = make_data(retriever, off_policy=OffPolicy(staleness=1))
    monkeypatch.setattr(data, "policy_of", lambda module, *, version: None)
    monkeypatch.setattr(data, "engine", SimpleNamespace(sleep=lambda: None))
    asked: list[tuple[int, int]] = []

    def collect(policy: object, *, iteration: int, rank: int, **settings: object) -> list[Rollout]:
        asked.append((iteration, rank))
        return [Rollout(Question(f"{iteration} {rank}", "q"), (4,), (), StopReason.MALFORMED)]

    monkeypatch.setattr(data, "collect", collect)
    node = {"world_size": 4, "local_rank": 1, "default_root_dir": str(tmp_path), "max_epochs": 3}
    for rank in (1, 3):
        trainer = SimpleNamespace(global_rank=rank, **node)
        (rollout,) = _Iteration(data, trainer)._rollouts(module, 0)  # type: ignore[arg-type]
        assert rollout.question.id == f"0 {rank}"
    assert asked == [(0, 1), (1, 1), (0, 3), (1, 3)]


def test_a_run_sent_back_by_one_iteration_trains_on_the_same_rollouts(tmp_path: Path) -> None:
    """A kill may tear the newest checkpoint, when the iteration after it has begun."""

    def taken(iteration: int, weights: str) -> list[str]:
        def collect(coming: int) -> list[Rollout]:
            return [Rollout(Question(f"{coming} with {weights}", "q"), (4,), (), StopReason.MALFORMED)]

        kept = StaleRollouts(tmp_path, staleness=1, rank=0, background=Background())
        return [rollout.question.id for rollout in kept.take(iteration, last=9, collect=collect, costs={})]

    first = [taken(iteration, f"those of {iteration}") for iteration in range(4)]
    assert first[2:] == [["2 with those of 1"], ["3 with those of 2"]]
    assert [taken(iteration, "others") for iteration in (2, 3)] == first[2:]
    assert len(list(tmp_path.rglob("*.jsonl"))) <= 3, "older ones are removed"
