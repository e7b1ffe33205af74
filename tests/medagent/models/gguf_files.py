"""Tiny GGUF files, as llama.cpp's converter writes them, with SmolLM2's quirks of tokenizer and chat template."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from tokenizers import pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM


def tiny_llama() -> LlamaForCausalLM:
    """A random Llama whose rows fill blocks of a GGUF's quantisation."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config).eval()


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
CHAT = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are Tiny.<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_gguf(
    path: Path,
    kind: GGMLQuantizationType,
    *,
    architecture: str = "llama",
    shift: float = 0.0,
    without: tuple[str, ...] = (),
    position_factors: float | None = None,
    biases: bool = False,
    output: torch.Tensor | None = None,
    output_kind: GGMLQuantizationType = GGMLQuantizationType.F32,
) -> dict[str, torch.Tensor]:
    """Write `tiny_llama` as a GGUF of a kind of numbers; `shift` is added to every weight. Tensors in `without` are
    left out. `position_factors` is what a Llama 3.1 divides its rotary frequencies by. `biases`: queries have some.
    `output` is an output matrix of its own, of `output_kind`.

    Gives the weights that it then holds, by transformers' names.
    """
    model, writer = tiny_llama(), GGUFWriter(path, architecture)
    shape = model.config
    writer.add_name("Tiny")
    writer.add_context_length(shape.max_position_embeddings)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_block_count(shape.num_hidden_layers)
    writer.add_feed_forward_length(shape.intermediate_size)
    writer.add_head_count(shape.num_attention_heads)
    writer.add_head_count_kv(shape.num_key_value_heads)
    writer.add_layer_norm_rms_eps(shape.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_vocab_size(shape.vocab_size)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*special, *letters, "go", "ut", "gout", *(f"<unused{number}>" for number in range(320))][:320]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(words)
    writer.add_token_types([3 if number < len(special) else 1 for number in range(len(words))])
    writer.add_token_merges(["g o", "u t", "go ut"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT)
    held = {}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight":  # tied
            continue
        exact = (weight + shift).numpy()
        stem = name.removesuffix(".weight")
        layer, inner = (stem.split(".")[2], ".".join(stem.split(".")[3:])) if ".layers." in stem else ("", stem)
        heads = {"self_attn.q_proj": shape.num_attention_heads, "self_attn.k_proj": shape.num_key_value_heads}.get(
            inner
        )
        rows = exact if heads is None else _interleaved(exact, heads)
        numbers = kind if exact.ndim > 1 else GGMLQuantizationType.F32
        stored = quantize(rows, numbers)
        title = f"blk.{layer}.{GGUF_NAMES[inner]}.weight" if layer else f"{GGUF_NAMES[inner]}.weight"
        if title not in without:
            writer.add_tensor(title, stored, raw_dtype=numbers)
        back = dequantize(stored, numbers).reshape(exact.shape)
        held[name] = torch.from_numpy((back if heads is None else _apart(back, heads)).copy())
    if output is not None:
        stored = quantize(output.detach().numpy(), output_kind)
        writer.add_tensor("output.weight", stored, raw_dtype=output_kind)
        held["lm_head.weight"] = torch.from_numpy(dequantize(stored, output_kind).copy())
    if biases:
        writer.add_tensor("blk.0.attn_q.bias", np.ones(shape.hidden_size, dtype=np.float32))
    if position_factors is not None:
        writer.add_tensor("rope_freqs.weight", np.full(shape.head_dim // 2, position_factors, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


def _interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of a head's rows: the halves that rotate together lie side by side."""
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def _apart(rows: np.ndarray, heads: int) -> np.ndarray:
    """transformers' order."""
    return rows.reshape(heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)
