"""A training run in one folder, which goes on from its newest checkpoint when it is started again.

RUN/config.yaml   the resolved configuration         RUN/logs, RUN/tensorboard   metrics, one version per start
RUN/checkpoints   the two newest iterations          RUN/agent                   the exported agent
"""

import atexit
import csv
import json
import logging
import os
import shutil
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from pydoc import locate
from typing import Any

import torch
import yaml
from lightning import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities import rank_zero_only
from torch import distributed

from medagent.config_files import is_known
from medagent.errors import ConfigError
from medagent.evaluation.viewer.recorded import read_metrics
from medagent.files import write_whole
from medagent.run_folder import RunFolder, signals_interrupt
from medagent.training.agent_data import AgentData
from medagent.training.callbacks.export import in_words
from medagent.training.callbacks.variants import level_of
from medagent.training.data import RolloutData
from medagent.training.default_callbacks import why_not_to_go_on
from medagent.training.loading import readable_checkpoints
from medagent.training.module import AgentModule, StepCallback
from medagent.training.ranks import callbacks_of
from medagent.training.settings import INSTANTIATOR, TRAINER_DEFAULTS, as_config
from medagent.types import Question

# What a rank rolls out follows from question and iteration, so another number of ranks goes on with the same run.
MAY_CHANGE = ("trainer.max_epochs", "trainer.devices", "trainer.num_nodes")
RUN_PARTS = tuple(
    "checkpoints logs tensorboard rollouts stale_rollouts demonstrations demonstrations.made agent collapse.json "
    "config.yaml".split()
)


@dataclass(frozen=True)
class TrainingResult:
    """The result of `train`: the run's folder, its agent's folder, and the metrics of each iteration."""

    run: Path
    agent: Path
    metrics: tuple[Mapping[str, float], ...]


def train(
    module: AgentModule,
    data: AgentData,
    *,
    out: str | Path = "runs/train",
    iterations: int = 1,
    callbacks: Callback | Sequence[Callback] = (),
    check_val_every_n_epoch: int = 1,
    accelerator: str = "auto",
    devices: int | list[int] | str = 1,
    num_nodes: int = 1,
    strategy: str | Strategy = "auto",
    overwrite: bool = False,
) -> TrainingResult:
    """Train from Python as `medagent train` does: metrics, checkpoints and the agent go to the folder `out`.

    `callbacks` join the data's default ones; one of the same class takes its place. A second call with the same folder
    and settings goes on from the newest checkpoint. With `overwrite` it discards the run that is there. Objects are
    compared by their class and the arguments that they keep as attributes.

    Raises:
        ConfigError: settings contradict each other, or the folder holds other files, settings or more iterations.
    """
    quiet_lightning()
    run = Path(out)
    if not isinstance(iterations, int) or iterations < 1:
        raise ConfigError(f"iterations: found {iterations!r}, wanted a whole number, 1 or more.")
    callbacks = [callbacks] if isinstance(callbacks, Callback) else callbacks
    settings: dict[str, Any] = {
        **TRAINER_DEFAULTS,
        "accelerator": accelerator,
        "devices": devices,
        "num_nodes": num_nodes,
        "strategy": strategy,
        "default_root_dir": run,
        "max_epochs": iterations,
        "check_val_every_n_epoch": check_val_every_n_epoch,
        "logger": run_loggers(run),
        "callbacks": [*_with_defaults(callbacks, data), run_checkpoints(run)],
    }
    resolved = {
        "trainer": {"callbacks": as_config(callbacks)},
        "model": {name: value for name, value in module.hparams.items() if name not in INSTANTIATOR},
        "data": data.config,
    }
    fit_in_folder(Trainer(**settings), module, data, resolved, overwrite=overwrite)
    return TrainingResult(run, run / "agent", tuple(read_metrics(run)))


def _with_defaults(callbacks: Sequence[Callback], data: AgentData) -> list[Callback]:
    """The data's default callbacks and these."""
    found: list[Callback] = []
    for kind in map(locate, data.default_callbacks):
        assert isinstance(kind, type)
        found.append(next((each for each in callbacks if isinstance(each, kind)), None) or kind())
    return found + [each for each in callbacks if each not in found]


