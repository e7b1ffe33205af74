"""`medagent study`: a grid of arms x seeds, each cell in processes of its own.

A cell is an ordinary `medagent train` run. With a budget it is `medagent sft`, then `train`, then `evaluate`. A
finished cell is kept, and an interrupted one goes on. So the same command always completes the study.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import yaml
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from medagent.errors import ConfigError, MedagentError
from medagent.files import write_whole
from medagent.models.base_models import STARTER, model_path
from medagent.run_folder import RunFolder, signals_interrupt
from medagent.starter.index import build_starter_index
from medagent.starter.world import World
from medagent.training.studies.budget import TRAINED, CellPlan, budget_stages
from medagent.training.studies.processes import Children, made_by
from medagent.training.studies.study import PLAN, STARTS, WEIGHTS, Cell, Study, study_cells


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
        folder.claim("runs", "index", "index-whole")
        for cell, plan in plans.items():
            path = cell.folder / PLAN
            if path.exists() and _meaning(path.read_text(encoding="utf-8")) != _meaning(plan):
                raise ConfigError(
                    f"study folder {out}: {cell.arm}, seed {cell.seed} was run with other settings, other files for "
                    "them or another base. Give another folder with --out."
                )
        index = out / "index"
        build_starter_index(index, World.load().passages(("train", "validation")), overwrite=True)
        if study.budget:
            build_starter_index(out / "index-whole", World.load().passages(), overwrite=True)
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
    arm, budget = study.arms[cell.arm], study.budget
    plan: dict[str, Any] = {
        "seed": cell.seed,
        "settings": {**study.limits, **arm.settings},
        "configs": _contents(study, (*study.task, *arm.configs)),
        "starter": hashlib.sha256((Path(model_path(study.base)) / WEIGHTS).read_bytes()).hexdigest(),
    }
    if budget:
        plan["budget"] = {"units": budget.units, "measured": budget.measured}
        plan["examples"] = _contents(study, arm.first.configs if arm.first else [])
        plan["first"] = {"share": arm.first.share, "settings": arm.first.settings} if arm.first else None
    return json.dumps(plan, indent=1)


def _contents(study: Study, names: Sequence[str]) -> list[tuple[str, str]]:
    return [(name, study.path(name).read_text(encoding="utf-8")) for name in names]


def _meaning(plan: str) -> dict[str, Any]:
    """A plan without the comments and the layout of its files: numbers of equal ones are comparable."""
    values = json.loads(plan)
    files = {
        part: [(name, yaml.safe_load(text)) for name, text in values[part]]
        for part in ("configs", "examples")
        if part in values
    }
    return {**values, **files}


def _stages(study: Study, cell: Cell, plan: str, index: Path, threads: int) -> Iterator[list[str]]:
    """The arguments of `medagent` for each part of a cell; a part that is done is left out."""
    values = json.loads(plan)
    base = {} if study.base == STARTER else {"model.base_model": study.base}
    common = {"data.seed": cell.seed, "seed_everything": cell.seed, "threads": threads, **base}
    settings = {
        "data.retriever.init_args.retriever.init_args.index": index,
        **common,
        **values["settings"],
    }
    # From the plan and not from the files themselves: editing those while a study runs must not change it.
    train = ["train", *_given_files(cell.folder, "given", values["configs"]), *_given_all(settings)]
    if study.budget is None:
        yield [*train, *_given_all({"trainer.default_root_dir": cell.folder})]
        return
    first = values["first"]
    sft = [
        "sft",
        *_given_files(cell.folder, "examples", values["examples"]),
        *_given_all({"data.retriever.init_args.index": index, **common, **(first["settings"] if first else {})}),
    ]
    share, whole = first["share"] if first else 0.0, index.with_name("index-whole")
    yield from budget_stages(study.budget, CellPlan(cell.folder, cell.seed, share, tuple(sft), tuple(train), whole))


def _given_files(folder: Path, name: str, contents: Sequence[tuple[str, str]]) -> list[str]:
    """Write configuration files to `folder`, and give them as arguments."""
    arguments = []
    for number, (_, text) in enumerate(contents):
        path = folder / f"{name}-{number}.yaml"
        write_whole(path, text)
        arguments += ["--config", str(path)]
    return arguments


def _given_all(settings: dict[str, Any]) -> list[str]:
    return [f"--{name}={_given(value)}" for name, value in settings.items()]


def _run_cell(study: Study, cell: Cell, plan: str, index: Path, threads: int, children: Children) -> None:
    """Run the parts of one cell in turn, each in a process of its own."""
    cell.folder.mkdir(parents=True, exist_ok=True)
    write_whole(cell.folder / PLAN, plan)
    # Written before and after, so that a start that was killed leaves its trace.
    starts = [*cell.starts, {"wall_s": 0.0, "returncode": None, **made_by(threads)}]
    write_whole(cell.folder / STARTS, json.dumps(starts, indent=1) + "\n")
    started = time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    returncode = 0
    for arguments in _stages(study, cell, plan, index, threads):
        command = [sys.executable, "-m", "medagent.cli.main", *arguments]
        returncode = children.run(command, log=cell.folder / "log.txt", environment=environment)
        if returncode:
            break
    starts[-1].update(wall_s=round(time.monotonic() - started, 1), returncode=returncode)
    write_whole(cell.folder / STARTS, json.dumps(starts, indent=1) + "\n")
    if cell.finished:  # a study keeps numbers, not weights
        for run in (cell.folder, *(cell.folder / name for name in TRAINED)):
            shutil.rmtree(run / "checkpoints", ignore_errors=True)


def _given(value: object) -> str:
    """A setting as the command line takes it: null, lists and numbers as JSON."""
    return str(value) if isinstance(value, str | Path) else json.dumps(value)
