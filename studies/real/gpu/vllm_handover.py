"""Compares the tokens that vLLM and the in-process engine sample greedily from an agent, over whole dialogues.

python -m studies.real.gpu.vllm_handover --agent AGENT --out FILE
"""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from jsonargparse import auto_cli

from benchmarks.common import describe_machine
from medagent.agent import Job
from medagent.agent_folder import open_agent
from medagent.engines.in_process import InProcessEngine
from medagent.engines.vllm import VllmEngine
from medagent.evaluation.benchmarks.source import BenchmarkSource
from medagent.files import write_whole


def main(agent: str, out: Path, benchmark: str = "starter", path: str | None = None, dialogues: int = 8) -> None:
    """Ask an exported agent a benchmark's first questions with both, and write a JSON file."""
    questions = BenchmarkSource(benchmark, path).open().questions()[:dialogues]
    jobs = [Job(question, seed=number, temperature=0.0) for number, question in enumerate(questions)]
    found = []
    for engine in (InProcessEngine(), VllmEngine()):
        with closing(engine):
            found.append(open_agent(agent, index=None, lockstep=True, engine=engine).run_all(jobs))
    rows = [{"in process": ours.token_ids, "vllm": theirs.token_ids} for ours, theirs in zip(*found, strict=True)]
    equal = sum(row["in process"] == row["vllm"] for row in rows)
    told = {"machine": describe_machine(), "equal": equal, "of": len(rows), "dialogues": rows}
    write_whole(out, json.dumps(told) + "\n")
    print(f"{equal} of {len(rows)} dialogues have equal tokens.")


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
