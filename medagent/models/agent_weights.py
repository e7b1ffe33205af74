"""The weights of an agent's folder: its base model, and the adapter in `adapter/` if there is one."""

from pathlib import Path
from typing import cast

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from medagent.agent_spec import AgentSpec
from medagent.models.base_models import check_base, model_path
from medagent.models.causal_lm import fastest_device, load_causal_lm
from medagent.models.fused_lora import fuse_lora
from medagent.models.plain_lora import check_adapter, form_for, merge_into, with_adapter


def base_path(folder: Path, spec: AgentSpec) -> str:
    """The folder or hub name that transformers and vLLM load as an agent's base.

    Raises:
        ConfigError: it is a GGUF file that is absent, or another one than that of training.
    """
    if spec.base_model == ".":
        return str(folder.resolve())
    check_base(spec.base_model, spec.base_sha256, f"agent {folder}")
    return model_path(spec.base_model)


def load_base(folder: Path, spec: AgentSpec) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The base as the adapter was trained on it, in the same dtype and quantisation, and the tokenizer."""
    name = base_path(folder, spec)
    return load_causal_lm(name, dtype=spec.dtype, device=fastest_device(), four_bit=spec.quantise == "nf4")


def load_weights(folder: Path, spec: AgentSpec) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The agent's model as it was trained, and the tokenizer.

    The adapter is merged into a base in float32, and lies beside any other: see `form_for`. It is computed as in
    training.
    """
    if has_adapter(folder):
        check_adapter(adapter_folder(folder))  # before the base is loaded, which may take long
    model, tokenizer = load_base(folder, spec)
    if has_adapter(folder):
        adapted = with_adapter(model, adapter_folder(folder))
        if form_for(spec.dtype, quantised=spec.quantise != "none") == "merged":
            merge_into(adapted)
        fuse_lora(adapted)
        model = cast(PreTrainedModel, adapted.get_base_model())
    return model, tokenizer


def has_adapter(folder: Path) -> bool:
    """Whether an agent's folder holds an adapter; a base policy and a merged export have none."""
    return (folder / "adapter").exists()


def adapter_folder(folder: Path) -> Path:
    """Peft writes a named adapter into a folder of that name."""
    named = folder / "adapter" / "policy"
    return named if named.exists() else folder / "adapter"
