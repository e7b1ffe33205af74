"""What a run prints: a line per iteration, and at its end what changed most."""

import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only

from medagent.evaluation.viewer.recorded import ROLLOUTS, RecordedRun, read_metrics

SAID = 200  # characters of a rollout's turns


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

    @rank_zero_only
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell what changed most since the run began, with rollouts before and after."""
        run = Path(trainer.default_root_dir)
        print("\n".join([*changes(read_metrics(run)), *before_and_after(run)]), flush=True)


WATCHED = {  # metric -> its words
    "reward/success": "success",
    "rollout/searches": "searches",
    "rollout/valid_answer": "readable answers",
    "rollout/truncated": "cut rollouts",
    "policy/clip_fraction": "clipped",
    "policy/entropy": "entropy",
}


def changes(metrics: Sequence[Mapping[str, float]], most: int = 3) -> list[str]:
    """The figures that changed most from the first iteration to the last, in a line."""
    if len(metrics) < 2:
        return []
    pairs = [(words, metrics[0].get(name), metrics[-1].get(name)) for name, words in WATCHED.items()]
    both = [(words, old, new) for words, old, new in pairs if old is not None and new is not None]
    both.sort(key=lambda each: abs(each[2] - each[1]) / max(abs(each[1]), abs(each[2]), 1e-9), reverse=True)
    told = ", ".join(f"{words} {old:.2f} to {new:.2f}" for words, old, new in both[:most])
    return [f"Changed most since the first iteration: {told}."]


def before_and_after(run: Path, most: int = 3) -> list[str]:
    """The questions whose reward changed most between the first and the last time that they were asked."""
    if not (run / ROLLOUTS).is_dir():
        return []
    recorded, asked = RecordedRun(run), dict[str, list[tuple[str, dict[str, Any]]]]()
    for part, told in recorded.overview()["parts"].items():
        for row in told["rollouts"]:
            asked.setdefault(row["question_id"], []).append((part, row))
    twice = [(rows[0], rows[-1]) for rows in asked.values() if rows[0][0] != rows[-1][0]]
    twice.sort(key=lambda pair: abs(pair[1][1]["reward"] - pair[0][1]["reward"]), reverse=True)
    lines = [f"See every rollout: medagent view {run}"]
    for pair in twice[:most]:
        for part, row in pair:
            whole = recorded.rollout(part, row["question_id"], row["sample"])
            lines += [whole["question"]] if (part, row) == pair[0] else []
            said = " ".join(" ".join(turn["text"].split()) for turn in whole["turns"])
            lines.append(f"  iteration {int(part) + 1}, {row['verdict']}: {said[:SAID]}")
    return lines


def _bar(share: float, width: int = 20) -> str:
    filled = round(share * width)
    return "#" * filled + "." * (width - filled)
