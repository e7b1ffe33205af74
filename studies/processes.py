"""Processes that several threads start and wait for, and that end together."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

GRACE_S = 20.0  # for a run to end by itself once it was told to; it goes on from its last checkpoint either way


class Processes:
    """Processes that several threads start and wait for, and that end together."""

    def __init__(self) -> None:
        self._lock, self._stopped = threading.Lock(), False
        self._running: set[subprocess.Popen[bytes]] = set()

    def run(self, command: Sequence[str], *, log: Path, threads: int) -> int:
        """The exit status of a command that appends what it prints to `log`; 1 where all were stopped before."""
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
        with log.open("a", encoding="utf-8") as file:
            with self._lock:
                if self._stopped:
                    return 1
                # In a session of its own, so that Ctrl-C reaches it through `stop` alone.
                process = subprocess.Popen(
                    command, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
                )
                self._running.add(process)
            try:
                return process.wait()
            finally:
                with self._lock:
                    self._running.discard(process)

    def stop(self) -> None:
        """End those that run, and start nothing more."""
        with self._lock:
            self._stopped, running = True, tuple(self._running)
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(timeout=GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
