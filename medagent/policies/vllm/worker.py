"""Takes new weights out of shared memory. It runs inside vLLM's worker processes, which load it by name.

It imports nothing of the project, and of Python only what vLLM's process has anyway.
"""

from __future__ import annotations

import json
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import torch


class WeightReceiver:
    """Mixed into vLLM's worker; `reload_weights` is the worker's own."""

    reload_weights: Any

    def receive_weights(self, name: str, layout: str) -> int:
        """Load the tensors that lie in the shared memory `name`; returns how many.

        `layout` is JSON: [[tensor name as in the checkpoint, torch dtype, shape, offset in bytes], ...].
        """
        memory = SharedMemory(name=name)
        # Its maker frees it. Before Python 3.13, the tracker would free it again when this process ends.
        resource_tracker.unregister(memory._name, "shared_memory")  # type: ignore[attr-defined]
        tensors: list[tuple[str, torch.Tensor]] = []
        try:
            tensors += [(key, view(memory, dtype, shape, offset)) for key, dtype, shape, offset in json.loads(layout)]
            self.reload_weights(weights_iterator=iter(tensors))
            return len(tensors)
        finally:
            tensors.clear()  # the memory cannot be closed under a view
            memory.close()


def view(memory: SharedMemory, dtype: str, shape: list[int], offset: int) -> torch.Tensor:
    """A tensor that reads the shared memory; it must not outlive it."""
    kind: torch.dtype = getattr(torch, dtype)
    count = 1
    for size in shape:
        count *= size
    return torch.frombuffer(memory.buf, dtype=kind, count=count, offset=offset).view(shape)
