"""Several ranks, which make the same calls in the same order: reductions over them."""

from typing import Literal, TypeVar

from lightning import Trainer
from torch import Tensor, distributed

Item = TypeVar("Item")


def over_ranks(trainer: Trainer, tensor: Tensor, op: Literal["sum", "mean", "max"]) -> Tensor:
    """The tensor summed, averaged or maximised over ranks, on the CPU; with one rank it is returned."""
    if trainer.world_size == 1:
        return tensor
    total = trainer.strategy.reduce(tensor.detach().clone().to(trainer.strategy.root_device), reduce_op=op)
    assert isinstance(total, Tensor)
    return total.cpu()


def gathered(trainer: Trainer, own: list[Item]) -> list[Item]:
    """The items of all ranks, on each of them."""
    if trainer.world_size == 1:
        return own
    parts: list[list[Item]] = [[]] * trainer.world_size
    distributed.all_gather_object(parts, own)
    return [each for part in parts for each in part]