def fit_in_folder(
    trainer: Trainer,
    module: AgentModule,
    data: AgentData,
    resolved: dict[str, Any] | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """Fit in the trainer's folder, going on where it was. `resolved` is the run's configuration, if it has one."""
    folder = RunFolder(Path(trainer.default_root_dir), "run", "--trainer.default_root_dir")
    with folder.sole_writer() if trainer.is_global_zero else nullcontext():
        checkpoint = _claim(folder, resolved, trainer.max_epochs, overwrite=overwrite)
        if checkpoint is not None:
            print(f"Going on from {checkpoint}.")
        if isinstance(data, RolloutData) and trainer.is_global_zero:
            name = ((resolved or {}).get("algorithm") or {}).get("name", "Algorithm")
            print(f"{name}: {algorithm_in_words(trainer, module, data)}.")
            if known := known_questions(module.policy_lora.start, data.questions):
                print(
                    f"model.policy_lora.start: the policy has learnt from examples of {known} of the "
                    f"{len(data.questions)} questions of data.benchmark, and may know them by heart. Train on others."
                )
        # Several ranks are left to their launcher.
        ends = signals_interrupt() if trainer.world_size == 1 else nullcontext()
        try:
            with ends:
                trainer.fit(module, datamodule=data, ckpt_path=checkpoint and str(checkpoint))
        except SystemExit as stop:  # Lightning turns Ctrl-C into an exit
            raise KeyboardInterrupt from stop
        finally:
            data.engine.close()  # also when another callback's hook raised


def known_questions(start: str | None, questions: Sequence[Question]) -> int:
    """How many questions the dialogues of `medagent sft` ask whose agent is `start`."""
    shown = set()
    for path in (Path(start).parent / "demonstrations").rglob("*.jsonl") if start else ():
        with path.open(encoding="utf-8") as file:
            shown |= {json.loads(line).get("question") for line in file}
    return sum(question.text in shown for question in questions)


def algorithm_in_words(trainer: Trainer, module: AgentModule, data: RolloutData) -> str:
    """The parts of a run's algorithm, with their arguments."""
    mean = "" if (level := level_of(trainer)) == "token" else ", a geometric mean"
    named = module.policy_loss, data.advantage, *callbacks_of(trainer, StepCallback)
    return "; ".join([f"one weight per {level}{mean}", *(in_words(as_config(each)) for each in named)])


def quiet_lightning() -> None:
    """Silence Lightning's tips, device lists and warnings; those of the project stay."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module=r"lightning\.")


class _KeptCSVLogger(CSVLogger):
    """Lightning's CSVLogger, whose rows a stop at any moment leaves: a new column must not empty the file first."""

    @rank_zero_only
    def save(self) -> None:
        """Write the rows that are not written yet."""
        writer = self.experiment
        names = sorted(set(writer.metrics_keys).union(*writer.metrics))
        if names != writer.metrics_keys:
            path = Path(writer.metrics_file_path)
            with path.open(encoding="utf-8", newline="") if path.exists() else StringIO() as file:
                rows = list(csv.DictReader(file))
            text = StringIO()
            table = csv.DictWriter(text, names)
            table.writeheader()
            table.writerows(rows)
            write_whole(path, text.getvalue())
            writer.metrics_keys = names
        super().save()


def run_loggers(run: Path) -> list[Logger]:
    """The loggers of a run: CSV and TensorBoard, one version per start."""
    rows = _KeptCSVLogger(run, name="logs", flush_logs_every_n_steps=1)
    return [rows, TensorBoardLogger(run, name="tensorboard", version=rows.version)]


def run_checkpoints(run: Path) -> ModelCheckpoint:
    """A checkpoint per iteration, of which the two newest are kept."""
    return ModelCheckpoint(
        dirpath=run / "checkpoints",
        filename="{epoch}",
        monitor="epoch",
        mode="max",
        save_top_k=2,
        save_on_train_epoch_end=True,
    )


def newest_checkpoint(run: Path) -> Path | None:
    """The newest checkpoint of whole iterations; torn ones and those inside an iteration are named and passed over."""
    for path, checkpoint in readable_checkpoints(run, torn=print):
        if why := why_not_to_go_on(checkpoint):
            print(f"checkpoint {path} is passed over: {why}. A run goes on from the end of an iteration.")
            continue
        return path
    return None


def _iterations_in(path: Path) -> int:
    """The iterations that a checkpoint has done; ConfigError if automatic optimisation made it."""
    checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    automatic = checkpoint["loops"]["fit_loop"].get("epoch_loop.automatic_optimization.optim_progress")
    if automatic and automatic["optimizer"]["step"]["total"]["completed"]:
        raise ConfigError(
            f"checkpoint {path}: found one of an earlier version of medagent, wanted one of this version. Give another "
            "folder with --trainer.default_root_dir, or discard the run with --overwrite true."
        )
    return int(checkpoint["epoch"]) + 1


def discard(folder: Path, parts: Sequence[str] = RUN_PARTS) -> None:
    """Remove what a run writes, or other parts, and nothing else that the folder may hold."""
    for name in parts:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _claim(
    folder: RunFolder, resolved: dict[str, Any] | None, iterations: int | None, *, overwrite: bool
) -> Path | None:
    """The checkpoint to go on from, in a folder made this run's; other files, settings or iterations are refused."""
    run = folder.path
    folder.refuse_others(*RUN_PARTS)
    if overwrite:
        discard(run)
    path = run / "config.yaml"
    checkpoint = newest_checkpoint(run)
    done = _iterations_in(checkpoint) if checkpoint else 0
    if resolved and path.exists():
        _refuse_changes(run, yaml.safe_load(path.read_text(encoding="utf-8")), resolved)
    if iterations is not None and done > iterations:
        raise ConfigError(
            f"run folder {run}: found {done} iterations done, wanted at most trainer.max_epochs, {iterations}. "
            f"With --trainer.max_epochs {done} it exports its agent; with more it goes on."
        )
    folder.mark()
    if resolved:
        write_whole(path, yaml.safe_dump(resolved, sort_keys=False))
    return checkpoint


def _refuse_changes(run: Path, before: dict[str, Any], resolved: dict[str, Any]) -> None:
    """Refuse to go on with other settings; only those in `MAY_CHANGE` may."""
    known, wanted = _flat(before), _flat(resolved)
    names = sorted(name for name in {*known, *wanted} if not name.startswith(MAY_CHANGE))
    if changed := [name for name in names if not _same(known.get(name), wanted.get(name))]:
        raise ConfigError(
            f"run folder {run}: holds a run with other settings ({', '.join(changed[:3])}). Give another folder "
            "with --trainer.default_root_dir (in Python `out`), or --overwrite true (`overwrite`) to discard that run."
        )


def _same(known: Any, wanted: Any) -> bool:
    """Whether settings are equal, or are two paths of one class."""
    if known == wanted:
        return True
    texts = isinstance(known, str) and isinstance(wanted, str)
    return texts and is_known(known) and isinstance(kind := locate(known), type) and kind is locate(wanted)


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Settings by their dotted names."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) and tree else None
    if items is None:
        return {prefix: tree}
    parts = [_flat(value, f"{prefix}.{name}" if prefix else str(name)) for name, value in items]
    return {name: value for part in parts for name, value in part.items()}


def end_rank() -> None:
    """End a gloo rank without the interpreter's finalisation, in which its threads abort (pytorch issue 190489).

    Others return. Threads are waited for, and `atexit` runs. Destroying the group would not end gloo's threads:
    DDP holds it for as long as it lives.
    """
    if not distributed.is_initialized() or distributed.get_backend() != "gloo":
        return
    threading._shutdown()  # type: ignore[attr-defined]  # both as in CPython's Py_FinalizeEx, in its order
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)
