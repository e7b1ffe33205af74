"""A line a minute: how far, what was learnt, and how long it still takes."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from medagent.cli.pace import Pace, PaceCallback, minutes


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """A clock that only moves when told to."""
    now = SimpleNamespace(s=1000.0)
    monkeypatch.setattr("medagent.cli.pace.time", SimpleNamespace(monotonic=lambda: now.s))
    return now


def test_the_time_left_follows_from_what_was_done(clock) -> None:
    pace = Pace({"one": 40.0, "two": 60.0}, print)
    with pace.stage("one"):
        assert pace.line() == "   one: 0%; about 100 minutes left in all"  # as expected, until more is known
        pace.update(0.0)
        clock.s += 50 * 60
        pace.update(0.5, "half of it")
        # 50 minutes for 20, and 10 as expected: twice as long for the 80 that are left
        assert pace.line() == "   one: 50%, half of it; about 160 minutes left in all"
        clock.s += 40 * 60
    with pace.stage("two"):
        pace.update(0.0)
        clock.s += 80 * 60
        pace.update(0.5)
        # 170 minutes for 70, and 10: 2.25 times as long for the 30 that are left
        assert pace.line() == "   two: 50%; about 68 minutes left in all"


def test_what_was_done_before_is_not_taken_for_speed(clock) -> None:
    pace = Pace({"one": 80.0, "two": 80.0}, print)
    pace.skip("one")
    with pace.stage("two"):
        pace.update(0.5, "goes on")  # a resumed run begins here
        clock.s += 50 * 60
        pace.update(0.75)
        # 50 minutes for 20, and 10: twice as long for the 20 that are left
        assert pace.line() == "   two: 75%, goes on; about 40 minutes left in all"


def test_it_speaks_by_itself_and_stops_with_the_stage() -> None:
    said: list[str] = []
    pace = Pace({"one": 1.0}, said.append, every_s=0.01)
    with pace.stage("one"):
        pace.update(0.25, "a quarter")
        deadline = time.monotonic() + 10
        while not said and time.monotonic() < deadline:
            time.sleep(0.01)
    assert said[0].startswith("   one: 25%, a quarter")
    count = len(said)
    time.sleep(0.1)
    assert len(said) == count


def test_it_stops_where_a_stage_fails() -> None:
    said: list[str] = []
    pace = Pace({"one": 1.0}, said.append, every_s=0.01)
    with pytest.raises(KeyboardInterrupt), pace.stage("one"):
        raise KeyboardInterrupt
    count = len(said)
    time.sleep(0.1)
    assert len(said) == count


def test_a_training_reports_its_updates(clock) -> None:
    pace, callback = Pace({"learn": 1.0}, print), PaceCallback()
    trainer = SimpleNamespace(
        current_epoch=1, num_training_batches=4, max_epochs=2, callback_metrics={"reward/success": 0.25}
    )
    callback.on_train_batch_end(trainer, None, None, None, 0)  # without a pace it does nothing
    with pace.stage("learn"):
        callback.on_train_batch_end(trainer, None, None, None, 1)
        assert pace.line().startswith("   learn: 75%, 25% of sampled rollouts answer right; about")
        trainer.callback_metrics = {"sft/loss": 1.234}
        callback.on_train_batch_end(trainer, None, None, None, 3)
        assert pace.line().startswith("   learn: 100%, loss 1.23 nats a token")


def test_durations_in_words() -> None:
    assert [minutes(seconds) for seconds in (0, 40, 90, 5000)] == ["1 minute", "1 minute", "2 minutes", "83 minutes"]
