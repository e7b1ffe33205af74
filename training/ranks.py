"""Figures over all ranks.

Every rank must make the same calls in the same order. With one rank nothing is called and no bit changes.
"""

from __future__ import annotations

from typing import Literal

from lightning import Trainer
from torch import Tensor


def over_ranks(trainer: Trainer, tensor: Tensor, op: Literal["sum", "mean", "max"]) -> Tensor:
    """The tensor summed, averaged or maximised over ranks entry by entry, on the CPU; the given one stays as it is."""
    if trainer.world_size == 1:
        return tensor
    total = trainer.strategy.reduce(tensor.detach().clone().to(trainer.strategy.root_device), reduce_op=op)
    assert isinstance(total, Tensor)
    return total.cpu()
