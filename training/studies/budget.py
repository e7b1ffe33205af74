"""A cell with a budget: demonstrations for a share of it, reinforcement learning for the rest, and then measuring.

What was spent is what the program counted (`medagent.training.token_counts`), and not an estimate.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from medagent.errors import ConfigError
from medagent.files import write_whole
from medagent.training.callbacks.export import read_metrics
from medagent.training.token_counts import budget_units

EXAMPLES, RL = "examples", "rl"
TRAINED = (EXAMPLES, RL)
BENCHMARK = "medagent.evaluation.benchmarks.StarterBenchmark"


@dataclass(frozen=True)
class Budget:
    """What each arm of a study may spend, and what its agent is asked then.

    - `units`: tokens read forward, plus twice those read backward, over both parts.
    - `measured`: the arguments of a `StarterBenchmark` by the name of the set, such as seen and unseen.

    Raises:
        ConfigError: no units, or nothing to measure.
    """

    units: float
    measured: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a budget that buys nothing."""
        if not self.units > 0 or not self.measured:
            raise ConfigError(
                f"study: found a budget of {self.units} units and {len(self.measured)} sets to measure, wanted more "
                "than 0 of each."
            )


@dataclass(frozen=True)
class Demonstrated:
    """The first part of an arm: the share of the budget that it takes, and what `medagent sft` is given.

    `kind` names the demonstrations; arms of one kind are one curve.

    Raises:
        ConfigError: no share, or no file.
    """

    kind: str
    share: float
    configs: list[str]
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a part that is none."""
        if not 0 < self.share <= 1 or not self.configs:
            raise ConfigError(
                f"study: found a share of {self.share} for demonstrations and {len(self.configs)} files for them, "
                "wanted a share above 0 and up to 1, and one file or more. Leave `first` out for an arm without them."
            )


@dataclass(frozen=True)
class CellPlan:
    """Where a cell lies, its seed and its share; the arguments of `sft` and `train` without folder and budget."""

    folder: Path
    seed: int
    share: float
    sft: tuple[str, ...]
    train: tuple[str, ...]
    index: Path


@dataclass(frozen=True)
class Spent:
    """Tokens of a run, and its iterations."""

    forward: float = 0.0
    backward: float = 0.0
    iterations: int = 0

    @property
    def units(self) -> float:
        """Both in units of one token read forward."""
        return budget_units(self.forward, self.backward)


def spent_by(run: Path) -> Spent:
    """What a run has spent according to its metrics; nothing where there is no run."""
    rows = read_metrics(run)
    if not rows:
        return Spent()
    return Spent(rows[-1]["compute/forward_tokens"], rows[-1]["compute/backward_tokens"], len(rows))


def budget_stages(budget: Budget, plan: CellPlan) -> Iterator[list[str]]:
    """The arguments of `medagent` for each part of a cell, in turn.

    The next part is asked for once the one before has ended well. A part that is done is left out.
    """
    examples, rl = plan.folder / EXAMPLES, plan.folder / RL
    agent = examples / "agent"
    if plan.share:
        yield from _once(examples, [*plan.sft, *_ends(examples, budget.units * plan.share)])
    if plan.share < 1:
        left = budget.units - spent_by(examples).units
        start = [f"--model.policy_lora.start={agent}"] if plan.share else []
        yield from _once(rl, [*plan.train, *start, *_ends(rl, left)])
        agent = rl / "agent"
    for name, asked in budget.measured.items():
        yield from _once(
            plan.folder / name,
            [
                "evaluate",
                f"--agent={agent}",
                f"--benchmark={BENCHMARK}",
                f"--benchmark_args={json.dumps(asked)}",
                f"--index={plan.index}",
                f"--seed={plan.seed}",
                f"--out={plan.folder / name}",
            ],
        )


def _once(folder: Path, arguments: list[str]) -> Iterator[list[str]]:
    """The arguments, unless this part has ended well; it is marked beside its folder once the next one is asked for."""
    mark = folder.with_name(f"{folder.name}.done")
    if not mark.exists():
        yield arguments
        mark.touch()


def _ends(run: Path, units: float) -> list[str]:
    """A run in this folder that ends by its budget."""
    callback = {"class_path": "medagent.training.callbacks.ComputeBudget", "init_args": {"units": float(units)}}
    path = run.with_name(f"{run.name}-budget.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, yaml.safe_dump({"trainer": {"callbacks+": [callback]}}))
    return ["--config", str(path), f"--trainer.default_root_dir={run}"]


def measured(folder: Path, name: str) -> dict[str, float]:
    """Kind of question -> accuracy on one of the sets, from the report of `medagent evaluate`."""
    report = json.loads((folder / name / "report.json").read_text(encoding="utf-8"))
    return {kind: float(part["accuracy"]) for kind, part in sorted(report["by_type"].items())}
