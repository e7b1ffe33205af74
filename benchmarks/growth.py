"""How a training step's time and memory grow with rollouts, turns and context, beside TRL's.

    python -m benchmarks.growth --base smollm2                # needs the extra `bench`
    python -m benchmarks.growth --axis context --rivals ours

The job is `forced` of `benchmarks.rivals.job`. One number of it grows, the others stay. Ours is PPO with the evidence
critic, whose micro-batch holds at most `MOST_TOKENS` tokens. TRL's is GRPO, whose micro-batch holds as many rollouts as
fit that bound. Each point is one step in a process of its own, without a step before it. Prints milliseconds for each
token of the rollouts, the peak of memory, and both over those of the axis' first point: 1.0 is linear growth in time.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import describe_machine
from benchmarks.rivals.job import NUM_SAMPLES
from benchmarks.step import run
from medagent.starter.index import build_starter_index
from medagent.starter.world import World

MOST_TOKENS = 4096
PROMPT = 30  # tokens of the prompt, about


@dataclass(frozen=True)
class Point:
    """A job: `questions` with 8 samples each."""

    label: int
    questions: int
    turns: int
    turn_tokens: int
    observation_tokens: int

    def tokens(self) -> int:
        """Tokens of a rollout, about."""
        return PROMPT + self.turns * self.turn_tokens + (self.turns - 1) * self.observation_tokens


AXES = {
    "rollouts": [Point(8 * questions, questions, 2, 8, 48) for questions in (4, 16, 64)],
    "turns": [Point(turns, 1, turns, 32, 150) for turns in (1, 2, 4, 8)],
    "context": [Point(context, 1, 2, 32, context - 96) for context in (256, 1024, 4096)],
}


def measure(rival: str, point: Point, options: argparse.Namespace, index: str) -> dict[str, float]:
    """Seconds, tokens and bytes of one step."""
    arguments = ["--job", "forced", "--model", options.base, "--index", index, "--warm-up", "0"]
    arguments += ["--threads", str(options.threads), "--questions", str(point.questions)]
    arguments += ["--turns", str(point.turns), "--turn-tokens", str(point.turn_tokens)]
    arguments += ["--observation-tokens", str(point.observation_tokens)]
    if rival == "ours":
        figures = run("ours", *arguments, "--critic", "evidence", "--max-tokens", str(MOST_TOKENS))
        step = figures["steps"][-1]
        return {"seconds": step["seconds"], "tokens": step["tokens"], "bytes": figures["peak_bytes"]}
    fitting = [size for size in (1, 2, 4, 8) if size * point.tokens() <= MOST_TOKENS]
    figures = run("trl", *arguments, "--micro-batch", str(max(fitting, default=1)))
    tokens = point.tokens() * point.questions * NUM_SAMPLES
    return {"seconds": figures["steps"][-1]["seconds"], "tokens": tokens, "bytes": figures["peak_bytes"]}


def main() -> None:
    """Measure every point of the axes, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="smollm2")
    parser.add_argument("--axis", choices=list(AXES), nargs="+", default=list(AXES))
    parser.add_argument("--rivals", choices=["ours", "trl"], nargs="+", default=["ours", "trl"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="write every figure to this file")
    options = parser.parse_args()
    print(describe_machine())
    kept = []
    with tempfile.TemporaryDirectory() as folder:
        index = str(Path(folder) / "index")
        build_starter_index(Path(index), World.load().passages())
        for axis in options.axis:
            print(f"{axis:>9s}  " + "".join(f"{rival:>8s} ms/token (growth)  GiB (growth)" for rival in options.rivals))
            first: dict[str, tuple[float, float]] = {}
            ours_tokens = 0.0
            for point in AXES[axis]:
                cells = []
                for rival in options.rivals:
                    found = measure(rival, point, options, index)
                    # TRL keeps no count of its tokens: the job is the same, and so is their number.
                    ours_tokens = found["tokens"] if rival == "ours" else ours_tokens or found["tokens"]
                    each = found["seconds"] / ours_tokens * 1000, found["bytes"] / 2**30
                    base = first.setdefault(rival, each)
                    kept.append({"axis": axis, "point": point.label, "rival": rival, **found, "tokens": ours_tokens})
                    growth = each[0] / base[0], each[1] / base[1]
                    cells.append(f"{each[0]:12.1f} ({growth[0]:.2f})   {each[1]:10.2f} ({growth[1]:.2f})")
                print(f"{point.label:9d}  " + "  ".join(cells), flush=True)
                print(json.dumps(kept[-len(options.rivals) :]), file=sys.stderr)
                ours_tokens = 0.0
    if options.keep:
        options.keep.write_text(json.dumps(kept, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
