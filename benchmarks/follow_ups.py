"""Whether the second question of a dialogue is answered as well as the same question asked alone.

    python -m benchmarks.follow_ups --agent runs/demo/agent
    python -m benchmarks.follow_ups --agent runs/demo/agent --rewriter hf:smollm2

A line of `benchmarks/questions/follow_ups.jsonl` has a `first` question, its `follow_up`, the follow-up asked `alone`,
and the `answer`. The rules of `medagent.conversation` complete the follow-up, or with `--rewriter` a model, by a name
of `medagent.loading.open_agent`. Prints how many of both are right, and in how many dialogues the follow-up is right
wherever the question alone is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import describe_machine
from medagent.agent import Job
from medagent.conversation import standing_alone
from medagent.evaluation.grading.grade import grade
from medagent.loading import open_agent
from medagent.rewriting import ModelRewriter
from medagent.types import Question


def main() -> None:
    """Ask both ways and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", default="runs/demo/agent")
    parser.add_argument("--index", help="by default the agent's own")
    parser.add_argument("--questions", type=Path, default=Path("benchmarks/questions/follow_ups.jsonl"))
    parser.add_argument("--rewriter", help='a model instead of rules, such as "hf:smollm2"')
    options = parser.parse_args()
    print(describe_machine())
    rows = [json.loads(line) for line in options.questions.read_text(encoding="utf-8").splitlines()]
    dialogues = [(row["first"], row["follow_up"]) for row in rows]
    completed = [standing_alone(dialogue) for dialogue in dialogues]
    if options.rewriter:
        completed = _by_model(options.rewriter, dialogues)
    agent = open_agent(options.agent, index=options.index)
    texts = [*completed, *(row["alone"] for row in rows)]
    answers = [row["answer"] for row in rows] * 2
    jobs = [Job(Question(str(at), text, answer=answers[at]), temperature=0.0) for at, text in enumerate(texts)]
    right = [grade(rollout).correct for rollout in agent.run_all(jobs)]
    followed, alone = right[: len(rows)], right[len(rows) :]
    as_well = [one or not other for one, other in zip(followed, alone, strict=True)]
    for row, text, good in zip(rows, completed, as_well, strict=True):
        if not good:
            print(f"  {row['first']} {row['follow_up']} -> {text}")
    print(f"right: {sum(followed)} of {len(rows)} as follow-ups, {sum(alone)} alone; as well as alone: {sum(as_well)}")


def _by_model(name: str, dialogues: Sequence[tuple[str, str]]) -> list[str]:
    """The follow-ups as a model completes them; prints how many of its replies counted."""
    policy = open_agent(name, index=None, must_search=False).policy
    rewriter, counted = ModelRewriter(timeout_s=600), 0
    completed = []
    for dialogue in dialogues:
        whole = asyncio.run(rewriter(dialogue, policy))
        counted += whole != standing_alone(dialogue)
        completed.append(whole)
    print(f"{name}: {counted} of {len(dialogues)} follow-ups are other than the rules'")
    return completed


if __name__ == "__main__":
    main()
