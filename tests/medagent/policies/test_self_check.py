"""A model that cannot be read in batches with a cache is refused when its policy is made, whatever its family."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model

from medagent.errors import PolicyError
from medagent.policies.huggingface import HFPolicy
from tests.medagent.policies.support import SMALL, furthest_from_plain, one_turn, tiny_model, two_dialogues


def spoil(model, change) -> None:
    """Let the decoder be called with other inputs than it is given."""
    decoder = model.get_decoder()
    decoder.register_forward_pre_hook(lambda _, args, inputs: (args, change(dict(inputs))), with_kwargs=True)


def without(name: str):
    return lambda inputs: {key: value for key, value in inputs.items() if key != name}


def late_positions(inputs):
    """Right as long as nothing is in the cache."""
    if inputs.get("position_ids") is not None and inputs["position_ids"].min() > 0:
        inputs["position_ids"] = inputs["position_ids"] + 1
    return inputs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("change", [without("position_ids"), without("attention_mask"), late_positions])
def test_a_decoder_that_ignores_what_it_is_given_is_refused(change, dtype, tokenizer) -> None:
    model = tiny_model("llama", len(tokenizer), **SMALL).to(dtype)
    HFPolicy(model, tokenizer)
    spoil(model, change)
    with pytest.raises(PolicyError, match="cannot sample it, as"):
        HFPolicy(model, tokenizer)


@pytest.mark.parametrize("window", [8, 64, 4096])
@pytest.mark.parametrize("family", ["mistral", "gemma3_text"])
def test_a_window_is_tried_however_wide_it_is(family: str, window: int, tokenizer) -> None:
    model = tiny_model(family, len(tokenizer), **{**SMALL, "num_hidden_layers": 6, "sliding_window": window})
    HFPolicy(model, tokenizer)
    assert model.config.sliding_window == window, "the config is as it was"
    full = torch.ones(1, 1, 1, 1, dtype=torch.bool)

    def causal_alone(inputs):
        mask = inputs.get("attention_mask")
        if isinstance(mask, dict):
            inputs["attention_mask"] = dict.fromkeys(mask, mask["full_attention"])
        elif mask is not None:
            keys = torch.arange(mask.shape[-1])
            inputs["attention_mask"] = full & (keys <= inputs["past_key_values"].layers[0]._positions[:, None, :, None])
        return inputs

    spoil(model, causal_alone)
    with pytest.raises(PolicyError, match="differ from those of a plain pass"):
        HFPolicy(model, tokenizer)
    assert model.config.sliding_window == window


def test_an_adapter_beside_the_base_is_sampled_with_it(starter, tokenizer) -> None:
    torch.manual_seed(0)
    model = tiny_model("qwen2", len(tokenizer), **SMALL)
    lora = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False)
    adapted = get_peft_model(model, lora).eval()
    policy = HFPolicy(adapted, tokenizer)
    assert furthest_from_plain(adapted, two_dialogues(policy)) < 1e-4
    before = one_turn(policy, [3, 4, 5])
    layers = {name: value * 3 for name, value in adapted.named_parameters() if "lora_B" in name}
    policy.load_weights(layers.items())
    assert one_turn(policy, [3, 4, 5]).logprobs != before.logprobs
    assert furthest_from_plain(adapted, two_dialogues(policy)) < 1e-4


def test_making_a_policy_draws_no_random_number(starter) -> None:
    torch.manual_seed(3)
    wanted = torch.rand(4)
    torch.manual_seed(3)
    HFPolicy(*starter)
    assert torch.equal(torch.rand(4), wanted)


def test_a_model_of_short_texts_is_tried_with_short_ones(tokenizer) -> None:
    model = tiny_model("gpt2", len(tokenizer), n_embd=32, n_layer=2, n_head=4, n_positions=12)
    assert one_turn(HFPolicy(model, tokenizer), [3, 4, 5], max_tokens=4, blocks=()).token_ids
