"""The cost of the clipping-bias correction: an iteration with it, in each space and normaliser, beside one without.

python -m studies.stability.tools.correction --repeats 3

Arms take turns within a repeat, in a setting in which tokens are clipped. Every arm begins from the same weights and
seed. Quote the ratio of the medians to plain PPO's.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import mean, median

from benchmarks.common import describe_machine
from medagent.evaluation.viewer.recorded import read_metrics
from medagent.starter.index import build_starter_index
from medagent.starter.world import World
from medagent.training.command import train_command
from studies.design import CONFIGS, STUDIES

PARTS = STUDIES / "stability" / "configs" / "parts"
ARMS = {
    "PPO": None,
    "relative, logits": "relative_step_logits",
    "relative, parameters": "relative_step_parameters",
    "triggered, parameters": "triggered_step_parameters",
}


def main() -> None:
    """Train each arm for a few iterations, in turns, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="times that every arm is run")
    parser.add_argument("--iterations", type=int, default=4, help="the first is left out")
    options = parser.parse_args()
    print(describe_machine())
    times: dict[str, list[tuple[float, float]]] = defaultdict(list)
    clipped: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build_starter_index(folder / "index", World.load().passages(("train", "validation")))
        for repeat in range(options.repeats):
            for arm, correction in ARMS.items():
                configs = [CONFIGS / "experiments" / "starter.yaml", PARTS / "reuse.yaml"]
                if correction:
                    configs.append(PARTS / "correction" / f"{correction}.yaml")
                run = train_command(
                    [
                        *(argument for path in configs for argument in ("--config", str(path))),
                        f"--trainer.default_root_dir={folder / f'{repeat}-{arm}'}",
                        f"--trainer.max_epochs={options.iterations}",
                        f"--data.retriever.init_args.retriever.init_args.index={folder / 'index'}",
                    ]
                )
                for row in read_metrics(run)[1:]:
                    times[arm].append((row["time/update"], row["time/update"] + row["time/rollout"]))
                    clipped[arm].append(row["policy/clip_fraction"])
    plain = [median(column) for column in zip(*times["PPO"], strict=True)]
    for arm, rows in times.items():
        update, whole = (median(column) for column in zip(*rows, strict=True))
        print(
            f"{arm:24s} update {update:6.2f} s, {update / plain[0]:.3f} of PPO's   iteration {whole:6.2f} s, "
            f"{whole / plain[1]:.3f} of PPO's   clip fraction {mean(clipped[arm]):.1%}   n = {len(rows)}"
        )


if __name__ == "__main__":
    main()
