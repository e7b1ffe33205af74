"""An environment of Prime Intellect's verifiers, such as a Medmarks task. It plays in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from concurrent.futures import Future
from itertools import count
from threading import Lock, Thread, Timer
from contextlib import suppress
from typing import Any, Literal
from weakref import finalize

import psutil

from medagent.errors import ConfigError
from medagent.training.environments import verifiers_worker
from medagent.training.environments.harness import Harness
from medagent.training.environments.recording import Recording
from medagent.training.rewards import MOST_REWARD
from medagent.training.rollouts.daemon import in_daemon
from medagent.types import Question

SECONDS_TO_CANCEL = 5.0
DIED = "the environment's process has died"


class Verifiers(Harness):
    """Trains on an installed environment of verifiers, by its id and the arguments of its `load_environment`.

    An environment without that function is a taskset of verifiers 0.4; `env_args` are then settings of its `EnvConfig`.

    It runs in a process of `python`, by default this one. Name the Python of another virtual environment where versions
    clash. `split` says whether its training or its evaluation questions are asked. A rollout that takes longer than
    `timeout_s` seconds has failed. At most `max_running` run at once.
    """

    def __init__(
        self,
        env_id: str,
        env_args: dict[str, Any] | None = None,
        python: str = sys.executable,
        split: Literal["train", "eval"] = "train",
        timeout_s: float = 600.0,
        max_running: int = 64,
    ) -> None:
        self.env_id, self.timeout_s, self.max_running = env_id, timeout_s, max_running
        self._command = [python, verifiers_worker.__file__, env_id, json.dumps(env_args or {}), split]
        self._worker: _Worker | None = None
        self._starting = Lock()

    def questions(self) -> list[Question]:
        return self._started().questions

    def _started(self) -> _Worker:
        """The process that plays, started again if it has died."""
        with self._starting:
            if self._worker is None or self._worker.ended:
                self._worker = _Worker(self._command)
                finalize(self, self._worker.end)
            return self._worker

    async def run(self, recording: Recording) -> None:
        worker = await asyncio.wrap_future(in_daemon(self._started, "verifiers"))
        job, question = recording.job, recording.job.question
        number, playing = worker.play(play=question.id, base_url=recording.base_url, temperature=job.temperature)
        try:
            found = await asyncio.wrap_future(playing)
        except asyncio.CancelledError:
            worker.cancel(number)
            raise
        if "error" in found:
            raise RuntimeError(found["error"])
        if not abs(found["reward"]) <= MOST_REWARD:
            raise ValueError(f"it gave the reward {found['reward']}, wanted one up to {MOST_REWARD:g}")
        recording.grade(found["reward"], found["success"])


class _Worker:
    """A process of `verifiers_worker`. It ends with this one."""

    def __init__(self, command: list[str]) -> None:
        own = os.environ | {"PYTHONHASHSEED": "0"}
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, env=own
            )
        except OSError as error:
            raise ConfigError(f"Verifiers.python: found {command[0]!r}, wanted a Python: {error}.") from error
        self.end = finalize(self, _end, self._process)
        assert self._process.stdout
        first = json.loads(self._process.stdout.readline() or "{}")
        if not first.get("questions"):
            self.end()
            raise ConfigError(
                f"Verifiers.env_id {command[2]!r}: found {first.get('error') or 'no questions'}, wanted an environment "
                f"that {command[0]} can load. Install it there, and mend env_args."
            )
        self.questions = [Question(id, text) for id, text in first["questions"]]
        self.ended, self._numbers, self._jobs = False, count(), dict[int, Future[dict[str, Any]]]()
        Thread(target=self._listen, daemon=True).start()

    def play(self, **asked: Any) -> tuple[int, Future[dict[str, Any]]]:
        """A job's number, and its outcome to come."""
        number, future = next(self._numbers), Future[dict[str, Any]]()
        self._jobs[number] = future
        self._send(job=number, **asked)
        if self.ended:
            self._settle(number, error=DIED)
        return number, future

    def cancel(self, number: int) -> None:
        """End a job; a process that does not do so in time is killed."""
        self._send(job=number)
        timer = Timer(SECONDS_TO_CANCEL, lambda: number in self._jobs and self.end())
        timer.daemon = True
        timer.start()

    def _send(self, **what: Any) -> None:
        assert self._process.stdin
        with suppress(OSError, ValueError):  # it has died, as `_listen` will notice
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._settle(**json.loads(line))
        self.ended = True
        for number in list(self._jobs):
            self._settle(number, error=DIED)

    def _settle(self, job: int, **found: Any) -> None:
        playing = self._jobs.pop(job, None)
        if playing and playing.set_running_or_notify_cancel():
            playing.set_result(found)


def _end(process: subprocess.Popen[str]) -> None:
    """End a worker, and what it has started."""
    family = []
    with suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
    assert process.stdin
    with suppress(OSError):
        process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(verifiers_worker.SECONDS_TO_END + 1)
    for each in [*family, process]:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()
