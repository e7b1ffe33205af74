"""Packing is refused where a row would see another, and taken where each sees itself alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import (
    BioGptConfig,
    FalconConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    PreTrainedConfig,
)
from transformers.models.auto import AutoModelForCausalLM

from medagent.errors import ConfigError
from medagent.training.adapters import SharedBase
from medagent.training.execution import Execution
from medagent.training.forward import check_packing
from medagent.training.lora import LoraSettings
from medagent.training.module import AgentModule
from medagent.training.sft.supervised import SupervisedModule
from tests.medagent.policies.support import tiny_model
from tests.training.support import make_module

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
KV = {**SMALL, "intermediate_size": 128, "num_key_value_heads": 2, **IDS}
SEEING = {
    "opt": lambda vocabulary: OPTConfig(vocab_size=vocabulary, ffn_dim=128, word_embed_proj_dim=64, **SMALL, **IDS),
    "biogpt": lambda vocabulary: BioGptConfig(vocab_size=vocabulary, intermediate_size=128, **SMALL, **IDS),
    "falcon": lambda vocabulary: FalconConfig(vocab_size=vocabulary, alibi=False, **SMALL),
    "alibi": lambda vocabulary: FalconConfig(vocab_size=vocabulary, alibi=True, **SMALL),
}
APART = {
    "llama": lambda vocabulary: LlamaConfig(vocab_size=vocabulary, **KV),
    "window": lambda vocabulary: MistralConfig(vocab_size=vocabulary, sliding_window=4, **KV),
    "gpt_neox": lambda vocabulary: GPTNeoXConfig(vocab_size=vocabulary, intermediate_size=128, **SMALL),
}


def saved(config: PreTrainedConfig, tokenizer, folder: Path) -> str:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", SEEING)
def test_a_family_whose_rows_see_each_other_is_refused(family, dtype, tokenizer, tmp_path) -> None:
    base = saved(SEEING[family](len(tokenizer)), tokenizer, tmp_path)
    settings = {"base_model": base, "dtype": dtype, "policy_lora": LoraSettings(4, 8)}
    words = "execution.packed: .* makes its masks without positions.* Set model.execution.packed to false"
    with pytest.raises(ConfigError, match=words):
        AgentModule(critic_lora=None, execution=Execution(packed=True), **settings)
    with pytest.raises(ConfigError, match=words):
        SupervisedModule(execution=Execution(packed=True), **settings)
    AgentModule(critic_lora=None, execution=Execution(max_tokens=64), **settings)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", APART)
def test_a_family_whose_rows_are_apart_is_taken(family, dtype, tokenizer, tmp_path) -> None:
    module = AgentModule(
        base_model=saved(APART[family](len(tokenizer)), tokenizer, tmp_path),
        dtype=dtype,
        policy_lora=LoraSettings(4, 8),
        critic_lora=None,
        execution=Execution(packed=True),
    )
    rows = torch.arange(20, 44).view(2, 12)
    mask = torch.ones_like(rows, dtype=torch.bool)
    mask[:, 0] = False
    with torch.no_grad():
        together = module.shared_base.policy_scores(rows, torch.ones_like(mask), mask, temperature=1.0).logprobs_BT
        alone = [
            module.shared_base.policy_scores(rows[n : n + 1], mask[:1] | True, mask[:1], temperature=1.0).logprobs_BT
            for n in range(2)
        ]
    tolerance = {"rtol": 0, "atol": 1e-4 if dtype == "float32" else 5e-2}
    torch.testing.assert_close(together, torch.cat(alone), **tolerance)


LIMITS = {
    "doge": ({"keep_window_size": 16}, "'keep_window_size': 16"),
    "gpt_neo": ({"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 4}, "'window_size': 256"),
}


@pytest.mark.filterwarnings("ignore::UserWarning:transformers")
@pytest.mark.parametrize("family", LIMITS)
def test_limits_that_only_longer_rows_show_are_refused(family, tokenizer) -> None:
    settings, words = LIMITS[family]
    model = tiny_model(family, len(tokenizer), attention="eager", **KV, **settings)
    shared_base = SharedBase(model, policy=LoraSettings(4, 8), critic=None, execution=Execution(packed=True))
    with pytest.raises(ConfigError, match=f"execution.packed: .* limits what a token sees by .*{words}.*to false"):
        check_packing(shared_base.base, shared_base.execution)


class OwnPositions(torch.nn.Module):
    """A decoder that numbers tokens itself, whatever it is told."""

    def __init__(self, decoder: torch.nn.Module) -> None:
        super().__init__()
        self.decoder = decoder
        self.layers = decoder.layers

    def forward(self, input_ids, position_ids=None, use_cache=None):
        # It takes the borders of rows for its mask, and moves every row by where it begins.
        borders = position_ids * 1.0
        found = self.decoder(input_ids=input_ids, position_ids=position_ids, use_cache=use_cache)
        begins = torch.arange(input_ids.shape[1])[None] - borders
        found.last_hidden_state = found.last_hidden_state + begins[..., None]
        return found


class NoPositions(OwnPositions):
    """A decoder that takes none."""

    def forward(self, input_ids, use_cache=None):
        return self.decoder(input_ids=input_ids, use_cache=use_cache)


@pytest.mark.parametrize(
    ("decoder", "words"), [(OwnPositions, "at other positions than alone"), (NoPositions, "takes no positions")]
)
def test_positions_of_its_own_are_refused(decoder, words, monkeypatch) -> None:
    shared_base = make_module(execution=Execution(packed=True)).shared_base
    wrapped = decoder(shared_base.base.get_decoder())
    monkeypatch.setattr(shared_base.base, "get_decoder", lambda: wrapped)
    with pytest.raises(ConfigError, match=words):
        check_packing(shared_base.base, shared_base.execution)


def test_the_check_draws_nothing_from_the_seed() -> None:
    torch.manual_seed(3)
    wanted = torch.rand(1)
    shared_base = make_module(execution=Execution(packed=True)).shared_base
    torch.manual_seed(3)
    check_packing(shared_base.base, shared_base.execution)
    assert torch.equal(torch.rand(1), wanted)
