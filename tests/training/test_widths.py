"""Bases whose hidden states are of another width than their config says first, and wrappers of several models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from medagent.agent_folder import save_agent
from medagent.agent_spec import read_spec
from medagent.errors import ConfigError
from medagent.models.agent_weights import load_weights
from medagent.models.base_models import STARTER, model_path
from medagent.models.causal_lm import hidden_size, hidden_states
from medagent.training.adapters import SharedBase
from medagent.training.lora import LoraSettings
from medagent.training.memory.estimate import ModelShape
from tests.medagent.policies.support import SMALL, tiny_model
from tests.training.support import make_module, perturb

VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
TEXT = {**SMALL, "num_hidden_layers": 2, "sliding_window": 8, "hidden_size": 48}
WRAPPED = {
    "text_config": TEXT,
    "vision_config": VISION,
    "mm_tokens_per_image": 4,
    "image_token_index": 5,
    "boi_token_index": 6,
    "eoi_token_index": 7,
}
PROJECTED = {
    "hidden_size": 64,
    "ffn_dim": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "word_embed_proj_dim": 32,
    "do_layer_norm_before": False,
    "max_position_embeddings": 256,
}
BASES = {
    "gemma3": (WRAPPED, 48, "model.language_model."),
    "opt": (PROJECTED, 32, "model.decoder."),
    "gpt2": ({"n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 1}, 32, "transformer."),
}


def saved(family: str, folder: Path, tokenizer) -> str:
    tiny_model(family, len(tokenizer), **BASES[family][0]).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.filterwarnings("ignore:fan_in_fan_out:UserWarning")
@pytest.mark.parametrize("family", BASES)
def test_critic_and_policy_fit_the_decoder(family, tokenizer, tmp_path: Path) -> None:
    _, width, decoder = BASES[family]
    module = make_module(base_model=saved(family, tmp_path / "base", tokenizer))
    perturb(module)
    roles = module.shared_base
    rows = torch.arange(20, 44).view(2, 12)
    mask = torch.ones_like(rows, dtype=torch.bool)
    mask[:, 0] = False
    states = hidden_states(roles.base, input_ids=rows)
    assert states.shape[-1] == width == hidden_size(roles.base) == roles.value_head.in_features
    assert all(name.startswith(decoder) for name, _, _ in roles._adapted_layers())
    scores = roles.policy_scores(rows, torch.ones_like(mask), mask, temperature=1.0).logprobs_BT
    values = roles.values(rows, torch.ones_like(mask), mask)
    (scores.sum() + values.sum()).backward()
    trained = [*roles.policy_parameters(), *roles.critic_parameters()]
    assert all(parameter.grad is not None for parameter in trained), "LoRA lies on layers that are never run"
    spec = replace(read_spec(Path(model_path(STARTER))), base_model=str(tmp_path / "base"))
    save_agent(tmp_path / "agent", spec, tokenizer)
    roles.save_policy(tmp_path / "agent" / "adapter")
    loaded, _ = load_weights(tmp_path / "agent", spec)
    with torch.no_grad():
        heard = loaded(input_ids=rows).logits[:, :-1].log_softmax(-1).gather(2, rows[:, 1:, None])[..., 0]
    torch.testing.assert_close(scores[:, 1:], heard, atol=1e-4, rtol=0)


def test_a_wrapper_is_planned_by_its_decoder(tokenizer, tmp_path: Path) -> None:
    shape = ModelShape.of(saved("gemma3", tmp_path, tokenizer))
    assert (shape.hidden, shape.layers, shape.kv_size, shape.vocabulary) == (48, 2, 16, len(tokenizer))
    assert len(shape.linear_sizes) == 2 * 7


def test_layers_that_cannot_carry_lora_are_refused(tokenizer) -> None:
    model = tiny_model("mamba", len(tokenizer), attention="eager", hidden_size=32, num_hidden_layers=1, state_size=4)
    with pytest.raises(ConfigError, match=r"base_model: MambaForCausalLM cannot carry LoRA .*Take a transformer"):
        SharedBase(model, policy=LoraSettings(4, 8), critic=None)
