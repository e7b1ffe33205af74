"""Uniform access to Hugging Face causal language models. Vocabulary scores are computed only where needed."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging as transformers_logging

from medagent.errors import ConfigError, PolicyError
from medagent.models.base_models import model_path

FULL, SLIDING = "full_attention", "sliding_attention"
MANY = 8  # equal output rows
# Settings of other kinds of limited attention. Only texts longer than them would differ.
OTHER_LIMITS = (
    "attention_chunk_size",
    "attention_window_size",
    "index_topk",
    "keep_window_size",
    "local_attention",
    "sliding_window_size",
)

ADAPTER_FILE = "adapter_config.json"


def fastest_device() -> str:
    """A GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def load_causal_lm(
    name: str, *, dtype: str = "float32", device: str = "cpu", attention: str = "sdpa", four_bit: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A causal language model in evaluation mode and its tokenizer; `dtype` is a torch name such as "bfloat16".

    `name` is one of those of `medagent.models.base_models.model_path`.

    `attention` is transformers' name of an implementation. `four_bit` keeps the weights of linear layers in NF4 and
    computes with them in `dtype`. It needs bitsandbytes.

    Raises:
        ConfigError: it cannot be loaded, or is an adapter; or its tokenizer's padding or end lies outside its table.
        PolicyError: its scores are not the plain projection of its hidden states, or its attention caps scores.
    """
    torch_dtype = getattr(torch, dtype, None)
    if not isinstance(torch_dtype, torch.dtype):
        raise ConfigError(f"dtype {dtype!r}: not a torch type. Use float32, bfloat16 or float16.")
    path = model_path(name)
    _refuse_adapter(name, Path(path))
    transformers_logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        model = AutoModelForCausalLM.from_pretrained(
            path,
            trust_remote_code=False,
            dtype=torch_dtype,
            attn_implementation=attention,
            **({"quantization_config": _four_bits(torch_dtype), "device_map": device} if four_bit else {}),
        )
    except (ImportError, OSError, ValueError) as error:
        raise ConfigError(
            f"base model {name!r}: cannot be loaded with the attention {attention!r} ({error}). Give 'starter', "
            "'smollm2', a folder made by save_pretrained, a .gguf file, or a hub name (which needs a network or a "
            "filled cache). Install a package that is named here, or set model.execution.attention to eager."
        ) from error
    if model._hf_peft_config_loaded:  # a hub name whose repository is an adapter
        raise _adapter_error(name, "a LoRA adapter")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    _check_ids(name, model, tokenizer)
    if four_bit:
        _keep_differentiable(model)
    (model if four_bit else torch.nn.Module.to(model, device)).eval()
    check_projection(model)
    return model, tokenizer


def _check_ids(name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a tokenizer that cannot pad, or whose own marks the model has no embedding for."""
    if tokenizer.pad_token_id is None:
        raise ConfigError(
            f"base model {name!r}: found a tokenizer with neither pad_token nor eos_token, wanted one to pad rows. "
            "Set tokenizer.pad_token to a token of its vocabulary, and save_pretrained it into the model's folder."
        )
    rows = int(cast(torch.nn.Embedding, model.get_input_embeddings()).num_embeddings)
    for kind in ("pad_token", "eos_token", "bos_token"):
        token = tokenizer.special_tokens_map.get(kind)
        number = tokenizer.get_vocab().get(str(token), 0)
        if number >= rows:
            raise ConfigError(
                f"base model {name!r}: found {kind} {token} with id {number}, and an embedding of {rows} rows, wanted "
                f"an id below {rows}. Call model.resize_token_embeddings(len(tokenizer)) and save the model, or name "
                f"another token as {kind}."
            )


def refuse_unmerged(name: str) -> None:
    """Refuse to start from an agent's folder whose adapter is not merged into the weights: it would be left out.

    Raises:
        ConfigError: the folder holds agent.json and adapter/.
    """
    folder = Path(model_path(name))
    if (folder / "agent.json").exists() and (folder / "adapter").exists():
        raise _adapter_error(name, "an agent whose adapter is beside its weights (agent.json, adapter/)")


def _refuse_adapter(name: str, folder: Path) -> None:
    """Refuse what transformers would take for its base, or load with the adapter as layers of its own."""
    if (folder / ADAPTER_FILE).exists():
        raise _adapter_error(name, f"a LoRA adapter ({ADAPTER_FILE})")
    if (folder / "agent.json").exists() and not (folder / "config.json").exists():
        raise _adapter_error(name, "an agent without the weights of its base (agent.json)")


def _adapter_error(name: str, found: str) -> ConfigError:
    return ConfigError(
        f"base model {name!r}: found {found}, wanted a whole model, as the adapter would be left out. Merge it first "
        "and give the merged folder. An agent: `medagent export --agent AGENT --out FOLDER`. Another adapter: peft's "
        "merge_and_unload, then save_pretrained of model and tokenizer."
    )


def _four_bits(compute: torch.dtype) -> BitsAndBytesConfig:
    """NF4 with doubly quantised constants, as QLoRA uses it (arXiv 2305.14314)."""
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=compute
    )


