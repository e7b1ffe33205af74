"""`medagent train`: a LightningCLI run in one folder, which goes on where it was when it is started again.

RUN/config.yaml the fully resolved configuration RUN/checkpoints the two newest iterations RUN/logs CSV metrics, one
version per start RUN/tensorboard the same for TensorBoard
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import sys
import threading
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import torch
import yaml
from lightning import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from torch import distributed

from medagent.config_files import with_current_class_paths
from medagent.errors import ConfigError
from medagent.files import write_whole
from medagent.models.causal_lm import fastest_device
from medagent.run_folder import RunFolder
from medagent.training.agent_data import AgentData, check_accumulation, check_shares
from medagent.training.callbacks.held_out import HeldOutEvaluation
from medagent.training.data import RolloutData
from medagent.training.execution import keep_freed_memory
from medagent.training.interrupts import signals_interrupt
from medagent.training.iterations import why_not_to_go_on
from medagent.training.module import AgentModule
from medagent.training.parser import AgentParser
from medagent.training.preference.data import PreferenceData
from medagent.training.preference.module import PreferenceModule
from medagent.training.settled import settled_dtype
from medagent.training.sft.supervised import SupervisedData, SupervisedModule
from medagent.training.trainer_settings import ALONE, RULES, num_ranks, refuse_settings

RUN_PARTS = (
    "checkpoints",
    "logs",
    "tensorboard",
    "rollouts",
    "stale_rollouts",
    "demonstrations",
    "demonstrations.made",
    "pairs",
    "agent",
    "collapse.json",
    "config.yaml",
)

# Defaults of Lightning's trainer in every run; a configuration's own values override them.
TRAINER_DEFAULTS: dict[str, Any] = {
    "devices": 1,
    "log_every_n_steps": 1,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}


def add_run_settings(parser: LightningArgumentParser, data: type[AgentData]) -> None:
    """Set the trainer's defaults, with the callbacks of `data`, and add the project's own settings."""
    callbacks = [{"class_path": name} for name in data.default_callbacks]
    parser.set_defaults({f"trainer.{name}": value for name, value in TRAINER_DEFAULTS.items()})
    parser.set_defaults({"trainer.callbacks": callbacks})
    parser.add_argument("--overwrite", type=bool, default=False, help="discard the run that the folder holds")
    parser.add_argument("--threads", type=int, default=0, help="torch threads; 0 keeps torch's own choice")


def in_order(callbacks: Sequence[Any], defaults: Sequence[str]) -> list[Any]:
    """Configured callbacks (each with a `class_path`) in the order in which they are to run.

    Held-out evaluation comes first, since the callbacks after it print and keep its figures. A default callback that is
    configured again stands once, with the later settings.
    """
    settings = {callback.class_path: callback for callback in callbacks}
    seen: set[str] = set()
    kept = []
    for callback in callbacks:
        name = callback.class_path
        if name not in defaults:
            kept.append(callback)
        elif name not in seen:
            kept.append(settings[name])
        seen.add(name)
    return sorted(kept, key=lambda callback: callback.class_path.rsplit(".", 1)[-1] != HeldOutEvaluation.__name__)


class AgentCLI(LightningCLI):
    """LightningCLI with the project's module and data, logs and checkpoints in `trainer.default_root_dir`.

    A configuration's `trainer.callbacks+` adds to the default callbacks, and `trainer.callbacks` replaces them.
    """

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """A parser that takes a user's classes by their methods."""
        self.parser_class = AgentParser
        return super().init_parser(**kwargs)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """See `add_run_settings`."""
        add_run_settings(parser, self._data)

    @property
    def _data(self) -> type[AgentData]:
        data = self.datamodule_class
        assert isinstance(data, type)
        assert issubclass(data, AgentData)
        return data

    def before_instantiate_classes(self) -> None:
        """Settings that must hold before a model is built."""
        trainer, data = self.config["trainer"], self.config["data"]
        refuse_settings(trainer, (*RULES, *ALONE))
        check_accumulation(trainer["accumulate_grad_batches"], data["num_micro_batches"])
        ranks = num_ranks(trainer["devices"], trainer["num_nodes"])
        if issubclass(self._data, RolloutData) and ranks:
            parts = data["num_minibatches"] * data["num_micro_batches"]
            check_shares(data["num_questions"], data["num_samples"], parts, ranks)
        given = trainer["callbacks"] or []
        callbacks = given if isinstance(given, list) else [given]  # Lightning takes one callback without a list too
        trainer["callbacks"] = in_order(callbacks, self._data.default_callbacks)
        self.asked_dtype = self.config["model"]["dtype"]
        self.config["model"]["dtype"] = settled_dtype(
            self.asked_dtype,
            self.config["model"]["base_model"],
            device="cpu" if trainer["accelerator"] == "cpu" else fastest_device(),
            run=None if self.config["overwrite"] else run_root(trainer),
        )
        keep_freed_memory()
        if self.config["threads"]:
            torch.set_num_threads(self.config["threads"])

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """The trainer, which writes a checkpoint per iteration.

        It logs to CSV and TensorBoard unless the configuration says otherwise.
        """
        root = run_root(self.config_init["trainer"])
        if self.config_init["trainer"]["logger"] is None:
            kwargs.setdefault("logger", run_loggers(root))
        configured = self.config_init["trainer"]["callbacks"] or []
        trainer: Any = super().instantiate_trainer(default_root_dir=str(root), **kwargs)
        for callback in [each for each in trainer.callbacks if isinstance(each, ModelCheckpoint)]:
            if callback not in configured:
                trainer.callbacks.remove(callback)  # Lightning's default, which would write beside the logs
        trainer.callbacks.append(run_checkpoints(root))
        return cast(Trainer, trainer)


