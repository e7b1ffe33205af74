"""Compares arms over seeds on the starter world: `python -m studies.run NAME`, from the root of the repository.

Each run is an ordinary `medagent train` in OUT/runs; with a budget it is `medagent sft`, `train` and `evaluate`. A
finished run is kept and an interrupted one goes on, so the same command always completes the study. It writes
report.md, figures.svg and runs.csv of all runs that OUT has, and with a budget report.md, budget.svg and budget.csv.
A study with examples runs `medagent sft` once per seed, and evaluates each arm's agent at its end (evaluated.csv,
answers.csv).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean
from typing import Any

from jsonargparse import auto_cli

from benchmarks.common import describe_machine
from medagent.errors import ConfigError, MedagentError
from medagent.evaluation.viewer.recorded import read_metrics
from medagent.files import write_whole
from medagent.models.base_models import STARTER
from medagent.run_folder import RunFolder, signals_interrupt
from medagent.starter.index import build_starter_index
from medagent.starter.world import World
from studies.budget_report import budget_report, budget_row, spent_by
from studies.commands import config_files, constant_share, ends, once, options
from studies.design import (
    EXAMPLES,
    PLAN,
    RL,
    STARTS,
    STUDIES,
    Arm,
    Cell,
    Study,
    example_cells,
    load_study,
    study_cells,
)
from studies.figures import budget_figure, curves_figure
from studies.processes import Processes
from studies.report import answer_rows, evaluated, evaluated_row, origins, outcome, report, write_rows

BENCHMARK = "medagent.evaluation.benchmarks.StarterBenchmark"


def run_study(
    study: Study,
    out: Path,
    *,
    jobs: int = 1,
    threads: int = 1,
    arms: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
) -> list[Cell]:
    """Run every cell that is not finished, `jobs` at a time with `threads` torch threads each.

    `arms` and `seeds` choose some of the cells. Interrupted (Ctrl-C, SIGTERM, SIGHUP), it ends its runs.

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
    if study.index and not Path(study.index).is_dir():
        raise ConfigError(
            f"study {study.title!r}: found no index {study.index}. Make it (medagent index build), or give another "
            "with --index."
        )
    plans = {cell: cell_plan(study, cell) for cell in (*example_cells(study, out), *study_cells(study, out))}
    wanted = [cell for cell in plans if cell.arm == EXAMPLES or not arms or cell.arm in arms]
    cells = [cell for cell in wanted if not seeds or cell.seed in seeds]
    folder, index, processes = RunFolder(out, "study"), Path(study.index or out / "index"), Processes()
    with folder.sole_writer():
        folder.claim("runs", "index", "index-whole")
        for cell, plan in plans.items():
            path = cell.folder / PLAN
            if path.exists() and json.loads(path.read_text(encoding="utf-8")) != plan:
                raise ConfigError(
                    f"study folder {out}: {cell.arm}, seed {cell.seed} was run with other settings, other files for "
                    "them or another base. Give another folder with --out."
                )
        if not study.index:
            build_starter_index(index, World.load().passages(("train", "validation")), overwrite=True)
        if study.budget:
            build_starter_index(out / "index-whole", World.load().passages(), overwrite=True)
        waiting = [cell for cell in cells if not cell.finished]
        with signals_interrupt(), ThreadPoolExecutor(jobs) as pool:
            try:
                futures: dict[Future[None], Cell] = {}
                begun: dict[Cell | None, Future[None]] = {}  # what a cell needs was submitted before it
                for cell in waiting:
                    before = begun.get(_needed(study, cell))
                    begun[cell] = pool.submit(_run_cell, study, cell, plans[cell], index, threads, processes, before)
                    futures[begun[cell]] = cell
                for number, future in enumerate(as_completed(futures), start=1):
                    cell, error = futures[future], future.exception()
                    told = "done" if cell.finished else f"FAILED{f' ({error})' if error else ''}"
                    print(f"{number} of {len(waiting)}: {cell.arm}, seed {cell.seed}: {told}", flush=True)
            except KeyboardInterrupt:
                pool.shutdown(wait=False, cancel_futures=True)
                processes.stop()
                raise
    return cells


def cell_plan(study: Study, cell: Cell) -> dict[str, Any]:
    """Everything that decides a cell's numbers: settings, the contents of its files in order, and the base."""
    arm = Arm([]) if cell.arm == EXAMPLES else study.arms[cell.arm]
    plan = {
        "seed": cell.seed,
        "settings": {**study.limits, **arm.settings},
        "configs": study.contents([*study.task, *arm.configs]),
        "starter": study.base_identity,
        "budget": asdict(study.budget) if study.budget else None,
        "first": asdict(arm.first) | {"configs": study.contents(arm.first.configs)} if arm.first else None,
    }
    if study.examples:
        plan |= {"examples": study.contents(study.examples), "asked": study.asked, "trained": arm.trained}
        plan["share_of"] = arm.share_of
    made: dict[str, Any] = json.loads(json.dumps(plan))
    return made


