"""Prints the tables and tests of a study from the numbers kept in docs/stability.

python -m studies.stability.tools.committed forms    # or any other whose metrics.csv lies there; --curves FILE draws its curves, --reference takes borrowed arms as run again beside it
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import defaultdict
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory

from medagent.errors import ConfigError
from training.studies.report import Row, report
from training.studies.study import load_study

FOLDER = Path(__file__).parents[1] / "results"
# Arms that have the settings of an arm of another study, whose runs stand for them; where one of `collapse` was run
# under both names, with one seed, the numbers were the same.
SAME = {
    "forms": {
        "none": ("collapse", "Turn-PPO"),
        "relative on the step, logits": ("collapse", "ST-PPO"),
        "constant, a quarter of the step": ("collapse", "Turn-PPO at a quarter of its step"),
    },
    "forms_grid": {
        "none": ("collapse", "Turn-PPO"),
        "relative on the step, logits": ("collapse", "ST-PPO"),
    },
    "equal_range": {
        "S-PPO": ("collapse", "S-PPO"),
        "ST-PPO": ("collapse", "ST-PPO"),
        "Turn-PPO (0.2)": ("collapse", "Turn-PPO (0.2)"),
    },
    "token_range": {
        "PPO at 0.2": ("collapse", "PPO"),
        "S-PPO at 0.2": ("collapse", "S-PPO"),
        "Turn-PPO": ("collapse", "Turn-PPO"),
        "ST-PPO": ("collapse", "ST-PPO"),
    },
    "matched_decoupled": {
        "S-PPO": ("transfer_decoupled", "S-PPO"),
        "ST-PPO": ("transfer_decoupled", "ST-PPO"),
        "SO-GRPO": ("groups_decoupled", "SO-GRPO"),
    },
    "matched_gentle": {
        "S-PPO": ("transfer_gentle", "S-PPO"),
        "ST-PPO": ("transfer_gentle", "ST-PPO"),
        "SO-GRPO": ("groups_gentle", "SO-GRPO"),
    },
}


def kept_runs(name: str, *, folder: Path = FOLDER, reference: bool = False) -> dict[tuple[str, int], list[Row]]:
    """The rows (one an iteration) of every run of study `name` (or `name-BASE`, with another base) in `folder`, by (arm, seed); arms that it shares with another study are taken from there, for its own seeds, or with `reference` from the runs of them that were made again beside its own.

    Raises ConfigError where the study is unknown, or no such numbers of it are kept.
    """
    study = load_study(name.partition("-")[0])
    path = _file(folder, name)
    if not path.exists():
        kept = ", ".join(sorted(file.name.removesuffix("-metrics.csv") for file in folder.glob("*-metrics.csv")))
        raise ConfigError(
            f"study {name!r}: no numbers are kept in {folder}. Run it (medagent study {name}), or name one of: {kept}."
        )
    runs, shared = _read(path), SAME.get(name, {})
    if reference:
        beside = folder / f"{name}-reference.csv"
        if not beside.exists():
            raise ConfigError(
                f"study {name!r}: {beside} not found, so its borrowed arms were not run again. Leave --reference out."
            )
        return runs | _read(beside)
    if shared:
        others = {lender: _read(_file(folder, lender)) for lender, _ in shared.values()}
        borrowed = {
            (arm, seed): rows
            for arm, (lender, theirs) in shared.items()
            for (a, seed), rows in others[lender].items()
            if a == theirs and seed in study.seeds
        }
        if both := sorted(set(runs) & set(borrowed)):
            raise ConfigError(
                f"study {name!r}: {both} have numbers of their own and borrowed ones. Take them out of {path.name} "
                "or of SAME."
            )
        runs |= borrowed
    return runs


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name.removeprefix('transfer_')}-metrics.csv"


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
    parser.add_argument("--curves", type=Path, help="draw the curves of all its arms, borrowed ones too, to this file")
    parser.add_argument(
        "--reference", action="store_true", help="borrowed arms as they were run again beside the study's own"
    )
    options = parser.parse_args()
    name = options.name
    study, runs = load_study(name.partition("-")[0]), kept_runs(name, reference=options.reference)
    with TemporaryDirectory() as scratch:
        print(report(study, runs, {}, Path(scratch)))
        if options.curves:
            copyfile(Path(scratch) / "figures.svg", options.curves)
    for arm in study.arms:
        scales = [mean_scale(rows) for (a, _), rows in runs.items() if a == arm]
        if scales and not any(map(math.isnan, scales)):
            print(f"mean scale of {arm}: {sum(scales) / len(scales):.2f} ({min(scales):.2f} to {max(scales):.2f})")


if __name__ == "__main__":
    main()
