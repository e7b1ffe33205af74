"""Prints the tables and tests of a study from the numbers kept in docs/stability.

python -m benchmarks.committed forms    # or any other whose metrics.csv lies there
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

from medagent.errors import ConfigError
from training.study import load_study
from training.study_report import Row, report

FOLDER = Path(__file__).parent.parent / "docs" / "stability"
# Arms that have the settings of an arm of `collapse`, whose runs stand for them; one seed run under both names gave the same numbers.
SAME = {
    "forms": {
        "none": "Turn-PPO",
        "relative on the step, logits": "ST-PPO",
        "constant, a quarter of the step": "Turn-PPO at a quarter of its step",
    },
    "token_range": {"PPO at 0.2": "PPO", "S-PPO at 0.2": "S-PPO", "Turn-PPO": "Turn-PPO", "ST-PPO": "ST-PPO"},
}


def kept_runs(name: str, *, folder: Path = FOLDER) -> dict[tuple[str, int], list[Row]]:
    """The rows (one an iteration) of every run of study `name` (or `name-BASE`, with another base) in `folder`, by (arm, seed); arms that it shares with `collapse` are taken from there, for the study's own seeds.

    Raises ConfigError where the study is unknown or no numbers of it are kept.
    """
    study = load_study(name.partition("-")[0])
    path = folder / f"{name.removeprefix('transfer_')}-metrics.csv"
    if not path.exists():
        kept = ", ".join(sorted(file.name.removesuffix("-metrics.csv") for file in folder.glob("*-metrics.csv")))
        raise ConfigError(
            f"study {name!r}: no numbers are kept in {folder}. Run it (medagent study {name}), or name one of: {kept}."
        )
    runs, shared = _read(path), SAME.get(name, {})
    if shared:
        others = _read(folder / "collapse-metrics.csv")
        borrowed = {
            (arm, seed): rows
            for arm, theirs in shared.items()
            for (a, seed), rows in others.items()
            if a == theirs and seed in study.seeds
        }
        if both := sorted(set(runs) & set(borrowed)):
            raise ConfigError(
                f"study {name!r}: {both} have numbers of their own and borrowed ones. Take them out of {path.name} or of SAME."
            )
        runs |= borrowed
    return runs


def _read(path: Path) -> dict[tuple[str, int], list[Row]]:
    runs: dict[tuple[str, int], list[Row]] = defaultdict(list)
    with path.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            arm, seed, _ = line.pop("arm"), int(line.pop("seed")), line.pop("iteration")
            runs[arm, seed].append({column: float(value) for column, value in line.items() if value})
    return dict(runs)


def mean_scale(rows: list[Row]) -> float:
    """The correction's scale averaged over iterations; nan without one."""
    scales = [row["policy/clip_bias_scale"] for row in rows if "policy/clip_bias_scale" in row]
    return sum(scales) / len(scales) if scales else math.nan


def main() -> None:
    """Print the report, and the mean scale of each arm that has one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="collapse, controls, transfer_stale, bases-starter-thinking-22, ...")
    name = parser.parse_args().name
    study, runs = load_study(name.partition("-")[0]), kept_runs(name)
    with TemporaryDirectory() as scratch:
        print(report(study, runs, {}, Path(scratch)))
    for arm in study.arms:
        scales = [mean_scale(rows) for (a, _), rows in runs.items() if a == arm]
        if scales and not any(map(math.isnan, scales)):
            print(f"mean scale of {arm}: {sum(scales) / len(scales):.2f} ({min(scales):.2f} to {max(scales):.2f})")


if __name__ == "__main__":
    main()
