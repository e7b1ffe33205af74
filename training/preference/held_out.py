"""What is said of a run of `medagent preference`: loss and accuracy on pairs that are not trained on, and a line."""

from __future__ import annotations

import math
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer

from medagent.training.module import AgentModule
from medagent.training.passes import rows_of_passes
from medagent.training.preference.data import PreferenceData, to_prefer
from medagent.training.preference.module import PreferenceModule, pair_metrics
from medagent.training.ranks import over_ranks

HELD_OUT = {"preference/loss": "preference/held_out_loss", "preference/accuracy": "preference/held_out_accuracy"}


class HeldOutPairs(Callback):
    """Logs loss and accuracy on held-out pairs after each epoch, as `medagent.training.preference.module` has them.

    Training accuracy rises for as long as pairs are repeated. Held-out loss rises where the model learns them by heart.
    """

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure what the epoch left."""
        assert isinstance(pl_module, PreferenceModule)
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, PreferenceData)
        if not data.held_out:
            return
        sums = torch.zeros(len(HELD_OUT), dtype=torch.float64)
        own = sorted(data.held_out[trainer.global_rank :: trainer.world_size], key=lambda pair: pair.length)
        at_a_time = max(1, data.batch_size // data.num_micro_batches)
        parts = []
        for start in range(0, len(own), at_a_time):
            some = to_prefer(own[start : start + at_a_time], pad_id=pl_module.pad_id, weight=1.0)
            groups = rows_of_passes(pl_module.execution, some.token_ids_BT, some.attention_BT, some.groups_B)
            parts += [some.rows(rows) for rows in groups]
        idle = to_prefer(data.held_out[:1], pad_id=pl_module.pad_id, weight=1.0).idle()
        parts += [idle] * (pl_module.most_passes(len(parts)) - len(parts))
        with torch.no_grad(), pl_module.roles.token_counts.paused():
            for part in parts:
                terms, _ = pl_module.pair_terms(part.to(pl_module.device))
                found = pair_metrics(pl_module.preference_loss, terms)
                sums += torch.stack([found[name].cpu() for name in HELD_OUT])
        values = (over_ranks(trainer, sums, "sum") / len(data.held_out)).tolist()
        metrics = dict(zip(HELD_OUT.values(), values, strict=True))
        pl_module.log_dict(metrics, logger=False)
        for logger in trainer.loggers:  # at once, as in HeldOutEvaluation
            logger.log_metrics({**metrics, "epoch": trainer.current_epoch}, step=trainer.global_step)


class PreferenceProgress(Callback):
    """Prints a line per epoch: mean loss and accuracy of its steps, and what was measured on held-out pairs."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, float]] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note the figures of a step that was not skipped."""
        assert isinstance(pl_module, AgentModule)
        if not pl_module.finite_steps.skipped:
            found = trainer.callback_metrics
            self._seen.append((float(found["preference/loss"]), float(found["preference/accuracy"])))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the epoch's line."""
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        told = {
            "held-out loss {:.4f}": "preference/held_out_loss",
            "held-out pairs right {:4.0%}": "preference/held_out_accuracy",
            "held-out {:4.0%}": "validation/accuracy",
        }
        parts = [words.format(metrics[name]) for words, name in told.items() if name in metrics]
        steps, self._seen = self._seen, []
        loss, right = (sum(each) / len(steps) for each in zip(*steps, strict=True)) if steps else (math.nan, math.nan)
        line = f"epoch {trainer.current_epoch + 1:3d}/{trainer.max_epochs}  loss {loss:.4f}  pairs right {right:4.0%}"
        print("  ".join([line, *parts]), flush=True)
