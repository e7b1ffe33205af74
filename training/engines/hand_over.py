"""How weights leave the trainer: the adapter as it is, or merged into the base, and what the sampler must then hold."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file

from medagent.models.checksums import Checksum, checksum, combined, place
from medagent.models.merging import MAX_MERGE_LOST, Form, MergeLoss, form_for
from medagent.policies.ray_replica import stored_matrices
from medagent.routing_record import RoutingShape
from medagent.training.adapters import POLICY
from medagent.training.engines.arrival import require_arrival
from medagent.training.module import AgentModule

HandOver = Literal["auto", "merged", "adapter"]
WITHOUT_MERGE = (
    "Take hand_over: adapter (or auto), train with model.dtype float32, or raise max_merge_lost and sample with "
    "another policy than the trained one."
)


def form_of(hand_over: HandOver, module: AgentModule) -> Form:
    """What `hand_over` means for this module: see `medagent.models.merging.form_for`."""
    quantised = module.execution.quantise != "none"
    return form_for(module.dtype_name, quantised=quantised) if hand_over == "auto" else hand_over


def is_whole(loss: MergeLoss | None) -> bool:
    """Whether the sampler holds the policy itself, so that a probe can tell whether it does."""
    return loss is None or loss.share <= MAX_MERGE_LOST


def routing_shape(module: AgentModule) -> RoutingShape | None:
    """What a sampler must know to record its experts, where it is to."""
    routers = module.roles.routers if module.routing_replay == "r3" else None
    return None if routers is None else routers.shape


def merge_metrics(loss: MergeLoss | None) -> dict[str, float]:
    """`sampler/merge_lost`, where a merge was made."""
    return {} if loss is None else {"sampler/merge_lost": loss.share}


def save_adapter(module: AgentModule, folder: Path) -> None:
    """Write the policy's adapter into `folder`, and read it again.

    Raises:
        PolicyError: the file does not hold the module's present weights.
    """
    module.roles.save_policy(folder)
    written = stored_matrices(load_file(folder / "adapter_model.safetensors"))
    held = {name: checksum(weight) for name, weight in written.items()}
    require_arrival(exact_adapter(module), held, where=f"adapter file in {folder}")


def exact_adapter(module: AgentModule) -> dict[str, Checksum]:
    """The checksum of each matrix of the policy's adapter as it is, under its name in the base."""
    matrices = module.roles.adapter_weights().items()
    return {name.replace(f".{POLICY}.weight", ""): checksum(weight) for name, weight in matrices}


@torch.no_grad()
def served_adapter(module: AgentModule, dtype: str) -> dict[str, Checksum]:
    """The checksums of the policy's adapter as vLLM keeps it: in `dtype`, and B times its scaling."""
    kind: torch.dtype = getattr(torch, dtype)
    found: dict[str, list[Checksum]] = {}
    for name, weight in module.roles.adapter_weights().items():
        matrix = "lora_A" if ".lora_A." in name else "lora_B"
        cast = weight.to("cpu", kind)
        if matrix == "lora_B":
            cast = cast * (module.policy_lora.alpha / module.policy_lora.rank)
        found.setdefault(place(name.partition(f".{matrix}.")[0], matrix), []).append(checksum(cast))
    return {where: combined(each) for where, each in found.items()}
