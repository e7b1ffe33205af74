"""Prints the tables and tests of a study from the numbers kept in studies/stability/results.

python -m studies.stability.tools.print_results correction-forms
"""

from __future__ import annotations

import argparse
from pathlib import Path

from medagent.errors import ConfigError
from studies.design import known_studies, load_study
from studies.report import Row, read_rows, report

RESULTS = Path(__file__).parents[1] / "results"
RUNS = "-runs.csv"
# Arms that have the settings of an arm of another study, whose runs stand for them.
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


def kept_runs(name: str) -> list[Row]:
    """The runs of study `name`, or `name-BASE`; arms of another study are taken from there, for this one's seeds.

    Raises:
        ConfigError: the study is unknown, or no such numbers are kept.
    """
    study, path = load_study(study_of(name)), RESULTS / f"{name}{RUNS}"
    if not path.exists():
        kept = ", ".join(sorted(file.name.removesuffix(RUNS) for file in RESULTS.glob(f"*{RUNS}")))
        raise ConfigError(f"study {name!r}: no numbers are kept in {RESULTS}. Run it, or name one of: {kept}.")
    borrowed = [
        {**run, "arm": arm}
        for arm, (lender, theirs) in SAME.get(name, {}).items()
        for run in read_rows(RESULTS / f"{lender}{RUNS}")
        if run["arm"] == theirs and run["seed"] in study.seeds
    ]
    return read_rows(path) + borrowed


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="collapse, stale, model-sizes-starter-thinking-22, ...")
    name = parser.parse_args().name
    print(report(load_study(study_of(name)), kept_runs(name)))


if __name__ == "__main__":
    main()
