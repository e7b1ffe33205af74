"""SIGTERM ends a training run as Ctrl-C does: at once, also while it samples."""

from __future__ import annotations

import os
import signal
import time

import pytest

from medagent.run_folder import ENDING, signals_interrupt
from medagent.training.command import train_command
from medagent.training.data import RolloutData
from tests.training.support import arguments

pytestmark = pytest.mark.usefixtures("heard")


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_interrupts_and_a_second_one_is_ignored(number) -> None:
    before = [signal.getsignal(each) for each in ENDING]
    stopped = False

    def stop_and_be_told_again() -> None:
        nonlocal stopped
        try:
            os.kill(os.getpid(), number)
            time.sleep(5)
        finally:
            os.kill(os.getpid(), number)
            stopped = True

    with pytest.raises(KeyboardInterrupt), signals_interrupt():
        stop_and_be_told_again()
    assert stopped
    assert [signal.getsignal(each) for each in ENDING] == before


def test_what_was_ignored_before_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with signals_interrupt():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_run_that_samples_ends_at_once(train_index, tmp_path, monkeypatch) -> None:
    ended: list[float] = []

    def told_to_end(*_: object, **__: object) -> list[object]:
        ended.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
        return []

    monkeypatch.setattr(RolloutData, "collect", told_to_end)
    with pytest.raises(KeyboardInterrupt):
        train_command(arguments(tmp_path / "run", train_index, epochs=1))
    assert time.monotonic() - ended[0] < 30
