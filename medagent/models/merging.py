"""Merging a LoRA adapter into its base, and the share of it that rounding loses.

A weight of 8 bits of mantissa cannot hold a change below 1/512 of itself. Early in training most of what a LoRA
learns is smaller. So merges are computed in float32, and the lost share is measured after rounding to the base's dtype.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from medagent.errors import ConfigError
from medagent.models.plain_lora import lora_layers

MAX_MERGE_LOST = 0.05
NEGLIGIBLE = 1e-6  # of the weights' own norm; rounding to float32 takes 3e-8
Form = Literal["merged", "adapter"]


def form_for(dtype: str, *, quantised: bool = False) -> Form:
    """How a policy is sampled by default: merged if the base is in float32, else with the adapter beside the base.

    Rounding to float32 loses a share that cannot be measured. Nothing can be merged into a base in 4 bits.
    """
    return "merged" if dtype == "float32" and not quantised else "adapter"


@dataclass
class MergeLoss:
    """The share of an adapter's change that rounding takes, over all layers merged so far.

    It is ||(merged - W) - delta|| / ||delta||, with Frobenius norms over all layers together.
    """

    lost: float = 0.0
    whole: float = 0.0
    base: float = 0.0

    @torch.no_grad()
    def merge(self, weight: Tensor, delta: Tensor) -> Tensor:
        """W + delta W in W's dtype, added in float32; both have one shape, and the loss is counted."""
        exact, change = weight.float(), delta.float()
        merged = (exact + change).to(weight.dtype)
        self.lost += float((merged.float() - exact - change).double().square().sum())
        self.whole += float(change.double().square().sum())
        self.base += float(exact.double().square().sum())
        return merged

    @property
    def share(self) -> float:
        """Between 0 and about 1; 0 for an adapter that changes nothing."""
        return (self.lost / self.whole) ** 0.5 if self.whole else 0.0

    def require(self, most: float, *, where: str, remedy: str) -> None:
        """Refuse a merge that lost more than `most`, or that is not finite.

        A loss below `NEGLIGIBLE` of the weights passes: so small a change is none, whichever part of it is left.

        Raises:
            ConfigError: with `where` it was made and the `remedy`.
        """
        if not math.isfinite(self.share):
            raise ConfigError(
                f"{where}: found merged weights that are not finite, wanted finite ones. The adapter or its base is "
                "damaged, or their sum is too large for the base's dtype: go back to an earlier checkpoint, or take "
                "dtype float32."
            )
        if self.share > most and self.lost > NEGLIGIBLE**2 * self.base:
            raise ConfigError(
                f"{where}: merging loses {self.share:.0%} of the adapter to rounding, wanted at most {most:.0%}. "
                f"{remedy}"
            )


@torch.no_grad()
def merge_into(model: nn.Module) -> MergeLoss:
    """Replace every LoRA layer in `model` by its base layer with the change merged in; returns the loss.

    Layers of a base in 4 bits must be dequantised first. `models.plain_lora` says which adapters can be merged.
    """
    loss = MergeLoss()
    for name, layer in lora_layers(model):
        base = layer.get_base_layer()
        (adapter,) = layer.lora_A  # one adapter, as agents have
        weight: Tensor = base.weight  # type: ignore[assignment]
        weight.copy_(loss.merge(weight, layer.get_delta_weight(adapter)))  # type: ignore[attr-defined]
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, base)
    return loss
