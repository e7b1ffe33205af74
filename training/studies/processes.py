"""The processes of a study: one object starts them all and stops them all."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import threading
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

GRACE_S = 20.0  # for a run to end by itself once it was told to; it goes on from its last checkpoint either way


class Children:
    """Processes that other threads start and wait for.

    They inherit the file descriptors `kept`, and with them any lock on those files.
    """

    def __init__(self, kept: Sequence[int] = ()) -> None:
        self._kept = tuple(kept)
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def run(self, command: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> int:
        """Run a command to its end, and append what it prints to `log`.

        Returns:
            Its exit status, or 1 where all were stopped before it began.
        """
        with log.open("a", encoding="utf-8") as file:
            with self._lock:
                if self._stopped:
                    return 1
                # In a session of its own, so that Ctrl-C reaches it through `stop` alone.
                process = subprocess.Popen(  # noqa: S603
                    command,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=dict(environment),
                    start_new_session=True,
                    pass_fds=self._kept,
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


def _code() -> str:
    """The first 12 digits of a SHA-256 over the project's files: code, packaged base, world, prompts."""
    digest, root = hashlib.sha256(), Path(__file__).resolve().parents[2]
    for package in ("evaluation", "medagent", "retrieval", "training"):
        for path in sorted((root / package).rglob("*")):
            # Without files that come and go while a study runs, such as compiled ones or an editor's.
            if path.is_file() and "__pycache__" not in path.parts and path.name[0] not in ".#":
                digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def made_by(threads: int) -> dict[str, Any]:
    """What a run's numbers depend on besides its plan: code, libraries, processor and threads."""
    cpuinfo, processor = Path("/proc/cpuinfo"), platform.processor()
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        named = [line.split(":", 1)[1].strip() for line in lines if line.startswith(("cpu family", "model"))]
        processor = ", ".join(named[:3]) or processor  # family, model and name of the first core
    libraries = {name: version(name) for name in ("torch", "transformers", "peft", "lightning", "numpy")}
    kernels = torch.backends.cpu.get_cpu_capability()
    return {
        "code": _code(),
        "processor": f"{processor}, {kernels}",
        "threads": threads,
        "python": platform.python_version(),
        **libraries,
    }
