"""Rollout records: JSON lines that a person can read, one file per iteration."""

from __future__ import annotations

from pathlib import Path

from lightning import Callback, LightningModule, Trainer

from medagent.evaluation.rollout_files import write_records
from medagent.training.data import RolloutData


class RolloutRecords(Callback):
    """Writes the rollouts of every `every`-th iteration to `rollouts/iteration_0000.jsonl` in the run's folder."""

    def __init__(self, every: int = 1, limit: int | None = 32) -> None:
        """`limit` keeps the first so many rollouts of an iteration; none keeps all."""
        self._every, self._limit = every, limit

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, RolloutData)
        if trainer.current_epoch % self._every or not trainer.is_global_zero:
            return
        folder = Path(trainer.default_root_dir) / "rollouts"
        write_records(folder / f"iteration_{trainer.current_epoch:04d}.jsonl", data.rollouts[: self._limit])
