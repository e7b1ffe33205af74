"""Iterations are whole: a run ends after one, and is taken up after one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning import Callback, LightningModule, Trainer

from medagent.errors import ConfigError
from medagent.training.experience import Experience

WHOLE = "iteration_is_whole"  # the key in a checkpoint


class WholeIterations(Callback):
    """Ends a run that is asked to stop inside an iteration, and marks checkpoints made between iterations.

    It runs after all other callbacks but those that write checkpoints. An iteration is whole once they have done
    their part, such as the export.
    """

    def __init__(self) -> None:
        self._whole = False

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """An iteration begins."""
        self._whole = False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: Experience, batch_idx: int
    ) -> None:
        """Refuse to stop here: the checkpoint and the agent would be of part of an iteration.

        Raises:
            ConfigError: the trainer is to stop, and optimizer steps are left.
        """
        if trainer.should_stop and batch_idx + 1 < trainer.num_training_batches:
            raise ConfigError(
                f"trainer.should_stop: found true in iteration {trainer.current_epoch} after step "
                f"{batch_idx + 1} of {trainer.num_training_batches}, wanted it at an iteration's end. No agent and no "
                "checkpoint is made of part of an iteration. Set it in the callback's on_train_epoch_end, or use "
                "CollapseMonitor."
            )

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The iteration is whole."""
        self._whole = True

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, object]) -> None:
        """Mark the checkpoint."""
        checkpoint[WHOLE] = self._whole


def why_not_to_go_on(checkpoint: Mapping[str, Any]) -> str | None:
    """Why a run must not go on from a checkpoint; none where it may."""
    if "state_dict" in checkpoint and not {"loops", "optimizer_states"} <= checkpoint.keys():
        return "it holds weights alone"
    return None if checkpoint.get(WHOLE, True) else "it was made inside an iteration"
