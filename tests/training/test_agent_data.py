"""What all data modules share: nothing is saved or handed over while rollouts of the weights before are sampled."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from tests.training.support import make_data


def test_a_checkpoint_waits_for_the_rollouts_that_belong_before_it(retriever) -> None:
    data = make_data(retriever)
    go, done = threading.Event(), []

    def sample() -> None:
        go.wait(10)
        done.append("rollouts")

    data.background.start(sample)
    threading.Timer(0.2, go.set).start()
    data.state_dict()
    assert done == ["rollouts"]


def test_a_hand_over_waits_for_the_rollouts_that_use_the_weights_before(retriever) -> None:
    data = make_data(retriever)
    go, done = threading.Event(), []

    def sample() -> None:
        go.wait(10)
        done.append("rollouts")

    engine = SimpleNamespace(hand_over=lambda module, *, version: done.append("hand-over"))
    data.engine = engine  # type: ignore[assignment]
    data.background.start(sample)
    threading.Timer(0.2, go.set).start()
    data.policy_of(None, version=1)  # type: ignore[arg-type]
    assert done == ["rollouts", "hand-over"]
