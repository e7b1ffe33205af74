"""A served agent under load: answers per second with one client and with many.

    python -m benchmarks.serving_load --agent runs/demo/agent          # without --agent, the starter agent
    python -m benchmarks.serving_load --seconds 10 --memory_answers 0  # a short look

The service is `medagent serve` in a process of its own, and the clients share the machine with it. One client asks
before and after the many. One in ten of the many's questions is left unanswered: its client hangs up. Then the many ask
again beside connections that say nothing.

Prints answers per second, their times and memory. It counts failures, and answers that differ from the evaluated ones.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import psutil

from benchmarks.common import describe_machine
from medagent.agent_folder import open_agent
from medagent.evaluation.run import run_benchmark
from medagent.evidence.answers import checked
from medagent.evidence.check import EvidenceCheck, names_of
from medagent.serving.background import EVERY_S
from medagent.starter.index import build_starter_index
from medagent.starter.world import World
from medagent.types import Question

PORT = 8099
URL = f"http://127.0.0.1:{PORT}"


@contextmanager
def service(agent: str, index: str) -> Iterator[psutil.Process]:
    """`medagent serve`, answering."""
    line = [sys.executable, "-m", "medagent.cli.main", "serve", "--agent", agent, "--index", index, "--port", str(PORT)]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([*line, "--poll_interval_s", "0"], stdout=log, stderr=log)
        try:
            for _ in range(600):
                try:
                    httpx.get(f"{URL}/readyz").raise_for_status()
                    break
                except httpx.TransportError:
                    time.sleep(0.2)
            yield psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(60)


class Load:
    """Clients that ask the questions in turn; each asks its next when its last is answered."""

    def __init__(self, questions: list[Question], wanted: dict[str, str]) -> None:
        self.questions, self.wanted = questions, wanted
        self.times: list[float] = []
        self.other = self.failed = self.left = 0
        self._draw = random.Random(0)

    async def _client(
        self, http: httpx.AsyncClient, mine: Iterator[Question], until: float, room: list[int], leaving: float
    ) -> None:
        while time.monotonic() < until and room[0] > 0:
            room[0] -= 1
            question, began = next(mine), time.monotonic()
            body = {"question": question.text, "options": list(question.options)}
            if self._draw.random() < leaving:
                self.left += 1
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.2 * self._draw.random()):
                        await http.post(f"{URL}/v1/answers", json=body)
                continue
            found = await http.post(f"{URL}/v1/answers", json=body)
            self.times.append(time.monotonic() - began)
            if found.status_code != 200:
                self.failed += 1
                continue
            self.other += found.json()["answer"]["text"] != self.wanted[question.id]

    def run(
        self, clients: int, seconds: float, answers: int = sys.maxsize, *, leaving: float = 0.0, silent: int = 0
    ) -> float:
        """Answers per second of `clients`, until time or number of answers is reached.

        A share of the questions is left while it is `leaving`. So many `silent` connections stand beside the clients,
        and are opened again where the service closes them.
        """

        async def stay_silent(until: float) -> None:
            while time.monotonic() < until:
                try:
                    reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
                except OSError:  # the service takes no more of them, which is its right
                    await asyncio.sleep(1)
                    continue
                with contextlib.suppress(TimeoutError, OSError):
                    async with asyncio.timeout(max(0.0, until - time.monotonic())):
                        await reader.read(1)
                writer.close()

        async def go() -> None:
            limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
            mine, room, until = itertools.cycle(self.questions), [answers], time.monotonic() + seconds
            quiet = [asyncio.create_task(stay_silent(until)) for _ in range(silent)]
            async with httpx.AsyncClient(timeout=120, limits=limits) as http:
                await asyncio.gather(*(self._client(http, mine, until, room, leaving) for _ in range(clients)))
            await asyncio.gather(*quiet)

        self.times.clear()
        began = time.monotonic()
        asyncio.run(go())
        return len(self.times) / (time.monotonic() - began)

    def told(self, name: str, rate: float) -> str:
        """A line about the last run."""
        p50, p95 = np.quantile(self.times, (0.5, 0.95))
        return f"{name}: {rate:.1f} answers/s over {len(self.times)}, p50 {p50:.2f} s, p95 {p95:.2f} s"


def main() -> None:
    """Print rates, times, faults and memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", default="starter")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--leaving", type=float, default=0.1, help="share of questions whose client hangs up")
    parser.add_argument("--silent", type=int, default=600, help="connections that say nothing, in the last run")
    parser.add_argument("--memory_answers", type=int, default=2000)
    settings = parser.parse_args()
    print(describe_machine())
    world = World.load()
    questions = world.questions("test", limit_per_kind=200)
    with tempfile.TemporaryDirectory() as folder:
        index = str(Path(folder) / "index")
        build_starter_index(Path(index), world.passages())
        agent = open_agent(settings.agent, index=index, lockstep=True)
        check = EvidenceCheck(names_of(agent.retriever))
        evaluated = run_benchmark(agent, questions, temperature=0.0, seed=0)
        wanted = {rollout.question.id: checked(rollout, check).text for rollout in evaluated}
        load = Load(questions, wanted)
        with service(settings.agent, index) as process:
            load.run(8, 5)
            alone = [load.run(1, settings.seconds / 3)]
            print(load.told("one client", alone[0]))
            before = process.memory_info().rss
            rate = load.run(settings.clients, settings.seconds, leaving=settings.leaving)
            print(load.told(f"{settings.clients} clients", rate))
            usual = np.quantile(load.times, 0.95)
            beside = load.run(settings.clients, settings.seconds, leaving=settings.leaving, silent=settings.silent)
            print(load.told(f"{settings.clients} clients beside {settings.silent} silent connections", beside))
            print(f"p95 beside silent connections / without: {np.quantile(load.times, 0.95) / usual:.2f}")
            after = process.memory_info().rss
            alone.append(load.run(1, settings.seconds / 3))
            print(load.told("one client again", alone[1]))
            print(f"ratio {rate / (sum(alone) / 2):.1f}; memory {before / 2**20:.0f} -> {after / 2**20:.0f} MiB")
            print(f"left {load.left}, failed {load.failed}, other than evaluated {load.other}")
        if settings.memory_answers:
            with service(settings.agent, index) as process:
                load.run(settings.clients, 3600, settings.memory_answers // 10)
                time.sleep(2 * EVERY_S)
                early = process.memory_info().rss
                load.run(settings.clients, 3600, settings.memory_answers - settings.memory_answers // 10)
                time.sleep(2 * EVERY_S)
                late = process.memory_info().rss
                print(
                    f"idle memory after {settings.memory_answers // 10} answers {early / 2**20:.0f} MiB, after "
                    f"{settings.memory_answers} {late / 2**20:.0f} MiB: ratio {late / early:.3f}"
                )


if __name__ == "__main__":
    main()