def _keep_differentiable(model: PreTrainedModel) -> None:
    """Keep 4-bit layers in a form that has a gradient, so that adapters can be trained through them.

    On CPUs, bitsandbytes repacks layers in evaluation mode for a product that has none.
    """
    from bitsandbytes.nn import Linear4bit

    for layer in model.modules():
        if isinstance(layer, Linear4bit):
            layer.support_avx512bf16_for_cpu = False


def hidden_states(model: PreTrainedModel, **inputs: object) -> Tensor:
    """[B, T, H]: the last hidden states, ready for the vocabulary projection. `model` may carry adapters."""
    decoder = model.get_decoder()
    hidden: Tensor = decoder(**inputs).last_hidden_state
    return hidden


def project(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Vocabulary scores in float32 of hidden states: [..., H] -> [..., V]."""
    head = model.get_output_embeddings()
    scores: Tensor = head(hidden)
    return scores.float()


def hidden_size(model: PreTrainedModel) -> int:
    """H of `hidden_states`: what the vocabulary projection reads. It is not always the config's hidden_size."""
    return int(cast(torch.nn.Linear, model.get_output_embeddings()).in_features)


def has_experts(model: PreTrainedModel) -> bool:
    """Whether a model is a mixture of experts of the family Qwen3-MoE or Mixtral."""
    return any(isinstance(module, Qwen3MoeTopKRouter | MixtralTopKRouter) for module in model.modules())


def beside_decoder(model: PreTrainedModel) -> str | None:
    """A pattern of the names of linear layers that `hidden_states` and `project` never run, such as a vision tower's.

    None where there are none.
    """
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    within = next((name for name, module in model.named_modules() if module is decoder), "")
    linear = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear | Conv1D)]
    outside = [name for name in linear if model.get_submodule(name) is not head and not name.startswith(f"{within}.")]
    return rf"(?!{re.escape(within)}\.).+" if within and outside else None


@torch.no_grad()
def check_projection(model: PreTrainedModel) -> None:
    """Refuse a model whose scores are not the plain projection of its hidden states, such as soft-capped ones."""
    settings = model.config.get_text_config(decoder=True).to_dict()
    for cap in ("final_logit_softcapping", "attn_logit_softcapping"):
        if settings.get(cap):  # small scores are hardly capped, so measuring may not tell; sdpa leaves the second out
            raise PolicyError(
                f"{type(model).__name__}: it caps its scores at {settings[cap]} ({cap}), which is not supported. "
                "Choose another model."
            )
    ids = torch.arange(4, device=model.device).unsqueeze(0)
    try:
        whole = model(input_ids=ids).logits.float()
        ours = project(model, hidden_states(model, input_ids=ids))
    except Exception as error:  # code of any family may raise anything
        raise PolicyError(
            f"{type(model).__name__}: its decoder and its vocabulary projection cannot be run one after the other "
            f"({error!r}), which is how this program scores tokens. Choose another model."
        ) from error
    gap = (whole - ours).abs().max().item()
    if gap > 1e-3 * whole.abs().max().item():
        raise PolicyError(
            f"{type(model).__name__}: its scores differ from head(hidden states) by {gap:.3g}, so it caps or "
            "scales them, which is not supported. Choose another model."
        )


def decoder_config(model: PreTrainedModel) -> PretrainedConfig:
    """The config that the model's decoder reads; a wrapper of several models holds it in its own."""
    found: PretrainedConfig = model.get_decoder().config
    return found


def other_limits(config: PretrainedConfig) -> dict[str, object]:
    """The settings by which attention limits what a token sees, but for a sliding_window; of a decoder's config."""
    settings = config.to_dict()
    limits = {limit: settings[limit] for limit in OTHER_LIMITS if settings.get(limit)}
    if "local" in (settings.get("attention_layers") or []):
        limits["window_size"] = settings.get("window_size")
    return limits


@torch.no_grad()
def untrained_tokens(model: PreTrainedModel, token_ids: Iterable[int]) -> dict[int, int]:
    """Those of the tokens whose output row is that of `MANY` others, and of how many: the model cannot tell them apart.

    Reserved tokens that no training touched all have one row. A model writes each with the same small probability.
    """
    rows_VH = torch.nn.functional.normalize(model.get_output_embeddings().weight.float(), dim=1)
    same = {id_: int((rows_VH @ rows_VH[id_] > 1 - 1e-5).sum()) - 1 for id_ in set(token_ids)}
    return {id_: count for id_, count in same.items() if count >= MANY}
