"""`medagent study`: a grid of arms x seeds, each cell an ordinary `medagent train` run in its own process.

A finished cell is kept. An interrupted one goes on from its checkpoint. So the same command always completes the study.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from medagent.agent_folder import SPEC_FILE, read_spec
from medagent.base_models import STARTER, model_path
from medagent.errors import ConfigError, MedagentError
from medagent.files import write_whole
from medagent.run_folder import RunFolder
from medagent.starter.index import build_starter_index
from medagent.starter.world import World
from training.interrupts import signals_interrupt
from training.studies.processes import Children, made_by

CONFIGS = Path(__file__).parents[2] / "configs"
STUDIES = CONFIGS.parent / "studies"  # part of a checkout, not of the installed package
PLAN, STARTS = "plan.json", "starts.json"
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Arm:
    """One row of the comparison: configuration files, and settings on top."""

    configs: list[str]
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """What is compared: every arm is trained with every seed on the same task.

    - `task`: configuration files that all arms begin with.
    - `tuned`: the arm that shows what can be learnt without stress. Another arm counts as stable only if its best is at
      most five points lower.
    - `compared`: pairs of arms whose accuracies are tested against each other, seed by seed.
    - `base`: what all arms train: the packaged base, or a folder of `medagent starter build` or `lengthen`, whose
      limits then hold for turns.
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
        for name in [*self.task, *(name for arm in self.arms.values() for name in arm.configs)]:
            self.path(name)
        for name in (SPEC_FILE, WEIGHTS):
            if not (Path(model_path(self.base)) / name).is_file():
                raise ConfigError(
                    f"study {self.title!r}: the base {self.base} has no {name}. Give a folder that `medagent starter "
                    "build` or `medagent starter lengthen` wrote."
                )

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
        if not study.measures_every_iteration(arm):
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


def run_study(
    study: Study,
    out: Path,
    *,
    jobs: int,
    threads: int,
    arms: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
) -> list[Cell]:
    """Run every cell that is not finished, `jobs` at a time with `threads` torch threads each.

    `arms` and `seeds` choose some of the cells; without them all are run. Interrupted (Ctrl-C, SIGTERM, SIGHUP), it
    ends its runs. They go on from their checkpoints when it is called again.

    Returns:
        The cells asked for, with those that failed.

    Raises:
        ConfigError: nothing to run, another study at work in `out`, or a study with another plan kept there.
    """
    if jobs < 1 or threads < 1:
        raise ConfigError(f"study: found {jobs} jobs of {threads} threads, wanted 1 or more of each.")
    for what, asked, known in (("arm", arms, list(study.arms)), ("seed", seeds, study.seeds)):
        for each in asked or ():
            if each not in known:
                raise ConfigError(f"study {study.title!r}: found no {what} {each!r}, wanted some of {known}.")
    plans = {cell: _plan(study, cell) for cell in study_cells(study, out)}
    cells = [cell for cell in plans if (not arms or cell.arm in arms) and (not seeds or cell.seed in seeds)]
    folder = RunFolder(out, "study")
    with folder.sole_writer() as lock:
        folder.claim("runs", "index")
        for cell, plan in plans.items():
            path = cell.folder / PLAN
            if path.exists() and _meaning(path.read_text(encoding="utf-8")) != _meaning(plan):
                raise ConfigError(
                    f"study folder {out}: {cell.arm}, seed {cell.seed} was run with other settings, other files for "
                    "them or another base. Give another folder with --out."
                )
        index = out / "index"
        build_starter_index(index, World.load().passages(("train", "validation")), overwrite=True)
        _run_cells(study, {cell: plans[cell] for cell in cells}, Children([lock]), index, jobs=jobs, threads=threads)
    return cells


