"""`medagent train`: a LightningCLI run in one folder, which goes on where it was when it is started again.

RUN/config.yaml   the fully resolved configuration      RUN/checkpoints   the two newest iterations
RUN/logs          CSV metrics, a version a start        RUN/tensorboard   the same for TensorBoard
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, cast

import torch
import yaml
from lightning import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from medagent.errors import ConfigError
from training.data import RolloutData
from training.module import AgentModule

RUN_PARTS = ("checkpoints", "logs", "tensorboard", "rollouts", "agent", "config.yaml")


class AgentCLI(LightningCLI):
    """LightningCLI with the project's module and data, logs and checkpoints in `trainer.default_root_dir`."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """`--overwrite` starts afresh in a folder that holds another run."""
        parser.add_argument("--overwrite", type=bool, default=False, help="discard the run that the folder holds")
        parser.add_argument("--threads", type=int, default=0, help="torch threads; 0 keeps torch's own choice")

    def before_instantiate_classes(self) -> None:
        """Settings that must hold before a model is built."""
        if self.config["threads"]:
            torch.set_num_threads(self.config["threads"])

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """The trainer, with CSV and TensorBoard logs and a checkpoint an iteration, unless the configuration says otherwise."""
        root = Path(self.config_init["trainer"]["default_root_dir"] or "runs/train")
        if self.config_init["trainer"]["logger"] is None:
            csv = CSVLogger(root, name="logs", flush_logs_every_n_steps=1)
            board = TensorBoardLogger(root, name="tensorboard", version=csv.version)
            kwargs.setdefault("logger", [csv, board])
        trainer: Any = super().instantiate_trainer(default_root_dir=str(root), **kwargs)
        given = [callback for callback in trainer.callbacks if isinstance(callback, ModelCheckpoint)]
        for callback in given:
            trainer.callbacks.remove(callback)  # Lightning's default, which would write beside the logs
        trainer.callbacks.append(
            ModelCheckpoint(
                dirpath=root / "checkpoints",
                filename="{epoch}",
                monitor="epoch",
                mode="max",
                save_top_k=2,
                save_on_train_epoch_end=True,
            )
        )
        return cast(Trainer, trainer)


def newest_checkpoint(run: Path) -> Path | None:
    """The newest checkpoint that can be read; one torn by a kill is passed over."""
    found = sorted(run.glob("checkpoints/*.ckpt"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in found:
        try:
            torch.load(path, map_location="cpu", weights_only=True)
        except (RuntimeError, EOFError, OSError) as error:
            print(f"checkpoint {path} cannot be read ({error}); trying the one before it.")
            continue
        return path
    return None


def _discard(run: Path) -> None:
    """Remove what a run writes, and nothing else that the folder may hold."""
    for name in RUN_PARTS:
        path = run / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _check_same_run(run: Path, resolved: dict[str, Any]) -> None:
    """Refuse to go on with a run of other settings; the number of iterations may change."""
    path = run / "config.yaml"
    if not path.exists():
        return
    known = yaml.safe_load(path.read_text(encoding="utf-8"))
    changed = [
        name
        for name, value in _flat(resolved).items()
        if _flat(known).get(name, value) != value and name not in ("trainer.max_epochs", "overwrite", "threads")
    ]
    if changed:
        raise ConfigError(
            f"run folder {run}: holds a run with other settings ({', '.join(changed[:3])}). Give another folder with "
            "--trainer.default_root_dir, or --overwrite true to discard that run."
        )


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(tree, dict):
        parts = [_flat(value, f"{prefix}.{name}" if prefix else str(name)) for name, value in tree.items()]
        return {name: value for part in parts for name, value in part.items()}
    return {prefix: tree}


def train(args: list[str]) -> Path:
    """Train by configuration (`--config FILE` plus overrides) and return the run's folder; see `medagent train --help`."""
    cli = AgentCLI(
        AgentModule,
        RolloutData,
        run=False,
        args=args,
        save_config_callback=None,
        seed_everything_default=0,
        auto_configure_optimizers=False,
        parser_kwargs={"prog": "medagent train", "description": train.__doc__},
    )
    run = Path(cli.trainer.default_root_dir)
    dumped = cli.parser.dump(cli.config, skip_none=False)
    if cli.config["overwrite"]:
        _discard(run)
    _check_same_run(run, yaml.safe_load(dumped))
    run.mkdir(parents=True, exist_ok=True)
    part = run / "config.yaml.part"
    part.write_text(dumped, encoding="utf-8")
    os.replace(part, run / "config.yaml")
    checkpoint = newest_checkpoint(run)
    if checkpoint is not None:
        print(f"Going on from {checkpoint}.")
    cli.trainer.fit(cli.model, datamodule=cli.datamodule, ckpt_path=checkpoint and str(checkpoint))
    return run
