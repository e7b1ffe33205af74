"""Runs the study on a GPU that is at hand for minutes: `python -m studies.real.gpu --base MODEL --larger MODEL`.

Steps run in the order of their worth until the seconds are used up. The same command skips what is done and goes on
with the rest, runs of a study from their last checkpoint. A step that fails is named, and the next one runs. SIGTERM
and Ctrl-C end the step that runs, and leave what is done. Start it with the Python of an environment that has torch.

OUT/collected.tar.gz has reports, metrics, answers and logs. Unpacked into an empty OUT on a
fresh machine, it lets the command go on there with the arms that are not finished.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import torch
from jsonargparse import auto_cli

from benchmarks.common import describe_machine
from medagent.errors import InputError, MedagentError
from medagent.files import write_whole
from medagent.models.base_models import STARTER
from medagent.run_folder import RunFolder, signals_interrupt
from studies.design import EXAMPLES, Cell
from studies.processes import GRACE_S
from studies.real.gpu.steps import Given, Step, arm_seconds, seed_seconds

RUN_GIB = 9.5  # of the GPU's memory, for a run of the 0.5 B
SMALL_FILES, SMALL_BYTES = {".json", ".csv", ".md", ".svg", ".txt", ".log", ".yaml"}, 300_000
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}  # without a network a look-up would wait for it
TOGETHER = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}  # runs side by side waste less memory


def main(
    base: str = "",
    larger: str = "",
    data: str = "data/bioasq",
    index: str = "indexes/bioasq",
    out: Path = Path("runs/real-gpu"),
    seconds: float = 460,
    jobs: int = 0,
    only: list[str] | None = None,
    miniature: bool = False,
    dry_run: bool = False,
) -> None:
    """Run the steps that fit into the seconds: index, study, larger-untrained, larger, mfu, vllm.

    Args:
        base: The 0.5 B: a folder, a .gguf file or a hub name. By default it is the study's own.
        larger: The 1.5 B, likewise. By default its steps are left out.
        data: Folder of BioASQ's golden files, as the study's files name it.
        index: Folder of their index, which is made where there is none.
        out: Folder of the results.
        seconds: Seconds for everything. A study that is ended takes up to 20 of them to stop its runs.
        jobs: Runs side by side. By default one per 9.5 GiB of the GPU and per core.
        only: Steps to run, such as --only '[mfu]'. By default all run.
        miniature: Try everything with the packaged base and the starter world, on a CPU in a minute or two.
        dry_run: Print the plan with estimated seconds, and run nothing.
    """
    until = time.monotonic() + seconds
    if miniature:
        base, larger, index = STARTER, STARTER, str(out / "index")
    memory = torch.cuda.mem_get_info()[1] / 2**30 if torch.cuda.is_available() else 0.0
    jobs = jobs or max(1, min(int(memory / RUN_GIB), (os.cpu_count() or 1) - 2))
    given = Given(out, base or "Qwen/Qwen2.5-Coder-0.5B-Instruct", larger, data, index, jobs, miniature)
    steps = [step for step in given.steps() if not only or step.name in only]
    if unknown := set(only or ()) - {step.name for step in steps}:
        raise InputError(f"--only: found {', '.join(sorted(unknown))}, wanted some of the steps in --help.")
    if dry_run:
        print(_planned(given, steps))
        return
    folder = RunFolder(out, "gpu-run")
    with folder.sole_writer(), signals_interrupt():
        folder.claim("steps")
        (out / "steps").mkdir(exist_ok=True)
        write_whole(out / "machine.txt", describe_machine() + "\n")
        try:
            kept = sum(step.kept for step in steps)
            for step in steps:
                kept -= step.kept
                _run(step, out / "steps", until - kept - GRACE_S)
        finally:
            _collect(out)
    if failed := [step.name for step in steps if _record(step, out / "steps").get("status") == "failed"]:
        raise MedagentError(f"failed: {', '.join(failed)}; see {out / 'steps'}/NAME.log. The same command goes on.")


def _planned(given: Given, steps: list[Step]) -> str:
    study = given.study()
    lines = [f"{step.name:18s}{step.seconds:6.0f} s  {step.missing or ' '.join(step.arguments)}" for step in steps]
    lines.append(
        f"A seed of the study, {given.jobs} runs side by side: {seed_seconds(study, given.jobs):.0f} s. Alone:"
    )
    return "\n".join(lines + [f"  {arm:30s}{arm_seconds(study, arm):6.0f} s" for arm in study.arms])


def _record(step: Step, folder: Path) -> dict[str, object]:
    """What is known of a step; nothing before its first end, or where its command was another."""
    path = folder / f"{step.name}.json"
    found: dict[str, object] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found if found.get("arguments") == step.arguments else {}


def _run(step: Step, folder: Path, until: float) -> None:
    """Run a step to its end, or until that time of the monotonic clock; its record says how it went."""
    started, done = time.monotonic(), _record(step, folder).get("status") == "done"
    if done or step.missing or until - started < 1:
        print(f"{step.name}: {'done before' if done else step.missing or 'no time is left'}", flush=True)
        return
    status, log = "stopped", folder / f"{step.name}.log"
    command = [sys.executable, "-m", step.module, *step.arguments]
    environment = OFFLINE | TOGETHER | dict(os.environ)
    with (
        log.open("a", encoding="utf-8") as file,
        subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        ) as process,
    ):
        try:
            status = "failed" if process.wait(until - started) else "done"
        except subprocess.TimeoutExpired:
            print(f"{step.name}: its time is over", flush=True)
        finally:
            process.terminate()
            try:
                process.wait(GRACE_S + 10)  # a study gives its runs GRACE_S
            except subprocess.TimeoutExpired:
                process.kill()
            row = {"status": status, "seconds": round(time.monotonic() - started, 1), "expected": round(step.seconds)}
            write_whole(log.with_suffix(".json"), json.dumps({**row, "arguments": step.arguments}, indent=1) + "\n")
    print(
        f"{step.name}: {status} after {row['seconds']} s" + (f"; see {log}" if status == "failed" else ""), flush=True
    )


def _collect(out: Path) -> None:
    """Pack every small file; of runs that are not finished, and of examples, the log alone."""
    runs = [Cell("", 0, path.parent) for path in out.glob("*/runs/*/log.txt")]
    bare = {run.folder for run in runs if not run.finished or run.folder.name.startswith(EXAMPLES)}
    target = out / "collected.tar.gz"
    with tarfile.open(target.with_suffix(".part"), "w:gz") as archive:
        for path in sorted(out.rglob("*")):
            small = path.suffix in SMALL_FILES and path.is_file() and path.stat().st_size <= SMALL_BYTES
            if small and (path.name == "log.txt" or not bare & set(path.parents)):
                archive.add(path, path.relative_to(out))
    target.with_suffix(".part").replace(target)
    print(f"{out}; its small files: {target} ({target.stat().st_size / 1e6:.1f} MB)", flush=True)


if __name__ == "__main__":
    try:
        auto_cli(main)
    except MedagentError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("Stopped. The same command goes on.")
