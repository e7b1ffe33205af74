"""Plain LoRA adapters, on linear layers that share no weight: the only ones that are loaded, merged and served.

A plain adapter changes a layer by scaling * B A, and perhaps its bias. Anything else would be lost in a merge.

A weight of 8 bits of mantissa cannot hold a change below 1/512 of itself. Early in training most of what a LoRA
learns is smaller. So merges are computed in float32, and the lost share is measured after rounding to the base's dtype.
"""

import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from peft import LoraConfig, PeftModel
from peft.tuners.lora import LoraLayer
from peft.utils import load_peft_weights
from torch import Tensor, nn
from transformers import PreTrainedModel

from medagent.errors import ConfigError
from medagent.lazy import packaged
from medagent.models.causal_lm import ADAPTER_FILE

SETTINGS = packaged("medagent.models", "plain_lora.yaml")
BIASES = ("all", "lora_only")
WANTED = "wanted plain LoRA (peft_type LORA: matrices A and B on linear layers, biases if need be)"
REMEDY = (
    "Merge it into its base with the tool that made it (peft: merge_and_unload, then save_pretrained), and name the "
    "merged folder as the base model; or train an adapter without it."
)


def check_adapter(folder: Path, *, beside: bool = False) -> None:
    """Read an adapter's settings and the names of its tensors. With `beside`, a server adds it to its own base.

    Raises:
        ConfigError: it is damaged, or holds anything but plain LoRA.
    """
    where = f"adapter {folder}"
    try:
        settings = json.loads((folder / ADAPTER_FILE).read_text(encoding="utf-8"))
        tensors = list(load_peft_weights(str(folder), device="cpu"))
        if not isinstance(settings, dict):
            raise TypeError(f"{ADAPTER_FILE} holds no object")
    except Exception as error:  # files of any kind
        raise ConfigError(
            f"{where}: cannot be read ({error!r}), wanted {ADAPTER_FILE} and adapter_model.safetensors. Export or "
            "copy it again."
        ) from error
    found = _other_setting(settings, SETTINGS["beside" if beside else "values"])
    if found is not None:
        served = " A server adds nothing else to its base." if beside else ""
        raise ConfigError(f"{where}: found {found} in {ADAPTER_FILE}, {WANTED}.{served} {REMEDY}")
    # What a merge keeps: matrices, biases, and the weight below them, which peft writes for heads.
    kept = (".lora_A.weight", ".lora_B.weight", ".base_layer.weight", *[".bias"] * (settings.get("bias") in BIASES))
    others = [name for name in tensors if not name.endswith(kept)]
    if others:
        raise ConfigError(f"{where}: found the tensors {_some(others)}, {WANTED}. {REMEDY}")


def with_adapter(model: PreTrainedModel, folder: Path) -> PeftModel:
    """The model in evaluation mode with the adapter of `folder` beside its weights.

    Raises:
        ConfigError: the adapter is not plain LoRA, or is not one of this base.
    """
    check_adapter(folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is refused below
            adapted = PeftModel.from_pretrained(model, str(folder)).eval()
            (name,) = adapted.peft_config
            read = adapted.load_adapter(str(folder), name)  # again, as only this says what found no place
    except Exception as error:  # peft raises anything where shapes or names do not fit
        said = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"adapter {folder}: cannot be put on {type(model).__name__} ({said}), wanted an adapter of this base. Give "
            "the base that it was trained on."
        ) from error
    check_layers(adapted, f"adapter {folder}", remedy=REMEDY)
    astray = [*read.missing_keys, *read.unexpected_keys]
    if astray:
        raise ConfigError(
            f"adapter {folder}: its tensors are not those of {type(model).__name__}'s layers (astray: {_some(astray)}),"
            " wanted one for each. Give the base that it was trained on."
        )
    return adapted


def check_layers(model: nn.Module, where: str, *, remedy: str) -> None:
    """Refuse LoRA on what is no linear layer, or on one whose weight the model uses elsewhere too.

    Raises:
        ConfigError: such a layer is there. It could not be merged, or the merge would change the other place.
    """
    named: dict[torch.Tensor, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        named.setdefault(parameter, []).append(name)
    for name, layer in lora_layers(model):
        base = layer.get_base_layer()
        weight = base._parameters.get("weight")
        if weight is None or weight.ndim != 2 or "bias" not in base._parameters:
            raise ConfigError(
                f"{where}: found LoRA on a {type(base).__name__} at {name}, wanted linear layers alone, as a LoRA on "
                f"other ones cannot be merged. {remedy}"
            )
        if len(named[weight]) > 1:
            raise ConfigError(
                f"{where}: found LoRA on {name}, whose weight is tied (it is {_some(named[weight])}), wanted layers "
                f"that share no weight, as a merge would change each of these. {remedy}"
            )


def lora_layers(model: nn.Module) -> Iterable[tuple[str, LoraLayer]]:
    """The layers that carry LoRA, with their names."""
    return [(name, module) for name, module in model.named_modules() if isinstance(module, LoraLayer)]


def _other_setting(settings: dict[str, object], values: Mapping[str, Sequence[object]]) -> str | None:
    """The first setting that makes an adapter more than plain, as it is written."""
    for name, wanted in values.items():
        if settings.get(name) not in wanted:
            return f"{name} {settings.get(name)!r}"
    usual, kept = asdict(LoraConfig()), SETTINGS["kept"].split()
    for name, value in settings.items():
        if name not in kept and value and value != usual.get(name):
            return f"{name} {value!r}"
    return None


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


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
