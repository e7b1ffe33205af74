"""Importance-weight level: the callbacks write `ratio_segments_BT`, and the objective averages log-ratios over it."""

from collections.abc import Sequence
from typing import Any

from lightning import Callback, LightningModule, Trainer

from medagent.errors import ConfigError
from medagent.training.experience import Experience
from medagent.training.objectives import RatioLevel, ratio_segments


class _LevelSampling(Callback):
    """Writes the segments of one level."""

    level: RatioLevel

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse two levels at once."""
        callbacks = trainer.callbacks  # type: ignore[attr-defined]
        levels = [type(each).__name__ for each in callbacks if isinstance(each, _LevelSampling)]
        if len(levels) > 1:
            raise ConfigError(
                f"trainer.callbacks: found {' and '.join(levels)}; a ratio has one level. Keep one of them."
            )

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        assert isinstance(batch, Experience)
        batch.ratio_segments_BT = ratio_segments(self.level, batch.mask_BT, batch.turn_ids_BT)


class TurnLevelSampling(_LevelSampling):
    """One importance weight per turn (Turn-PPO, ST-PPO): the geometric mean over its action tokens.

    Source: arXiv 2511.20718.
    """

    level: RatioLevel = "turn"


class SequenceLevelSampling(_LevelSampling):
    """One importance weight per rollout (GSPO, arXiv 2507.18071)."""

    level: RatioLevel = "sequence"


def level_of(callbacks: Sequence[Callback]) -> RatioLevel:
    """The level that a run's callbacks set; without one it is the token."""
    return next((each.level for each in callbacks if isinstance(each, _LevelSampling)), "token")
