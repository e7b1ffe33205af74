"""A line a minute from long work: what it does, what it has learnt, and how long it still takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lightning import Callback, LightningModule, Trainer

EVERY_S = 60.0
PRIOR = 10.0  # minutes


class Pace:
    """Says every `every_s` seconds how far the stages of a long command are.

    `shares` are the minutes that the stages are expected to take. The time left is that of what is left, times how much
    slower than expected the parts done in this process were. They are taken together with `PRIOR` minutes as expected,
    so that the first lines of a slow start say nothing absurd.
    """

    def __init__(self, shares: Mapping[str, float], say: Callable[[str], None], *, every_s: float = EVERY_S) -> None:
        self._shares, self._say, self._every_s = dict(shares), say, every_s
        self._left = dict(shares)
        self._name, self._fraction, self._fraction_before, self._learnt = "", 0.0, 0.0, ""
        self._done_here, self._spent_s, self._began = 0.0, 0.0, 0.0
        self._timed: float | None = None  # the fraction of the stage that was there when its clock began
        self._over = threading.Event()

    def skip(self, name: str) -> None:
        """Count a stage as done before."""
        self._left.pop(name, None)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Say a line every so often until the stage ends."""
        self._name, self._fraction, self._learnt, self._timed = name, 0.0, "", None
        self._began, self._over = time.monotonic(), threading.Event()
        global _running
        _running = self
        teller = threading.Thread(target=self._tell, args=(self._over,), daemon=True)
        teller.start()
        try:
            yield
            self._done_here += self._left.pop(name, 0.0) * (1 - (self._timed or 0.0))
            self._spent_s += time.monotonic() - self._began
        finally:
            self._over.set()
            teller.join()
            _running = None

    def update(self, fraction: float, learnt: str = "") -> None:
        """Note how much of the stage is done, and what it has learnt."""
        if self._timed is None:
            self._timed = fraction if fraction < 1 else 0.0
        self._fraction, self._learnt = fraction, learnt or self._learnt

    def line(self) -> str:
        """What is said now."""
        share = self._shares.get(self._name, 0.0)
        spent_s = self._spent_s + time.monotonic() - self._began
        done = self._done_here + share * max(0.0, self._fraction - (self._timed or 0.0))
        left = sum(self._left.values()) - share * self._fraction
        said = f"   {self._name}: {self._fraction:.0%}"
        if self._learnt:
            said += f", {self._learnt}"
        slower = (spent_s / 60 + PRIOR) / (done + PRIOR)
        return f"{said}; about {minutes(60 * slower * max(0.0, left))} left in all"

    def _tell(self, over: threading.Event) -> None:
        while not over.wait(self._every_s):
            self._say(self.line())


_running: Pace | None = None


class PaceCallback(Callback):
    """Tells the running `Pace` how far a training is; without one it does nothing."""

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note the part of all updates that is done, and the newest measure of what was learnt."""
        if _running is None:
            return
        done = (trainer.current_epoch + (batch_idx + 1) / max(1, int(trainer.num_training_batches))) / max(
            1, trainer.max_epochs or 1
        )
        metrics = trainer.callback_metrics
        learnt = ""
        if "reward/success" in metrics:
            learnt = f"{float(metrics['reward/success']):.0%} of sampled rollouts answer right"
        elif "sft/loss" in metrics:
            learnt = f"loss {float(metrics['sft/loss']):.2f} nats a token"
        _running.update(min(1.0, done), learnt)


def minutes(seconds: float) -> str:
    """A duration in words.

    >>> minutes(40), minutes(61), minutes(5000)
    ('1 minute', '1 minute', '83 minutes')
    """
    count = max(1, round(seconds / 60))
    return f"{count} minute" + ("s" if count > 1 else "")
