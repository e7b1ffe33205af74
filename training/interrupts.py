"""Signals that end a process stop long work as Ctrl-C does, at once and in the same way."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP (a closed terminal) raise KeyboardInterrupt in the main thread, as Ctrl-C does.

    A second signal while it stops is ignored. So is one that was ignored before, as SIGHUP is below nohup.
    """

    def interrupt(number: int, frame: object) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before: dict[signal.Signals, object] = {}
    if threading.current_thread() is threading.main_thread():
        before = {each: signal.getsignal(each) for each in ENDING if signal.getsignal(each) is not signal.SIG_IGN}
    for each in before:
        signal.signal(each, interrupt)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)  # type: ignore[arg-type]
