"""An agent that is not ours as an environment: any function or program that asks an OpenAI-compatible endpoint."""

import asyncio
import json
import os
import signal
import tempfile
from asyncio.subprocess import DEVNULL, STDOUT
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pydoc import locate
from typing import Any, cast

from medagent.agent import Agent, Job
from medagent.environment import AgentSettings
from medagent.errors import ConfigError
from medagent.evaluation.benchmarks import Benchmark
from medagent.policy import Policy, Session
from medagent.retrieval.controls import NoRetriever
from medagent.tool_protocol import ToolProtocol
from medagent.training.environments.capture import Capture
from medagent.training.environments.episodes import EpisodeAgent, EpisodeEnvironment, EpisodeError
from medagent.training.rewards import MOST_REWARD
from medagent.types import Question, Rollout, Turn

SAID = 2_000  # bytes of a failed program's output that its error tells


class DiedError(Exception):
    """What plays has died. Its other rollouts had no part in that, so each begins again, once."""


class Harness(EpisodeEnvironment):
    """Trains the model behind an agent that is not ours, on the questions of `benchmark`.

    `play` is the path of a function, async or not, of a question and a base URL, which returns the reward. Or it is a
    command line as a list. The program runs once per rollout and finds OPENAI_BASE_URL, OPENAI_API_KEY,
    MEDAGENT_QUESTION (JSON) and MEDAGENT_REWARD_URL in its environment. It posts {"reward": 0.7} to the last, as a
    function may that returns None.

    A rollout of more than `timeout_s` seconds has failed. At most `max_running` run at once.
    """

    def __init__(
        self, benchmark: Benchmark, play: str | list[str], timeout_s: float = 600.0, max_running: int = 64
    ) -> None:
        self._questions, self.timeout_s, self.max_running = benchmark.questions(), timeout_s, max_running
        found: Any = locate(play) if isinstance(play, str) else None
        if not (callable(found) or (isinstance(play, list) and play)):
            raise ConfigError(
                f"Harness.play: found {play!r}, wanted the path of a function of a question and a base URL, such as "
                "my_agent.play, or a command line as a list. Correct it."
            )
        self._command: list[str] = play if isinstance(play, list) else []
        self._play: Callable[[Question, str], Any] = found or self._run

    def questions(self) -> list[Question]:
        return self._questions

    def agent(self, policy: Policy, settings: AgentSettings) -> Agent:
        capture = Capture(policy, cast(ToolProtocol, settings.protocol), settings.limits)
        made = HarnessAgent(policy, NoRetriever(), capture.protocol, capture.limits, capture=capture, environment=self)
        made.search_stats = capture.stats
        return made

    async def _run(self, question: Question, base_url: str) -> None:
        """Run a program that plays; RuntimeError if it fails."""
        own = {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "none"}
        own |= {"MEDAGENT_QUESTION": json.dumps(asdict(question), default=dict)}
        own |= {"MEDAGENT_REWARD_URL": base_url.removesuffix("/v1") + "/reward"}
        with tempfile.TemporaryFile() as said:
            process = await asyncio.create_subprocess_exec(
                *self._command, env=os.environ | own, stdin=DEVNULL, stdout=said, stderr=STDOUT, start_new_session=True
            )
            try:
                await process.wait()
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # with all that it started
                await process.wait()
            if process.returncode:
                said.seek(max(0, said.seek(0, os.SEEK_END) - SAID))
                last_words = said.read().decode(errors="replace")
                raise RuntimeError(f"exit status {process.returncode}, after it said: {last_words}")


@dataclass
class HarnessAgent(EpisodeAgent):
    """Lets an agent that is not ours play, and records what its model samples."""

    environment: Harness = field(kw_only=True)
    capture: Capture = field(kw_only=True)

    def _session(self, job: Job) -> Session:
        return cast(Session, ExitStack())  # to close; a recording opens one per turn

    async def _play(self, job: Job, session: Session, on_turn: Callable[[Turn], None], again: bool = True) -> Rollout:
        harness, error = self.environment, ""
        async with self.capture.recording(job) as recording:
            try:
                given = await harness.call(harness._play, job.question, recording.base_url)
                if given is not None:
                    if not (isinstance(given, int | float) and abs(given) <= MOST_REWARD):
                        wanted = f"wanted a reward up to {MOST_REWARD:g}, or None"
                        raise EpisodeError(f"it returned {str(given)[:80]!r}, {wanted}")
                    recording.grade(given)
                if recording.reward is None:
                    error = "it ended without a reward. Return one, or post it."
                if not recording.rows:
                    error = "it never asked the model. Let it use the given base URL."
            except EpisodeError as failure:
                task = asyncio.current_task()
                interrupted = task is not None and task.cancelling()
                if again and isinstance(failure.__cause__, DiedError) and not interrupted:
                    return await self._play(job, session, on_turn, again=False)
                error = str(failure)
        if recording.failure:
            raise recording.failure
        rollout = recording.rollout(error)
        for turn in rollout.turns:
            on_turn(turn)
        return rollout