def _run_cells(
    study: Study, plans: dict[Cell, str], children: Children, index: Path, *, jobs: int, threads: int
) -> None:
    """Run those of the planned cells that are not finished."""
    waiting = [cell for cell in plans if not cell.finished]
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with signals_interrupt(), Progress(*columns) as progress, ThreadPoolExecutor(jobs) as pool:
        task = progress.add_task(study.title, total=len(plans), completed=len(plans) - len(waiting))
        try:
            futures = {
                pool.submit(_run_cell, study, cell, plans[cell], index, threads, children): cell for cell in waiting
            }
            for future in as_completed(futures):
                error = future.exception()
                told = "done" if futures[future].finished else f"FAILED{f' ({error})' if error else ''}"
                progress.console.print(f"{futures[future].arm}, seed {futures[future].seed}: {told}")
                progress.advance(task)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            children.stop()
            raise


def refuse_unfinished(cells: Sequence[Cell]) -> None:
    """Raise MedagentError where runs failed; its message says where to look."""
    failed = [cell for cell in cells if not cell.finished]
    if failed:
        names = ", ".join(str(cell.folder / "log.txt") for cell in failed)
        raise MedagentError(
            f"study: {len(failed)} of {len(cells)} runs failed; see {names}. Run it again to retry them."
        )


def _plan(study: Study, cell: Cell) -> str:
    """Everything that decides a cell's numbers, as text: settings, the contents of its files in order, and the base."""
    settings = {**study.limits, **study.arms[cell.arm].settings}
    contents = [
        (name, study.path(name).read_text(encoding="utf-8")) for name in (*study.task, *study.arms[cell.arm].configs)
    ]
    base = hashlib.sha256((Path(model_path(study.base)) / WEIGHTS).read_bytes()).hexdigest()
    return json.dumps({"seed": cell.seed, "settings": settings, "configs": contents, "starter": base}, indent=1)


def _meaning(plan: str) -> dict[str, Any]:
    """A plan without the comments and the layout of its files: numbers of equal ones are comparable."""
    values = json.loads(plan)
    return {**values, "configs": [(name, yaml.safe_load(text)) for name, text in values["configs"]]}


def _run_cell(study: Study, cell: Cell, plan: str, index: Path, threads: int, children: Children) -> None:
    """Train one cell in a process of its own."""
    settings = {
        "trainer.default_root_dir": cell.folder,
        "data.retriever.init_args.retriever.init_args.index": index,
        "data.seed": cell.seed,
        "seed_everything": cell.seed,
        "threads": threads,
        **({} if study.base == STARTER else {"model.base_model": study.base}),
        **json.loads(plan)["settings"],
    }
    cell.folder.mkdir(parents=True, exist_ok=True)
    write_whole(cell.folder / PLAN, plan)
    # From the plan and not from the files themselves: editing those while a study runs must not change it.
    configs = []
    for number, (_, text) in enumerate(json.loads(plan)["configs"]):
        path = cell.folder / f"given-{number}.yaml"
        write_whole(path, text)
        configs += ["--config", str(path)]
    command = [
        sys.executable,
        "-m",
        "medagent.cli.main",
        "train",
        *configs,
        *(f"--{n}={_given(v)}" for n, v in settings.items()),
    ]
    # Written before and after, so that a start that was killed leaves its trace.
    starts = [*cell.starts, {"wall_s": 0.0, "returncode": None, **made_by(threads)}]
    write_whole(cell.folder / STARTS, json.dumps(starts, indent=1) + "\n")
    started = time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    returncode = children.run(command, log=cell.folder / "log.txt", environment=environment)
    starts[-1].update(wall_s=round(time.monotonic() - started, 1), returncode=returncode)
    write_whole(cell.folder / STARTS, json.dumps(starts, indent=1) + "\n")
    if cell.finished:
        shutil.rmtree(cell.folder / "checkpoints", ignore_errors=True)  # a study keeps numbers, not weights


def _given(value: object) -> str:
    """A setting as the command line takes it: null, lists and numbers as JSON."""
    return str(value) if isinstance(value, str | Path) else json.dumps(value)


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name.lower())
