"""Prints the tables and tests of a study from the numbers kept in studies/stability/results.

python -m studies.stability.tools.print_results correction-forms
python -m studies.stability.tools.print_results collapse --curves /tmp/collapse.svg
"""

from __future__ import annotations

import argparse
import csv
import gzip
import math
from collections import defaultdict
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory

from medagent.errors import ConfigError
from medagent.training.studies.report import Row, report
from medagent.training.studies.study import known_studies, load_study
from studies.stability.tools.folders import RESULTS

METRICS = "-metrics.csv.gz"
# Arms that have the settings of an arm of another study, whose runs stand for them. Where an arm of `collapse` was run
# under both names with the same seed, the numbers were equal.
SAME = {
    "correction-forms": {
        "none": ("collapse", "Turn-PPO"),
        "relative on the step, logits": ("collapse", "ST-PPO"),
        "constant, a quarter of the step": ("collapse", "Turn-PPO at a quarter of its step"),
    },
    "correction-forms-grid": {
        "none": ("collapse", "Turn-PPO"),
        "relative on the step, logits": ("collapse", "ST-PPO"),
    },
    "equal-clip-ranges": {
        "S-PPO": ("collapse", "S-PPO"),
        "ST-PPO": ("collapse", "ST-PPO"),
        "Turn-PPO (0.2)": ("collapse", "Turn-PPO (0.2)"),
    },
    "token-clip-range": {
        "PPO at 0.2": ("collapse", "PPO"),
        "S-PPO at 0.2": ("collapse", "S-PPO"),
        "Turn-PPO": ("collapse", "Turn-PPO"),
        "ST-PPO": ("collapse", "ST-PPO"),
    },
    "matched-step-decoupled": {
        "S-PPO": ("decoupled", "S-PPO"),
        "ST-PPO": ("decoupled", "ST-PPO"),
        "SO-GRPO": ("without-critic-decoupled", "SO-GRPO"),
    },
    "matched-step-no-stress": {
        "S-PPO": ("no-stress", "S-PPO"),
        "ST-PPO": ("no-stress", "ST-PPO"),
        "SO-GRPO": ("without-critic-no-stress", "SO-GRPO"),
    },
}


def study_of(name: str) -> str:
    """The study that kept numbers belong to: `name` itself, or what stands before the name of a base.

    Raises:
        ConfigError: no known study is called so.
    """
    matching = [known for known in known_studies() if f"{name}-".startswith(f"{known}-")]
    if not matching:
        raise ConfigError(f"study {name!r}: found no study of this name. Name one of {', '.join(known_studies())}.")
    return max(matching, key=len)


def kept_runs(name: str, *, folder: Path = RESULTS, reference: bool = False) -> dict[tuple[str, int], list[Row]]:
    """The rows (one per iteration) of every run of study `name`, or `name-BASE`, by (arm, seed).

    Arms that it shares with another study are taken from there, for its own seeds. With `reference` they are the runs
    that were made again beside its own.

    Raises:
        ConfigError: the study is unknown, no such numbers are kept, or an arm has numbers in two places.
    """
    study = load_study(study_of(name))
    path = folder / f"{name}{METRICS}"
    if not path.exists():
        kept = ", ".join(sorted(file.name.removesuffix(METRICS) for file in folder.glob(f"*{METRICS}")))
        raise ConfigError(
            f"study {name!r}: no numbers are kept in {folder}. Run it (medagent study {name}), or name one of: {kept}."
        )
    runs, shared = read_kept(path), SAME.get(name, {})
    if reference:
        beside = folder / f"{name}-reference.csv.gz"
        if not beside.exists():
            raise ConfigError(
                f"study {name!r}: {beside} not found, so its borrowed arms were not run again. Leave --reference out."
            )
        return runs | read_kept(beside)
    if shared:
        others = {lender: read_kept(folder / f"{lender}{METRICS}") for lender, _ in shared.values()}
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


def read_kept(path: Path) -> dict[tuple[str, int], list[Row]]:
    """The rows (one per iteration) that a compressed CSV keeps, by (arm, seed)."""
    runs: dict[tuple[str, int], list[Row]] = defaultdict(list)
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
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
    parser.add_argument("name", help="collapse, stale, model-sizes-starter-thinking-22, ...")
    parser.add_argument("--curves", type=Path, help="draw the curves of all arms to this file (SVG)")
    parser.add_argument("--reference", action="store_true", help="take borrowed arms as they were run again beside it")
    options = parser.parse_args()
    runs = kept_runs(options.name, reference=options.reference)
    study = load_study(study_of(options.name))
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