def _run_cell(
    study: Study,
    cell: Cell,
    plan: dict[str, Any],
    index: Path,
    threads: int,
    processes: Processes,
    before: Future[None] | None = None,
) -> None:
    """Run the parts of one cell in turn, each in a process of its own, once the one `before` it has ended."""
    if before is not None:
        before.result()
    needed = _needed(study, cell)
    if needed and not needed.finished:
        raise MedagentError(f"it needs {needed.arm}, which is not finished; see {needed.folder / 'log.txt'}")
    cell.folder.mkdir(parents=True, exist_ok=True)
    write_whole(cell.folder / PLAN, json.dumps(plan, indent=1))
    describe = ["git", "describe", "--always", "--dirty"] if shutil.which("git") else ["true"]
    code = subprocess.run(describe, cwd=STUDIES, capture_output=True, text=True)
    made_with = {"code": code.stdout.strip() or "unknown", "machine": describe_machine(), "threads": threads}
    # Written before and after, so that a start that was killed leaves its trace.
    starts = [*cell.starts, {"wall_s": 0.0, "returncode": None, **made_with}]
    write_whole(cell.folder / STARTS, json.dumps(starts, indent=1) + "\n")
    started, returncode = time.monotonic(), 0
    for arguments in _stages(study, cell, plan, index, threads):
        command = [sys.executable, "-m", "medagent.cli.main", *arguments]
        returncode = processes.run(command, log=cell.folder / "log.txt", threads=threads)
        if returncode:
            break
    starts[-1].update(wall_s=round(time.monotonic() - started, 1), returncode=returncode)
    write_whole(cell.folder / STARTS, json.dumps(starts, indent=1) + "\n")
    if cell.finished:  # a study keeps numbers, not weights
        for run in (cell.folder, cell.folder / EXAMPLES, cell.folder / RL):
            shutil.rmtree(run / "checkpoints", ignore_errors=True)


def _stages(study: Study, cell: Cell, plan: dict[str, Any], index: Path, threads: int) -> Iterator[list[str]]:
    """The arguments of `medagent` for each part of a cell, in turn.

    The next part is asked for once the one before has ended well. A part that is done is left out.
    """
    common = {"data.seed": cell.seed, "seed_everything": cell.seed, "threads": threads}
    if study.base != STARTER:
        common["model.base_model"] = study.base
    key = "data.retriever.init_args.index" if study.index else "data.retriever.init_args.retriever.init_args.index"
    retriever = {key: index}
    train = [
        "train",
        *config_files(cell.folder, "given", plan["configs"]),
        *options(retriever | common | plan["settings"]),
    ]
    if cell.arm == EXAMPLES:
        files = config_files(cell.folder, "given", plan["examples"])
        yield ["sft", *files, *options(retriever | common), f"--trainer.default_root_dir={cell.folder}"]
        return
    if study.examples:
        run, agent = cell.folder / RL, cell.folder.with_name(f"{EXAMPLES}-{cell.seed}") / "agent"
        if plan["trained"]:
            start = [f"--model.policy_lora.start={agent}", f"--trainer.default_root_dir={run}"]
            needed = _needed(study, cell)
            if needed and plan["share_of"]:
                scale = mean(row["policy/clip_bias_scale"] for row in read_metrics(needed.folder / RL))
                start += config_files(cell.folder, "share", [constant_share(scale)])
            yield from once(run, [*train, *start])
            agent = run / "agent"
        for name, asked in study.asked.items():
            asking = {"agent": agent, "index": index, "seed": cell.seed, "out": cell.folder / name}
            yield from once(cell.folder / name, ["evaluate", *options(asking | asked)])
        return
    if study.budget is None:
        yield [*train, f"--trainer.default_root_dir={cell.folder}"]
        return
    examples, rl, first, share = cell.folder / EXAMPLES, cell.folder / RL, plan["first"], 0.0
    agent = examples / "agent"
    if first:
        share = first["share"]
        settings = {"data.retriever.init_args.index": index} | common | first["settings"]
        sft = ["sft", *config_files(cell.folder, "examples", first["configs"]), *options(settings)]
        yield from once(examples, [*sft, *ends(examples, study.budget.units * share)])
    if share < 1:
        left = study.budget.units - spent_by(examples).units
        start = [f"--model.policy_lora.start={agent}"] if share else []
        yield from once(rl, [*train, *start, *ends(rl, left)])
        agent = rl / "agent"
    for name, asked in study.budget.measured.items():
        asking = {
            "agent": agent,
            "benchmark": BENCHMARK,
            "benchmark_args": asked,
            "index": index.with_name("index-whole"),
            "seed": cell.seed,
            "out": cell.folder / name,
        }
        yield from once(cell.folder / name, ["evaluate", *options(asking)])


