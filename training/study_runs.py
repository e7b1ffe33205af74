"""The processes of a study: started, and all of them stopped, by the one that runs it."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

GRACE_S = 20.0  # for a run to end by itself once it was told to; it goes on from its last checkpoint either way


class Children:
    """Processes that other threads start and wait for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def run(self, command: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> int:
        """Run a command to its end, with what it prints added to `log`; return its exit status (1 where all were stopped before it began)."""
        with log.open("a", encoding="utf-8") as file:
            with self._lock:
                if self._stopped:
                    return 1
                # In a session of its own, so that Ctrl-C reaches it through `stop` alone.
                process = subprocess.Popen(  # noqa: S603
                    command, stdout=file, stderr=subprocess.STDOUT, env=dict(environment), start_new_session=True
                )
                self._running.add(process)
            try:
                return process.wait()
            finally:
                with self._lock:
                    self._running.discard(process)

    def stop(self) -> None:
        """End what runs, and start nothing more."""
        with self._lock:
            self._stopped = True
            running = tuple(self._running)
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(timeout=GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP (a closed terminal) stop this process as Ctrl-C does; a second signal while it stops is not heeded."""

    def interrupt(number: int, frame: object) -> None:
        for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.signal(each, interrupt) for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
