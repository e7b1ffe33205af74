"""Tiny random mixtures of experts."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    AutoTokenizer,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from medagent.models.base_models import STARTER, model_path


def make_mixture(folder: Path, family: str, *, experts: int = 128, layers: int = 10) -> PreTrainedModel:
    """A random model and the starter's tokenizer, saved into the folder.

    Many experts lie close together and matter much, so that rounding in bfloat16 sends some tokens to others. vLLM's
    CPU build wants heads and widths in multiples of 32.
    """
    tokenizer = AutoTokenizer.from_pretrained(model_path(STARTER))
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": 1024,
        "num_experts_per_tok": 2,
        "initializer_range": 0.1,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "tie_word_embeddings": False,
    }
    torch.manual_seed(0)
    model: PreTrainedModel
    if family == "qwen3_moe":
        model = Qwen3MoeForCausalLM(
            Qwen3MoeConfig(**shape, num_experts=experts, moe_intermediate_size=64, norm_topk_prob=True)
        )
    else:
        model = MixtralForCausalLM(MixtralConfig(**shape, num_local_experts=experts))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "down_proj" in name:
                parameter.mul_(5)
            if name.endswith("gate.weight"):
                parameter.mul_(0.1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model.eval()
