"""`dtype: auto`: a base computes in bfloat16 if that is faster, else in float32.

A processor without hardware for bfloat16 is slower in it than in float32. Small bases gain nothing, and lose most to
rounding.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from medagent.models.base_models import STARTER, model_path

AUTO = "auto"
SMALLEST = 50_000_000  # parameters of a base that is worth bfloat16
CPUINFO = Path("/proc/cpuinfo")
FLAGS = ("avx512_bf16", "amx_bf16")  # processors whose matrix products take bfloat16


@dataclass(frozen=True)
class Precision:
    """A dtype by torch's name, and the reason for it in words."""

    dtype: str
    reason: str


def resolve_precision(dtype: str, base_model: str, *, device: str) -> Precision:
    """The dtype in which a base is loaded on a device, "cpu" or "cuda".

    Any dtype but "auto" stays. A base that cannot be read gets float32, and loading it then reports the error. For
    "cuda" on a machine without a GPU, a GPU with bfloat16 is assumed.
    """
    if dtype != AUTO:
        return Precision(dtype, "as it is set")
    if base_model == STARTER:
        return Precision("float32", "the starter was made in it")
    able = hardware(device)
    if not able:
        return Precision("float32", f"this {'processor' if device == 'cpu' else 'GPU'} has no bfloat16")
    try:
        count = num_parameters(base_model)
    except Exception:  # configurations of others raise anything; loading the base says what is wrong
        return Precision("float32", "the size of the base is not known")
    if count < SMALLEST:
        return Precision("float32", f"a base of {count / 1e6:.1f} M parameters is small")
    return Precision("bfloat16", f"{able}, and the base has {count / 1e6:,.0f} M parameters")


def hardware(device: str) -> str:
    """The hardware of a device that computes in bfloat16, in words; empty if there is none."""
    if device != "cpu":
        here = torch.cuda.is_available()
        return "" if here and not torch.cuda.is_bf16_supported(including_emulation=False) else "the GPU has bfloat16"
    try:
        lines = CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # no Linux
        return ""
    flags = {flag for line in lines if line.startswith("flags") for flag in line.split()}
    found = [flag for flag in FLAGS if flag in flags]
    return f"this processor has bfloat16 ({', '.join(found)})" if found else ""


def num_parameters(base_model: str) -> int:
    """Parameters of a base, tied ones once, counted from its configuration alone."""
    config = AutoConfig.from_pretrained(model_path(base_model), trust_remote_code=False)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())
