"""Asks 500 questions slowly, noting each asking in asked.log; a test kills it in the middle.

Usage: kill_worker.py FOLDER.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from medagent.agent import Agent
from medagent.evaluation.modes import Mode
from medagent.evaluation.run import Plan, run_plan
from medagent.policies.chat_endpoint import byte_tokenizer
from medagent.policies.scripted import ScriptedPolicy, ScriptedSession
from medagent.policy import SampledTurn
from medagent.protocol import Block
from medagent.retrieval.controls import NoRetriever
from medagent.types import Question


class SlowSession(ScriptedSession):
    async def sample(self, *, max_tokens: int) -> SampledTurn:
        await asyncio.sleep(0.02)
        return await super().sample(max_tokens=max_tokens)


class SlowPolicy(ScriptedPolicy):
    def open(self, *, seed: int, temperature: float, blocks: tuple[Block, ...]) -> ScriptedSession:
        letter = "ABCD"[seed % 4]  # an answer that follows from the seed, as a sample does
        return SlowSession(
            self.tokenizer, lambda read, turn: self._script(read, turn) + f"<answer>({letter})</answer>", blocks
        )


def main(folder: Path) -> None:
    def script(read: str, turn: int) -> str:
        with (folder / "asked.log").open("a") as file:
            file.write(read.split("Question: number ")[1].split("?")[0] + "\n")
        return ""

    questions = [Question(f"q{i}", f"number {i}?", ("a", "b", "c", "d"), "ABCD"[i % 4]) for i in range(500)]
    agent = Agent(SlowPolicy(byte_tokenizer(), script), NoRetriever())
    plan = Plan((Mode.SEARCH,), temperature=1.0)
    run_plan(agent, questions, plan, folder / "run", identity={"agent": "slow"}, concurrency=16)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