def _needed(study: Study, cell: Cell) -> Cell | None:
    """The run that has to end before a cell: the arm whose share it has, or the examples that it starts from."""
    if not study.examples or cell.arm == EXAMPLES:
        return None
    out, arm = cell.folder.parent.parent, study.arms[cell.arm].share_of or EXAMPLES
    return next(
        each
        for each in (*example_cells(study, out), *study_cells(study, out))
        if (each.arm, each.seed) == (arm, cell.seed)
    )


def write_report(study: Study, cells: Sequence[Cell], out: Path) -> str:
    """Write the report, its figure and its numbers to `out`; return the text of report.md."""
    if study.budget:
        rows = [budget_row(study, cell) for cell in cells]
        write_rows(out / "budget.csv", rows)
        budget_figure(rows, out / "budget.svg")
        text = budget_report(study.title, study.budget, rows)
    else:
        ran = {cell: read_metrics(cell.folder / RL if study.examples else cell.folder) for cell in cells}
        runs = {(cell.arm, cell.seed): metrics for cell, metrics in ran.items() if metrics}
        rows = [
            {"arm": cell.arm, "seed": cell.seed, **outcome(metrics, study.watched), "wall_s": cell.wall_s}
            for cell, metrics in ran.items()
            if metrics
        ]
        write_rows(out / "runs.csv", rows)
        if runs:
            curves_figure(list(study.arms), runs, out / "figures.svg")
        text = report(study, rows)
        if study.asked:
            answered = [evaluated_row(study, cell) for cell in cells]
            write_rows(out / "evaluated.csv", answered)
            write_rows(out / "answers.csv", [row for cell in cells for row in answer_rows(study, cell)])
            text = "\n".join([text, "", *evaluated(study, answered)])
    text = "\n".join([text, "", *origins(cells)])
    (out / "report.md").write_text(text + "\n", encoding="utf-8")
    return text


def main(
    name: str,
    out: str | None = None,
    arms: list[str] | None = None,
    seeds: list[int] | None = None,
    base: str | None = None,
    index: str | None = None,
    jobs: int = 1,
    threads: int = 1,
) -> None:
    """Run a study and report it.

    Args:
        name: A study of studies/*/configs, or a YAML file. studies/stability/README.md says what each asks.
        out: Folder of the report, the figures and the runs. By default it is runs/study-NAME, with the base's name
        where one is given.
        arms: Arms to run, such as --arms '[PPO, S-PPO]'. By default all run.
        seeds: Seeds to run, such as --seeds '[1, 6]'. By default the study's own run.
        base: Another base for all arms: a folder that `python -m studies.starter_base` wrote, or any base model of a
        study with an index.
        index: Folder of another index, of a study that names one.
        jobs: Runs at a time, each in a process of its own.
        threads: Torch threads per run.
    """
    study, named = load_study(name), Path(name).stem
    if index is not None:
        study = replace(study, index=index)
    if base not in (None, study.base):
        which = Path(base).resolve().name
        study, named = replace(study, base=base, title=f"{study.title} (base {which})"), f"{named}-{which}"
    folder = Path(out or f"runs/study-{named}")
    kept = [json.loads(path.read_text(encoding="utf-8"))["seed"] for path in folder.glob(f"runs/*/{PLAN}")]
    asked = seeds or study.seeds
    study = replace(study, seeds=list(dict.fromkeys([*study.seeds, *asked, *sorted(kept)])))
    try:
        cells = run_study(study, folder, jobs=jobs, threads=threads, arms=arms, seeds=asked)
    finally:  # interrupted, too
        if finished := [cell for cell in study_cells(study, folder) if cell.finished]:
            print(f"{write_report(study, finished, folder)}\n\nThe report, figures and numbers are in {folder}.")
    if failed := [str(cell.folder / "log.txt") for cell in cells if not cell.finished]:
        raise MedagentError(f"study: {len(failed)} of {len(cells)} runs failed; see {', '.join(failed)}. Run it again.")


if __name__ == "__main__":
    try:
        auto_cli(main, as_positional=True)
    except MedagentError as error:
        sys.exit(str(error))
