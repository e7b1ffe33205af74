"""A model of any family is sampled with the log-probs of its own forward pass, or refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from medagent.errors import PolicyError
from medagent.models.causal_lm import OTHER_LIMITS, check_projection
from medagent.policies.decoder_shape import shape_of
from medagent.policies.huggingface import HFPolicy
from tests.medagent.policies.support import SMALL, furthest_from_plain, tiny_model, two_dialogues

GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.2, "n_positions": 256, "eos_token_id": 1}
OLD = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
HALF_SLIDING = {**SMALL, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}

SAMPLED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", SMALL),
    "llama, yarn": (
        "llama",
        {
            **SMALL,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "mistral, window 8": ("mistral", {**SMALL, "sliding_window": 8}),
    "mistral, window 4096": ("mistral", {**SMALL, "sliding_window": 4096}),
    "phi3, window 12": ("phi3", {**SMALL, "sliding_window": 12}),
    "mixtral, window 8": ("mixtral", {**SMALL, "sliding_window": 8, "num_local_experts": 4}),
    "qwen2": ("qwen2", SMALL),
    "qwen2, window switched off": ("qwen2", {**HALF_SLIDING, "use_sliding_window": False}),
    "qwen2, half of the layers sliding": ("qwen2", HALF_SLIDING),
    "qwen3_moe, window 9": ("qwen3_moe", {**SMALL, **EXPERTS, "use_sliding_window": True, "sliding_window": 9}),
    "gemma3, mixed layers": ("gemma3_text", {**SMALL, "num_hidden_layers": 6, "sliding_window": 8}),
    "gemma3, wrapped beside a picture model": (
        "gemma3",
        {
            "text_config": {**SMALL, "num_hidden_layers": 6, "sliding_window": 8},
            "vision_config": {
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 28,
                "patch_size": 14,
            },
        },
    ),
    "cohere2, mixed layers": ("cohere2", {**SMALL, "logit_scale": 1.0, "sliding_window": 8}),
    "smollm3, a layer without positions": ("smollm3", {**SMALL, "no_rope_layers": [1, 1, 1, 0]}),
    "gpt_neox": ("gpt_neox", SMALL),
    "gpt2": ("gpt2", GPT),
    "opt": ("opt", {**OLD, "ffn_dim": 64, "word_embed_proj_dim": 32, "init_std": 0.2}),
    "falcon": ("falcon", OLD),
}
EAGER = {
    "gptj": ("gptj", {**GPT, "rotary_dim": 4}),
    "gpt_oss, mixed layers and sinks": ("gpt_oss", {**SMALL, "sliding_window": 8, "num_local_experts": 4}),
}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "bloom": ("bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4}, "ALiBi"),
    "falcon, alibi": ("falcon", {**OLD, "alibi": True}, "ALiBi"),
    "gemma4, heads of two sizes": (
        "gemma4_text",
        {
            **SMALL,
            "num_hidden_layers": 6,
            "num_kv_shared_layers": 0,
            "sliding_window": 8,
            "vocab_size_per_layer_input": 64,
        },
        "caches of different shapes",
    ),
    "mamba": ("mamba", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}, "no KV cache"),
    "qwen3_next": (
        "qwen3_next",
        {**SMALL, **EXPERTS, "shared_expert_intermediate_size": 32},
        "layers of type .'linear_attention'.",
    ),
    "llama4": (
        "llama4_text",
        {**SMALL, "attention_chunk_size": 8, "num_local_experts": 2, "intermediate_size_mlp": 64},
        "cannot be run one after the other",
    ),
    "recurrent_gemma": ("recurrent_gemma", {**SMALL, "lru_width": 32}, "attention_window_size"),
    "gpt_neo, a local layer": (
        "gpt_neo",
        {
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 256,
        },
        "'window_size': 256",
    ),
    "xlnet": ("xlnet", {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}, "no KV cache"),
    "gemma2": ("gemma2", {**SMALL, "sliding_window": 8}, "final_logit_softcapping"),
    "cohere": ("cohere", {**SMALL, "logit_scale": 0.0625}, "caps or scales"),
}
ONLY_EAGER = {"bloom", "mamba", "gpt_neo, a local layer", "xlnet"}


@pytest.mark.parametrize("name", SAMPLED)
def test_a_family_is_sampled_as_its_own_forward_pass_scores(name: str, tokenizer) -> None:
    family, settings = SAMPLED[name]
    model = tiny_model(family, len(tokenizer), **settings)
    check_projection(model)
    assert furthest_from_plain(model, two_dialogues(HFPolicy(model, tokenizer))) < 1e-4


@pytest.mark.parametrize("name", EAGER)
def test_a_family_without_fused_attention_takes_the_mask_as_a_sum(name: str, tokenizer) -> None:
    family, settings = EAGER[name]
    model = tiny_model(family, len(tokenizer), attention="eager", **settings)
    assert furthest_from_plain(model, two_dialogues(HFPolicy(model, tokenizer))) < 1e-4


@pytest.mark.parametrize("name", REFUSED)
def test_a_family_that_cannot_be_sampled_is_refused_with_the_reason(name: str, tokenizer) -> None:
    family, settings, reason = REFUSED[name]
    attention = "eager" if name in ONLY_EAGER else "sdpa"
    model = tiny_model(family, len(tokenizer), attention=attention, **settings)

    def load() -> None:
        check_projection(model)
        HFPolicy(model, tokenizer)

    with pytest.raises(PolicyError, match=reason):
        load()


@pytest.mark.parametrize("limit", OTHER_LIMITS)
def test_any_setting_that_limits_what_a_token_sees_is_refused(limit: str, tokenizer) -> None:
    """A short text would not show it, so the configuration decides."""
    model = tiny_model("llama", len(tokenizer), **SMALL)
    assert shape_of(model).window is None
    setattr(model.config, limit, 8)
    with pytest.raises(PolicyError, match=f"limits what a token sees by .*{limit}"):
        shape_of(model)
