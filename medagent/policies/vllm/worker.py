"""Takes new weights out of shared memory, and reports which weights the worker holds.

It runs inside vLLM's worker processes, which load it by name. So it imports only what vLLM's process has anyway, and
`medagent.models.checksums`, which needs no more.
"""

from __future__ import annotations

import json
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import torch

from medagent.models.checksums import Checksum, checksum, combined, place


class WeightReceiver:
    """Mixed into vLLM's worker; `reload_weights` is the worker's own."""

    reload_weights: Any
    model_runner: Any
    received: dict[str, Checksum] | None = None  # by name, of the last sync
    sizes: dict[str, int]

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
            self.received = {key: checksum(tensor) for key, tensor in tensors}
            self.sizes = {key: tensor.numel() for key, tensor in tensors}
            return len(tensors)
        finally:
            tensors.clear()  # the memory cannot be closed under a view
            memory.close()

    def held_weights(self) -> dict[str, Checksum]:
        """Checksums of the weights that came last, by their names in the checkpoint.

        A weight whose place in the model holds something else is left out. If vLLM has packed a weight for the
        processor's own kernels, or holds only a part of it, the checksum is that of the weight received.
        """
        model = self.model_runner.get_model()
        there = {name.replace(".base_layer.", "."): value for name, value in model.named_parameters()}
        parts: dict[str, list[str]] = {}
        for name in self.received or {}:
            parts.setdefault(_fused(name, model.packed_modules_mapping), []).append(name)
        held: dict[str, Checksum] = {}
        for fused, names in parts.items():
            wanted = {name: (self.received or {})[name] for name in names}
            parameter = there.get(fused)
            size = 0 if parameter is None else parameter.numel()
            whole = parameter is not None and size == sum(self.sizes[name] for name in names)
            if not whole or (parameter is not None and checksum(parameter) == combined(wanted.values())):
                held |= wanted
        return held

    def held_adapters(self) -> dict[str, dict[str, Checksum]]:
        """Number of each loaded adapter -> checksums by place: of its A matrices, and of B times scaling."""
        adapters = self.model_runner.lora_manager._adapter_manager.list_adapters()
        return {str(number): _matrices(adapter) for number, adapter in adapters.items()}


def _fused(name: str, mapping: dict[str, list[str]]) -> str:
    """The name of the parameter that holds the checkpoint's `name`, such as qkv_proj for q_proj."""
    module, _, kind = name.rpartition(".")
    parent, _, last = module.rpartition(".")
    fused = next((whole for whole, parts in mapping.items() if last in parts), last)
    return f"{parent}.{fused}.{kind}" if parent else f"{fused}.{kind}"


def _matrices(adapter: Any) -> dict[str, Checksum]:
    """The matrices as vLLM keeps them: in its dtype, those of fused layers as lists, and B scaled."""
    found: dict[str, list[Checksum]] = {}
    for name, weights in adapter.loras.items():
        several = isinstance(weights.lora_a, list)
        columns = zip(
            weights.lora_a if several else [weights.lora_a],
            weights.lora_b if several else [weights.lora_b],
            weights.scaling if several else [weights.scaling],
            strict=True,
        )
        for a, b, scaling in columns:
            if a is not None:
                found.setdefault(place(name, "lora_A"), []).append(checksum(a))
                found.setdefault(place(name, "lora_B"), []).append(checksum(b if scaling == 1 else b * scaling))
    return {kind: combined(each) for kind, each in found.items()}


def view(memory: SharedMemory, dtype: str, shape: list[int], offset: int) -> torch.Tensor:
    """A tensor that reads the shared memory; it must not outlive it."""
    kind: torch.dtype = getattr(torch, dtype)
    count = 1
    for size in shape:
        count *= size
    return torch.frombuffer(memory.buf, dtype=kind, count=count, offset=offset).view(shape)
