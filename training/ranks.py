"""What a trainer tells: reductions over its ranks, which make the same calls in the same order, and its callbacks."""

from typing import Literal, TypeVar

from lightning import Callback, Trainer
from torch import Tensor, distributed

Item = TypeVar("Item")
Kind = TypeVar("Kind", bound=Callback)


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


def callbacks_of(trainer: Trainer, kind: type[Kind]) -> list[Kind]:
    """The trainer's callbacks of a kind, in their order."""
    return [each for each in trainer.callbacks if isinstance(each, kind)]  # type: ignore[attr-defined]
