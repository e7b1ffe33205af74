"""Ranks as threads: each has a trainer that knows its rank, and `reduce` waits for the others, as a real one does."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")
TIMEOUT_S = 60.0


class PretendRanks:
    """So many ranks in one process."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._barrier = Barrier(count)
        self._slots: list[torch.Tensor] = [torch.zeros(())] * count

    def trainer(self, rank: int, module: Any = None, **settings: Any) -> Any:
        """What the code asks of a Lightning trainer."""

        def reduce(tensor: torch.Tensor, reduce_op: str = "mean") -> torch.Tensor:
            return self._reduced(rank, tensor, reduce_op)

        strategy = SimpleNamespace(reduce=reduce, root_device=torch.device("cpu"))
        made = {"current_epoch": 0, "max_epochs": 1, **settings}
        return SimpleNamespace(
            world_size=self.count, global_rank=rank, strategy=strategy, lightning_module=module, **made
        )

    def _reduced(self, rank: int, tensor: torch.Tensor, how: str) -> torch.Tensor:
        self._slots[rank] = tensor.detach().clone()
        self._barrier.wait(TIMEOUT_S)
        together = torch.stack(self._slots)
        self._barrier.wait(TIMEOUT_S)
        found = {"sum": together.sum(0), "max": together.amax(0), "mean": together.sum(0) / self.count}[how]
        return tensor.detach().copy_(found)  # in place, as torch.distributed does

    def run(self, work: Callable[[int], Result]) -> list[Result]:
        """What `work` returns on each rank; all run at once."""
        with ThreadPoolExecutor(self.count) as pool:
            return list(pool.map(work, range(self.count)))
