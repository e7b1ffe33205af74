"""The design of a study: a grid of arms and seeds, each cell a run in a folder of its own."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser

from medagent.agent_spec import SPEC_FILE, read_spec
from medagent.errors import ConfigError, MedagentError
from medagent.models.base_models import STARTER, base_sha256, model_path
from medagent.models.gguf_cache import digest_of

STUDIES = Path(__file__).parent
CONFIGS = STUDIES.parent / "configs"
PLAN, STARTS, WEIGHTS = "plan.json", "starts.json", "model.safetensors"
EXAMPLES, RL = "examples", "rl"


@dataclass(frozen=True)
class Budget:
    """The units that each arm may spend, tokens read forward plus twice those read backward, and what is asked then.

    `measured` has the arguments of a `StarterBenchmark` by the name of the set, such as seen and unseen.
    """

    units: float
    measured: dict[str, dict[str, Any]]

    def __post_init__(self) -> None:
        """Refuse a budget that buys nothing."""
        if not self.units > 0 or not self.measured:
            raise ConfigError(
                f"study: found a budget of {self.units} units and {len(self.measured)} sets to measure, wanted more "
                "than 0 of each."
            )


@dataclass(frozen=True)
class Demonstrated:
    """The share of the budget that an arm first spends on `medagent sft`, and what that is given.

    `kind` names the demonstrations; arms of one kind are one curve.
    """

    kind: str
    share: float
    configs: list[str]
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a part without a share or a file."""
        if not 0 < self.share <= 1 or not self.configs:
            raise ConfigError(
                f"study: found a share of {self.share} for demonstrations and {len(self.configs)} files for them, "
                "wanted a share above 0 and up to 1, and one file or more. Leave `first` out for an arm without them."
            )


@dataclass(frozen=True)
class Arm:
    """One row of the comparison: configuration files and settings on top, and the demonstrations that come first.

    An arm that is not `trained` is the agent after the study's examples. `share_of` names an earlier arm with the
    clipping-bias correction: every step of this one is cut by the mean scale that it had with the same seed.
    """

    configs: list[str]
    settings: dict[str, Any] = field(default_factory=dict)
    first: Demonstrated | None = None
    trained: bool = True
    share_of: str = ""


@dataclass(frozen=True)
class Study:
    """A comparison: every arm is trained with every seed on the same task.

    - `task`: configuration files that all arms begin with.
    - `compared`: pairs of arms whose accuracies are tested against each other, seed by seed.
    - `base`: what all arms train: the packaged base, or a folder that `python -m studies.starter_base` wrote, whose
      limits then hold for turns. With an `index`, any base model.
    - `budget`: what every arm may spend. Without one an arm is trained for as long as its files say.
    - `index`: the folder of the index that everything searches. By default it is the starter world's, made here.
    - `examples`: files of the `medagent sft` that runs once per seed. Every arm starts from its agent.
    - `asked`: arguments of a `medagent evaluate` by its name. Each arm's agent is evaluated so at its end.
    - `watched`: the metric of an iteration by which a run is summed up.
    - `folder`: where the study's own files lie. `load_study` gives that of the YAML file.

    Raises:
        ConfigError: no arm, a repeated seed, an unknown arm, a file that does not exist, a base without weights, or
            parts that do not go together.
    """

    title: str
    task: list[str]
    arms: dict[str, Arm]
    seeds: list[int]
    compared: list[tuple[str, str]] = field(default_factory=list)
    base: str = STARTER
    budget: Budget | None = None
    index: str = ""
    examples: list[str] = field(default_factory=list)
    asked: dict[str, dict[str, Any]] = field(default_factory=dict)
    watched: str = "validation/accuracy"
    folder: Path = Path()

    def __post_init__(self) -> None:
        """Refuse a study that cannot run."""
        here = f"study {self.title!r}"
        if not self.arms or not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ConfigError(f"{here}: wanted at least one arm, and seeds that differ; found {self.seeds}.")
        for arm in (arm for pair in self.compared for arm in pair):
            if arm not in self.arms:
                raise ConfigError(f"{here}: compared names {arm!r}, wanted one of {', '.join(self.arms)}.")
        if len({_slug(name) for name in self.arms}) < len(self.arms):
            raise ConfigError(f"{here}: two arms would share a folder; name them apart by letters or digits.")
        for name in self.files:
            self.path(name)
        if self.budget is None and any(arm.first for arm in self.arms.values()):
            raise ConfigError(f"{here}: found demonstrations first, and no budget to share. Give a budget.")
        names = list(self.arms)
        for number, (name, arm) in enumerate(self.arms.items()):
            if arm.share_of and (not self.examples or arm.share_of not in names[:number]):
                raise ConfigError(f"{here}: {name} has the share of {arm.share_of!r}, wanted an arm before it.")
        untrained = [name for name, arm in self.arms.items() if not arm.trained]
        if bool(self.examples) != bool(self.asked) or (self.examples and self.budget) or EXAMPLES in self.arms:
            raise ConfigError(
                f"{here}: found {len(self.examples)} files of examples, {len(self.asked)} evaluations, "
                f"{'a' if self.budget else 'no'} budget, wanted examples and evaluations together, and no budget with "
                f"them. No arm is called {EXAMPLES}."
            )
        if untrained and not self.examples:
            raise ConfigError(f"{here}: {', '.join(untrained)} is not trained, and there are no examples. Give some.")
        for name in () if self.index else (SPEC_FILE, WEIGHTS):
            if not (Path(model_path(self.base)) / name).is_file():
                raise ConfigError(
                    f"{here}: the base {self.base} has no {name}. Give a folder that "
                    "`python -m studies.starter_base` wrote."
                )

    @property
    def files(self) -> list[str]:
        """The names of all configuration files."""
        arms = self.arms.values()
        firsts = (name for arm in arms if arm.first for name in arm.first.configs)
        return [*self.task, *(name for arm in arms for name in arm.configs), *firsts, *self.examples]

    def path(self, name: str) -> Path:
        """A configuration file by its path from the study's folder, configs/, its experiments or the working folder."""
        for folder in (self.folder, CONFIGS, CONFIGS / "experiments", Path()):
            path = folder / name
            if path.is_file():
                return path
        raise ConfigError(
            f"study {self.title!r}: found no configuration file {name}, neither in {self.folder.resolve()} nor in "
            f"{CONFIGS}. Give its path from one of these."
        )

    def contents(self, names: list[str]) -> list[dict[str, Any]]:
        """The contents of configuration files."""
        return [yaml.safe_load(self.path(name).read_text(encoding="utf-8")) or {} for name in names]

    @property
    def limits(self) -> dict[str, Any]:
        """The limits of a rollout that a base other than the packaged one brings, as settings."""
        if self.base == STARTER or self.index:
            return {}
        limits = read_spec(Path(self.base)).limits
        return {f"data.agent.limits.{name}": value for name, value in asdict(limits).items()}

    @property
    def base_identity(self) -> str:
        """What tells the base from another one: the SHA-256 of its file of weights, or its name on the hub."""
        weights = Path(model_path(self.base)) / WEIGHTS
        own = digest_of(weights, name=self.base) if weights.is_file() else self.base
        return base_sha256(self.base) or own


