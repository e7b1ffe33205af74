"""Loss and accuracy on dialogues that are not imitated.

Training loss falls for as long as dialogues are repeated. Held-out loss rises where the model learns them by heart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from medagent.errors import ConfigError
from medagent.training.experience import RolloutTensors, tensorize
from medagent.training.module import AgentModule
from medagent.training.passes import rows_of_passes
from medagent.training.ranks import over_ranks
from medagent.training.sft.supervised import SupervisedData


class HeldOutLoss(Callback):
    """Logs loss and right turns on held-out dialogues after each epoch, and with `every_steps` also within it.

    `sft/held_out_loss` is the negative log-likelihood per action token, in nats. `sft/held_out_turns` is the share of
    turns in which every token is the likeliest after what stands before it: greedily the agent would write that turn.
    """

    def __init__(self, every_steps: int | None = None) -> None:
        if every_steps is not None and every_steps < 1:
            raise ConfigError(f"HeldOutLoss.every_steps: found {every_steps}, wanted 1 or more, or null.")
        self._every, self._measured_at = every_steps, -1

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Measure after every so many optimizer steps."""
        if self._every and trainer.global_step % self._every == 0:
            metrics = self._measure(trainer, pl_module)
            if metrics and trainer.is_global_zero:
                loss, turns = metrics["sft/held_out_loss"], metrics["sft/held_out_turns"]
                print(f"step {trainer.global_step}  held-out loss {loss:.4f}  turns right {turns:4.0%}", flush=True)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure what the epoch left, unless its last step was measured."""
        if self._measured_at != trainer.global_step:
            self._measure(trainer, pl_module)

    def _measure(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, float]:
        assert isinstance(pl_module, AgentModule)
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, SupervisedData)
        self._measured_at = trainer.global_step
        if not data.held_out:
            return {}
        sums = torch.zeros(4, dtype=torch.float64)
        with pl_module.roles.token_counts.paused():
            for part in _passes(trainer, pl_module, data):
                sums += _sums(pl_module, part)
        loss, tokens, right, turns = over_ranks(trainer, sums, "sum").tolist()
        metrics = {"sft/held_out_loss": loss / tokens, "sft/held_out_turns": right / turns}
        pl_module.log_dict(metrics, logger=False)
        for logger in trainer.loggers:  # at once, as in HeldOutEvaluation
            logger.log_metrics({**metrics, "epoch": trainer.current_epoch}, step=trainer.global_step)
        return metrics


def _passes(trainer: Trainer, module: AgentModule, data: SupervisedData) -> Iterator[RolloutTensors]:
    """Dialogues of this rank, as many per pass as training takes.

    Where the base is sharded, all ranks make equally many passes; those that are left over read a row without actions.
    """
    own = data.held_out[trainer.global_rank :: trainer.world_size]
    own = sorted(own, key=lambda rollout: len(rollout.token_ids))
    rows = max(1, data.batch_size // data.num_micro_batches)
    groups: list[RolloutTensors] = []
    for start in range(0, len(own), rows):
        some = tensorize(own[start : start + rows], pad_id=module.pad_id)
        groups += [some.rows(part) for part in rows_of_passes(module.execution, some.token_ids_BT, some.attention_BT)]
    yield from groups
    for _ in range(module.most_passes(len(groups)) - len(groups)):
        part = tensorize(data.held_out[:1], pad_id=module.pad_id)
        part.mask_BT.zero_()
        yield part


def _sums(module: AgentModule, part: RolloutTensors) -> Tensor:
    """[4] negative log-likelihood, action tokens, turns right, turns; over the rows of a pass."""
    part = part.to(module.device)
    logprobs_BT, likeliest_BT = module.roles.greedy_scores(
        part.token_ids_BT, part.attention_BT, part.mask_BT, temperature=module.temperature
    )
    rows_BT = torch.arange(len(part.mask_BT), device=part.mask_BT.device)[:, None].expand_as(part.mask_BT)
    turn_BT = rows_BT * (int(part.turn_ids_BT.max()) + 2) + part.turn_ids_BT
    turns = len(turn_BT[part.mask_BT].unique())
    missed = len(turn_BT[part.mask_BT & ~likeliest_BT].unique())
    loss = -float(logprobs_BT.double().sum())
    return torch.tensor([loss, float(part.mask_BT.sum()), turns - missed, turns], dtype=torch.float64)
