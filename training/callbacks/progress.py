"""The line that a run prints of each iteration."""

import math
import sys
import time
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only


class ProgressLine(Callback):
    """Prints a line per iteration: success, searches, clip fraction, speed and time left."""

    def __init__(self) -> None:
        self._started = self._epoch_started = 0.0
        self._first = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._started = time.monotonic()
        self._first = trainer.current_epoch

    @rank_zero_only
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epoch_started = time.monotonic()
        if sys.stdout.isatty():
            print(f"\riteration {trainer.current_epoch + 1}: collecting rollouts ...\x1b[K", end="", flush=True)

    @rank_zero_only
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if sys.stdout.isatty():
            done = f"{batch_idx + 1}/{trainer.num_training_batches}"
            print(f"\riteration {trainer.current_epoch + 1}: updating {done}\x1b[K", end="", flush=True)

    @rank_zero_only
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        total = trainer.max_epochs or 0
        done = trainer.current_epoch + 1
        now = time.monotonic()
        left_s = (now - self._started) / (done - self._first) * (total - done)
        held_out = metrics.get("validation/accuracy")
        clipped = metrics.get("policy/clip_fraction", math.nan)  # there is none where every step was skipped
        line = (
            f"iteration {done:3d}/{total}  success {_bar(metrics['reward/success'])} {metrics['reward/success']:4.0%}"
            f"  searches {metrics['rollout/searches']:.2f}  clipped {clipped:5.1%}"
            f"  {metrics['throughput/action_tokens_per_s']:5,.0f} tokens/s  {now - self._epoch_started:4.1f} s"
            f"  left {left_s:3.0f} s" + (f"  held-out {held_out:4.0%}" if held_out is not None else "")
        )
        print(("\r\x1b[K" if sys.stdout.isatty() else "") + line, flush=True)


def _bar(share: float, width: int = 20) -> str:
    filled = round(share * width)
    return "#" * filled + "." * (width - filled)