@dataclass(frozen=True)
class Cell:
    """One run of a study."""

    arm: str
    seed: int
    folder: Path

    @property
    def starts(self) -> list[dict[str, Any]]:
        """Every start of it: seconds, exit status (none while it runs), and what it was made with."""
        path = self.folder / STARTS
        return list(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else []

    @property
    def finished(self) -> bool:
        """Whether it ran to its end."""
        return any(start["returncode"] == 0 for start in self.starts)

    @property
    def wall_s(self) -> float:
        """Seconds that it took, over all its starts."""
        return float(sum(start["wall_s"] for start in self.starts))


def known_studies() -> dict[str, Path]:
    """The studies of this repository by name: studies/*/configs/NAME.yaml."""
    return {path.stem: path for path in sorted(STUDIES.glob("*/configs/*.yaml"), key=lambda each: each.stem)}


def load_study(name: str) -> Study:
    """A study by its name (studies/*/configs/NAME.yaml), or from a YAML file.

    Raises:
        ConfigError: no such study or file, or one that cannot be run.
    """
    known = known_studies()
    path = known.get(name, Path(name))
    if not path.is_file():
        raise ConfigError(
            f"study {name}: found no study of this name and no such file. Name one of {', '.join(known)}, or give a "
            "YAML file."
        )
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Study, skip={"folder"})
    try:
        values = parser.instantiate_classes(parser.parse_path(str(path)))
    except Exception as error:  # jsonargparse raises several kinds
        if isinstance(error, MedagentError):
            raise
        raise ConfigError(f"study {path}: {error}") from error
    return Study(**values.as_dict(), folder=path.parent)


def study_cells(study: Study, out: Path) -> list[Cell]:
    """Every run of a study, seeds outside and arms inside.

    A study that is cut short has thus compared all arms on the seeds it has.
    """
    return [Cell(arm, seed, out / "runs" / f"{_slug(arm)}-{seed}") for seed in study.seeds for arm in study.arms]


def example_cells(study: Study, out: Path) -> list[Cell]:
    """The run of the study's examples for each seed; none without examples."""
    return [Cell(EXAMPLES, seed, out / "runs" / f"{EXAMPLES}-{seed}") for seed in study.seeds if study.examples]


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name.lower())
