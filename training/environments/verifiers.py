"""An environment of Prime Intellect's verifiers, such as a Medmarks task. It plays in a process of its own."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from threading import Lock, Thread
from typing import Any, Literal
from uuid import uuid4
from weakref import finalize

import psutil

from medagent.errors import ConfigError
from medagent.training.environments import verifiers_worker
from medagent.training.environments.harness import DiedError, Harness
from medagent.training.rollouts.collection import in_daemon
from medagent.types import Question


class Verifiers(Harness):
    """An installed environment of verifiers, such as a Medmarks task, trained on for the rewards that it gives.

    `env_id` is its name, and `env_args` are the arguments of its `load_environment`. Without that function it is a
    taskset of verifiers 0.4, and they are settings of its `EnvConfig`. `split` says which of its questions are asked.

    It runs in a process of `python`, by default this one: name the Python of another virtual environment where versions
    clash. A process that dies is started again. A rollout of more than `timeout_s` seconds has failed. At most
    `max_running` run at once.
    """

    def __init__(
        self,
        env_id: str,
        env_args: dict[str, Any] | None = None,
        python: str | None = None,
        split: Literal["train", "eval"] = "train",
        timeout_s: float = 600.0,
        max_running: int = 64,
    ) -> None:
        self.timeout_s, self.max_running = timeout_s, max_running
        self._command = [python or sys.executable, verifiers_worker.__file__, env_id, json.dumps(env_args or {}), split]
        self._worker: _Worker | None = None
        self._starting = Lock()

    def questions(self) -> list[Question]:
        return self._running().questions

    def _play(self, question: Question, base_url: str) -> Coroutine[Any, Any, float]:
        return self._running().play(question.id, base_url)

    def _running(self) -> "_Worker":
        with self._starting:
            if self._worker is None or self._worker.ended:
                self._worker = _Worker(self._command)
                finalize(self, self._worker.end)
            return self._worker


class _Worker:
    """A process of `verifiers_worker`. It ends with this one."""

    def __init__(self, command: list[str]) -> None:
        pipes: Any = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
        self._process: Any  # whose pipes are never None
        mark = uuid4().hex
        own = os.environ | {"PYTHONHASHSEED": "0", "MEDAGENT_WORKER": mark}
        try:
            self._process = subprocess.Popen(command, **pipes, text=True, start_new_session=True, env=own)  # noqa: S603
        except OSError as error:
            raise ConfigError(f"Verifiers.python: found {command[0]!r}, wanted a Python. {error}.") from error
        self.end = finalize(self, _end, self._process, mark)
        first = json.loads(self._process.stdout.readline() or "{}")
        if not first.get("questions"):
            self.end()
            self._process.stdout.close()
            raise ConfigError(
                f"Verifiers.env_id {command[2]!r}: found {first.get('error', 'no questions')}, wanted an environment "
                f"that {command[0]} can load. Install it there, or mend env_id and env_args."
            )
        self.questions = [Question(id, text) for id, text in first["questions"]]
        self.ended, self._numbers, self._jobs = False, count(), dict[int, Future[dict[str, Any]]]()
        Thread(target=self._listen, daemon=True).start()

    async def play(self, id: str, base_url: str) -> float:
        """The reward of one rollout."""
        number, playing = next(self._numbers), Future[dict[str, Any]]()
        self._jobs[number] = playing
        self._send(number, id, base_url)
        if self.ended:
            self._settle(number)
        try:
            found = await asyncio.shield(asyncio.wrap_future(playing))
        except asyncio.CancelledError:
            self._send(number)
            _, waiting = await asyncio.wait([asyncio.wrap_future(playing)], timeout=2 * verifiers_worker.SECONDS_TO_END)
            if waiting:
                in_daemon(self.end, "verifiers")
            if waiting or playing.result():
                raise
            found = {}  # another rollout blocked it
        if not found:
            raise DiedError("the environment's process has died")
        if "error" in found:
            raise RuntimeError(found["error"])
        return float(found["reward"])

    def _send(self, *what: int | str) -> None:
        with suppress(OSError, ValueError):  # it has died, which `_listen` will notice
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()

    def _listen(self) -> None:
        with self._process.stdout as lines:
            for line in lines:
                self._settle(**json.loads(line))
        self.ended = True
        self.end()
        for number in list(self._jobs):
            self._settle(number)

    def _settle(self, job: int, **found: Any) -> None:
        playing = self._jobs.pop(job, None)
        if playing and playing.set_running_or_notify_cancel():
            playing.set_result(found)


def _end(process: subprocess.Popen[str], mark: str) -> None:
    """End a worker and all that it has started, also in sessions of their own."""
    assert process.stdin
    with suppress(OSError):
        process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(verifiers_worker.SECONDS_TO_END + 1)
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            if each.environ().get("MEDAGENT_WORKER") == mark:
                each.kill()
    process.wait()
