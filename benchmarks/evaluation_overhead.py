"""What the evaluation loop adds to the policy's own time.

    python -m benchmarks.evaluation_overhead [--questions 2000] [--concurrent 64] [--turns 2] [--repeats 3]

The policy sleeps 0.5 s per turn. The ideal is questions x turns / concurrent, rounded up to whole waves, x 0.5 s.
Grading, writing and the running interval are inside the measured time.

Prints the seconds of each repeat beside the ideal, and the median of their ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.common import describe_machine
from medagent.agent import Agent, Limits
from medagent.evaluation.modes import Mode
from medagent.evaluation.run import Plan, run_plan
from medagent.policies.chat_endpoint import byte_tokenizer
from medagent.policies.scripted import ScriptedPolicy, ScriptedSession
from medagent.policy import SampledTurn
from medagent.protocol import Block, TagProtocol
from medagent.retrieval.passages import Hit, Passage
from medagent.types import Question

TURN_S = 0.5


class SleepingSession(ScriptedSession):
    """Sleeps before each turn, as a policy that waits for an accelerator would."""

    async def sample(self, *, max_tokens: int) -> SampledTurn:
        """See `Session.sample`."""
        await asyncio.sleep(TURN_S)
        return await super().sample(max_tokens=max_tokens)


class SleepingPolicy(ScriptedPolicy):
    """A scripted policy whose turns take `TURN_S`."""

    def open(self, *, seed: int, temperature: float, blocks: tuple[Block, ...]) -> ScriptedSession:
        """See `Policy.open`."""
        return SleepingSession(self.tokenizer, self._script, blocks)


class Instant:
    """A retriever that costs nothing."""

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Hit]]:
        """See `Retriever.search`."""
        return [[Hit(Passage("p", "title", "some text " * 20), 1.0)] * top_k for _ in queries]


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("questions", 2000), ("concurrent", 64), ("turns", 2), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()

    def script(read: str, turn: int) -> str:
        return "<answer>(A) [1]</answer>" if turn + 1 >= asked.turns else "<search>what</search>"

    questions = [
        Question(f"q{i}", f"What is {i}?", ("one", "two", "three", "four"), "A") for i in range(asked.questions)
    ]
    agent = Agent(
        SleepingPolicy(byte_tokenizer(), script), Instant(), TagProtocol(instructions=""), Limits(8, 500, 2_000, 50_000)
    )
    ideal = math.ceil(asked.questions / asked.concurrent) * asked.turns * TURN_S
    print(describe_machine())
    ratios = []
    for _ in range(asked.repeats):
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            run_plan(agent, questions, Plan((Mode.SEARCH,)), Path(folder), identity={}, concurrency=asked.concurrent)
            ratios.append((time.perf_counter() - started) / ideal)
            print(f"  {ratios[-1] * ideal:6.2f} s, ideal {ideal:.2f} s: {ratios[-1]:.3f}")
    print(f"median of {asked.repeats}: {median(ratios):.3f} times the ideal")


if __name__ == "__main__":
    main()
