"""Plain LoRA adapters, on linear layers that share no weight: the only ones that are loaded, merged and served.

A plain adapter changes a layer by scaling * B A, and perhaps its bias. Anything else would be lost in a merge.
"""

import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from peft import LoraConfig, PeftConfig, PeftModel
from peft.tuners.lora import LoraLayer
from peft.utils import load_peft_weights
from torch import nn
from transformers import PreTrainedModel

from medagent.errors import ConfigError
from medagent.models.causal_lm import ADAPTER_FILE

# Settings of peft that a merge keeps whatever they are, or that `_other_setting` judges by their value.
KEPT = {
    *("peft_type", "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision"),
    *("inference_mode", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "bias"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "fan_in_fan_out"),
    *("init_lora_weights", "lora_dropout", "loftq_config", "eva_config", "corda_config", "lora_ga_config"),
    *("qalora_group_size", "megatron_core"),
}
VALUES = {
    "peft_type": ("LORA",),
    "task_type": ("CAUSAL_LM", None),
    "bias": ("none", "all", "lora_only", None),
    # The last two take a part out of the base's weights, the same part whenever they are loaded.
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal", "pissa", "olora"),
}
BESIDE = {"bias": ("none", None), "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal")}
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
    found = _other_setting(settings, VALUES | BESIDE if beside else VALUES)
    if found is not None:
        served = " A server adds nothing else to its base." if beside else ""
        raise ConfigError(f"{where}: found {found} in {ADAPTER_FILE}, {WANTED}.{served} {REMEDY}")
    others = [name for name in tensors if not _is_plain(name, biases=settings.get("bias") in ("all", "lora_only"))]
    if others:
        raise ConfigError(f"{where}: found the tensors {_some(others)}, {WANTED}. {REMEDY}")


def rank_of(adapter: Path) -> int:
    """The rank of a LoRA adapter in peft's form."""
    return int(PeftConfig.from_pretrained(str(adapter)).r)


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


def _other_setting(settings: dict[str, object], values: Mapping[str, tuple[object, ...]]) -> str | None:
    """The first setting that makes an adapter more than plain, as it is written."""
    for name, wanted in values.items():
        if settings.get(name) not in wanted:
            return f"{name} {settings.get(name)!r}"
    usual = asdict(LoraConfig())
    for name, value in settings.items():
        if name not in KEPT and value and value != usual.get(name):
            return f"{name} {value!r}"
    return None


def _is_plain(name: str, *, biases: bool) -> bool:
    """Whether a merge keeps it: a matrix, a bias, or the weight below them, which peft writes for heads."""
    plain = (".lora_A.weight", ".lora_B.weight", ".base_layer.weight")
    return name.endswith(plain) or (biases and name.endswith(".bias"))


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
