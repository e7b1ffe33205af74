"""What a study compares: a grid of arms x seeds, each cell a run in a folder of its own."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser

from medagent.agent_spec import SPEC_FILE, read_spec
from medagent.errors import ConfigError, MedagentError
from medagent.models.base_models import STARTER, model_path
from medagent.training.studies.budget import Budget, Demonstrated

CONFIGS = Path(__file__).parents[2] / "configs"
STUDIES = CONFIGS.parent / "studies"  # part of a checkout, not of the installed package
PLAN, STARTS, WEIGHTS = "plan.json", "starts.json", "model.safetensors"


@dataclass(frozen=True)
class Arm:
    """One row of the comparison: configuration files, and settings on top; and what comes first."""

    configs: list[str]
    settings: dict[str, Any] = field(default_factory=dict)
    first: Demonstrated | None = None

    @property
    def files(self) -> list[str]:
        """The names of its configuration files."""
        return [*self.configs, *(self.first.configs if self.first else [])]


@dataclass(frozen=True)
class Study:
    """What is compared: every arm is trained with every seed on the same task.

    - `task`: configuration files that all arms begin with.
    - `tuned`: the arm that shows what can be learnt without stress. Another arm counts as stable only if its best is at
      most five points lower.
    - `compared`: pairs of arms whose accuracies are tested against each other, seed by seed.
    - `base`: what all arms train: the packaged base, or a folder of `medagent starter build` or `lengthen`, whose
      limits then hold for turns.
    - `budget`: what every arm may spend. Without one an arm is trained for as long as its files say.
    - `folder`: where the study's own files lie. `load_study` gives that of the YAML file.

    Raises:
        ConfigError: no arm, a repeated seed, an unknown arm, a file that does not exist, or a base without weights.
    """

    title: str
    task: list[str]
    arms: dict[str, Arm]
    seeds: list[int]
    tuned: str | None = None
    compared: list[tuple[str, str]] = field(default_factory=list)
    base: str = STARTER
    budget: Budget | None = None
    folder: Path = Path()

    def __post_init__(self) -> None:
        """Refuse a study that cannot run."""
        if not self.arms or not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ConfigError(
                f"study {self.title!r}: wanted at least one arm, and seeds that differ; found {self.seeds}."
            )
        if self.tuned is not None and self.tuned not in self.arms:
            raise ConfigError(f"study {self.title!r}: tuned is {self.tuned!r}, wanted one of {', '.join(self.arms)}.")
        for arm in (arm for pair in self.compared for arm in pair):
            if arm not in self.arms:
                raise ConfigError(
                    f"study {self.title!r}: compared names {arm!r}, wanted one of {', '.join(self.arms)}."
                )
        slugs = {_slug(name) for name in self.arms}
        if len(slugs) < len(self.arms):
            raise ConfigError(
                f"study {self.title!r}: two arms would share a folder; name them apart by letters or digits."
            )
        for name in self.files:
            self.path(name)
        if self.budget is None and any(arm.first for arm in self.arms.values()):
            raise ConfigError(
                f"study {self.title!r}: found demonstrations first, and no budget to share. Give a budget."
            )
        for name in (SPEC_FILE, WEIGHTS):
            if not (Path(model_path(self.base)) / name).is_file():
                raise ConfigError(
                    f"study {self.title!r}: the base {self.base} has no {name}. Give a folder that `medagent starter "
                    "build` or `medagent starter lengthen` wrote."
                )

    @property
    def files(self) -> list[str]:
        """The names of all configuration files."""
        return [*self.task, *(name for arm in self.arms.values() for name in arm.files)]

    def path(self, name: str) -> Path:
        """A configuration file by its path from the study's folder, configs/ or the working folder, in that order."""
        for path in (self.folder / name, CONFIGS / name, Path(name)):
            if path.is_file():
                return path
        raise ConfigError(
            f"study {self.title!r}: found no configuration file {name}, neither in {self.folder.resolve()} nor in "
            f"{CONFIGS}. Give its path from one of these."
        )

    def measures_every_iteration(self, arm: str) -> bool:
        """Whether the callbacks that an arm's files leave in force evaluate after every iteration."""
        callbacks: list[dict[str, Any]] = []
        for name in (*self.task, *self.arms[arm].configs):
            trainer = (yaml.safe_load(self.path(name).read_text(encoding="utf-8")) or {}).get("trainer") or {}
            callbacks = [
                *(trainer.get("callbacks") or ([] if "callbacks" in trainer else callbacks)),
                *(trainer.get("callbacks+") or []),
            ]
        return any(
            str(each.get("class_path")).endswith("HeldOutEvaluation")
            and (each.get("init_args") or {}).get("every") == 1
            for each in callbacks
        )

    @property
    def limits(self) -> dict[str, Any]:
        """The limits of a rollout that a base other than the packaged one brings, as settings."""
        if self.base == STARTER:
            return {}
        limits = read_spec(Path(self.base)).limits
        return {f"data.agent.limits.{name}": value for name, value in asdict(limits).items()}


@dataclass(frozen=True)
class Cell:
    """One run of a study."""

    arm: str
    seed: int
    folder: Path

    @property
    def finished(self) -> bool:
        """Whether it ran to its end."""
        return any(start["returncode"] == 0 for start in self.starts)

    @property
    def wall_s(self) -> float:
        """Seconds that it took, over all its starts."""
        return float(sum(start["wall_s"] for start in self.starts))

    @property
    def starts(self) -> list[dict[str, Any]]:
        """Every start of it: seconds, exit status (none while it runs), and the fields of `made_by`."""
        path = self.folder / STARTS
        return list(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else []


def known_studies() -> dict[str, Path]:
    """The studies of a checkout by name: studies/*/configs/NAME.yaml. None in an installed package."""
    return {path.stem: path for path in sorted(STUDIES.glob("*/configs/*.yaml"), key=lambda each: each.stem)}


def load_study(name: str) -> Study:
    """A study by its name in a checkout (studies/*/configs/NAME.yaml), or from a YAML file.

    Raises:
        ConfigError: no such study or file, or one that cannot be run.
    """
    known = known_studies()
    path = known.get(name, Path(name))
    if not path.is_file():
        remedy = f"Name one of {', '.join(known)}," if known else f"Get a checkout (there is no {STUDIES}),"
        raise ConfigError(f"study {name}: found no study of this name and no such file. {remedy} or give a YAML file.")
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Study, skip={"folder"})
    try:
        values = parser.instantiate_classes(parser.parse_path(str(path)))
    except Exception as error:  # jsonargparse raises several kinds
        if isinstance(error, MedagentError):
            raise
        raise ConfigError(f"study {path}: {error}") from error
    study = Study(**values.as_dict(), folder=path.parent)
    for arm in study.arms:
        if study.budget is None and not study.measures_every_iteration(arm):
            raise ConfigError(
                f"study {study.title!r}: arm {arm} is not measured on held-out questions after every iteration, "
                "which verdicts need. Add a HeldOutEvaluation with every: 1 to its task."
            )
    return study


def study_cells(study: Study, out: Path) -> list[Cell]:
    """Every run of a study, seeds outside and arms inside.

    A study that is cut short has thus compared all arms on the seeds it has.
    """
    return [Cell(arm, seed, out / "runs" / f"{_slug(arm)}-{seed}") for seed in study.seeds for arm in study.arms]


def kept_seeds(out: Path) -> list[int]:
    """The seeds of all runs in a study's folder, whoever asked for them."""
    return sorted({json.loads(path.read_text(encoding="utf-8"))["seed"] for path in out.glob(f"runs/*/{PLAN}")})


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name.lower())