def run_root(trainer: Any) -> Path:
    """The folder of the run that the trainer's settings name."""
    return Path(trainer["default_root_dir"] or "runs/train")


def quiet_lightning() -> None:
    """Silence Lightning's tips, device lists and warnings; those of the project stay."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module=r"lightning\.")


def run_loggers(run: Path) -> list[Logger]:
    """The loggers of a run: CSV and TensorBoard, one version per start."""
    csv = CSVLogger(run, name="logs", flush_logs_every_n_steps=1)
    return [csv, TensorBoardLogger(run, name="tensorboard", version=csv.version)]


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
    """The newest checkpoint of whole iterations.

    Passed over, and named, are one torn by a kill, one from inside an iteration, and one of weights alone. A run that
    went on from inside an iteration would end with other weights.
    """
    found = sorted(run.glob("checkpoints/*.ckpt"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in found:
        try:
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        except (RuntimeError, EOFError, OSError) as error:
            print(f"checkpoint {path} cannot be read ({error}); trying the one before it.")
            continue
        if why := why_not_to_go_on(checkpoint):
            print(f"checkpoint {path} is passed over: {why}. A run goes on from the end of an iteration.")
            continue
        return path
    return None


def _iterations_in(checkpoint: Path) -> int:
    return int(torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)["epoch"]) + 1


def _discard(run: Path) -> None:
    """Remove what a run writes, and nothing else that the folder may hold."""
    for name in RUN_PARTS:
        path = run / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _claim(folder: RunFolder, resolved: dict[str, Any], *, overwrite: bool) -> Path | None:
    """Make the folder this run's, or go on with the run it holds. The checkpoint that it goes on from, if there is one.

    A folder of other files, of a run with other settings, or of one with more iterations is refused.
    """
    run = folder.path
    folder.refuse_others(*RUN_PARTS)
    if overwrite:
        _discard(run)
    path = run / "config.yaml"
    if path.exists():
        kept = yaml.safe_load(with_current_class_paths(path.read_text(encoding="utf-8")))
        known, wanted = _flat(kept), _flat(resolved)
        changed = [
            name
            for name in sorted({*known, *wanted})
            if known.get(name) != wanted.get(name) and name != "trainer.max_epochs"  # which may be prolonged
        ]
        if changed:
            raise ConfigError(
                f"run folder {run}: holds a run with other settings ({', '.join(changed[:3])}). Give another folder "
                "with --trainer.default_root_dir, or --overwrite true to discard that run."
            )
    checkpoint = newest_checkpoint(run)
    if checkpoint is not None:
        done, most = _iterations_in(checkpoint), resolved["trainer"]["max_epochs"]
        if done > most:
            raise ConfigError(
                f"run folder {run}: found {done} iterations done, wanted at most trainer.max_epochs, {most}. With "
                f"--trainer.max_epochs {done} it exports its agent; with more it goes on."
            )
    folder.mark()
    write_whole(path, yaml.safe_dump(resolved, sort_keys=False))
    return checkpoint


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(tree, dict):
        parts = [_flat(value, f"{prefix}.{name}" if prefix else str(name)) for name, value in tree.items()]
        return {name: value for part in parts for name, value in part.items()}
    return {prefix: tree}


def train(args: list[str]) -> Path:
    """Train by configuration (`--config FILE` plus overrides) and return the run's folder.

    See `medagent train --help`.
    """
    return fit(args, AgentModule, RolloutData, command="train", description=str(train.__doc__))


def sft(args: list[str]) -> Path:
    """Teach the protocol by demonstrations (`--config FILE` plus overrides) and return the run's folder.

    See `medagent sft --help`.
    """
    return fit(args, SupervisedModule, SupervisedData, command="sft", description=str(sft.__doc__))


def preference(args: list[str]) -> Path:
    """Teach the policy to prefer right rollouts to wrong ones (`--config FILE` plus overrides), and return the run.

    See `medagent preference --help`.
    """
    return fit(args, PreferenceModule, PreferenceData, command="preference", description=str(preference.__doc__))


def fit(args: list[str], module: type[AgentModule], data: type[AgentData], *, command: str, description: str) -> Path:
    """Fit a module to its data as `medagent COMMAND` does: in one folder, going on where it was.

    Each of several ranks on CPUs then has to call `end_rank`.
    """
    quiet_lightning()
    cli = AgentCLI(
        module,
        data,
        run=False,
        args=args,
        save_config_callback=None,
        seed_everything_default=0,
        auto_configure_optimizers=False,
        parser_kwargs={"prog": f"medagent {command}", "description": description},
    )
    run = Path(cli.trainer.default_root_dir)
    resolved = yaml.safe_load(cli.parser.dump(cli.config, skip_none=False))
    resolved["model"]["dtype"] = cli.asked_dtype
    for how in ("overwrite", "threads"):  # ways of running, not settings of the run
        resolved.pop(how)
    folder = RunFolder(run, "run", "--trainer.default_root_dir")
    with folder.sole_writer() if cli.trainer.is_global_zero else nullcontext():
        checkpoint = _claim(folder, resolved, overwrite=cli.config["overwrite"])
        if checkpoint is not None:
            print(f"Going on from {checkpoint}.")
        # Several ranks are left to their launcher.
        ends = signals_interrupt() if cli.trainer.world_size == 1 else nullcontext()
        try:
            with ends:
                cli.trainer.fit(cli.model, datamodule=cli.datamodule, ckpt_path=checkpoint and str(checkpoint))
        except SystemExit as stop:  # Lightning turns Ctrl-C into an exit
            raise KeyboardInterrupt from stop
        finally:
            cli.datamodule.engine.close()  # also where another callback's hook raised
    return run


def end_rank() -> None:
    """End this process when its work is done, if it is one of several gloo ranks (processes on CPUs).

    Otherwise return. Threads are waited for, and what is registered with `atexit` runs, as at any end. The
    interpreter's finalisation does not run. A thread of gloo's that releases a tensor during finalisation aborts the
    process. The launcher then stops the ranks that still write (pytorch issue 190489).

    Destroying the group does not end those threads: a sharded base, and DDP, hold the group for as long as they live. A
    rank that failed ends as any process does, with a status other than 0 either way.
    """
    if not distributed.is_initialized() or distributed.get_backend() != "gloo":
        return
    threading._shutdown()  # type: ignore[attr-defined]  # both as in CPython's Py_FinalizeEx, in its order
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)
