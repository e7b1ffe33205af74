"""How the adapter leaves the trainer, and the checksums that an engine must hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from medagent.engines.base import PolicyWeights
from medagent.engines.weight_sync_check import require_synced
from medagent.models.checksums import Checksum, checksum, combined, place


def save_adapter(weights: PolicyWeights, folder: Path) -> None:
    """Write the policy's adapter into `folder`, and read it again.

    Raises:
        PolicyError: the file does not hold the present weights.
    """
    weights.write_adapter(folder)
    written = stored_matrices(load_file(folder / "adapter_model.safetensors"))
    held = {name: checksum(weight) for name, weight in written.items()}
    require_synced(exact_adapter(weights), held, where=f"adapter file in {folder}")


def stored_matrices(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The matrices of an adapter's file in peft's form by their names in the base, such as `...q_proj.lora_A`."""
    return {name.removeprefix("base_model.model.").removesuffix(".weight"): tensor for name, tensor in tensors.items()}


def exact_adapter(weights: PolicyWeights) -> dict[str, Checksum]:
    """The checksum of each matrix of the policy's adapter, by its name in the base, such as `...q_proj.lora_A`."""
    return {
        name.removesuffix(".weight").rpartition(".")[0]: checksum(weight) for name, weight in weights.adapter().items()
    }


@torch.no_grad()
def served_adapter(weights: PolicyWeights) -> dict[str, Checksum]:
    """The checksums of the policy's adapter as vLLM keeps it: in the base's dtype, and B times its scaling."""
    kind: torch.dtype = getattr(torch, weights.dtype)
    found: dict[str, list[Checksum]] = {}
    for name, weight in weights.adapter().items():
        matrix = "lora_A" if ".lora_A." in name else "lora_B"
        cast = weight.to("cpu", kind)
        if matrix == "lora_B":
            cast = cast * weights.lora_scaling
        found.setdefault(place(name.partition(f".{matrix}.")[0], matrix), []).append(checksum(cast))
    return {where: combined(each) for where, each in found.items()}
