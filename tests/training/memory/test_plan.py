"""`medagent plan` counts what there is to count, and refuses what cannot fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from medagent.cli.main import main
from medagent.errors import ConfigError
from medagent.training.adapters import SharedBase
from medagent.training.execution import Execution
from medagent.training.lora import LoraSettings
from medagent.training.memory.estimate import GIB, Load, ModelShape
from medagent.training.memory.plan import report
from medagent.types import Limits
from tests.support import CONFIGS

CONFIG = CONFIGS / "experiments" / "starter.yaml"
SEVEN_B = Qwen2Config(
    vocab_size=152064,
    hidden_size=3584,
    intermediate_size=18944,
    num_hidden_layers=28,
    num_attention_heads=28,
    num_key_value_heads=4,
    tie_word_embeddings=False,
)


@pytest.fixture(scope="module")
def seven_b(tmp_path_factory: pytest.TempPathFactory) -> ModelShape:
    folder = tmp_path_factory.mktemp("qwen")
    SEVEN_B.save_pretrained(folder)
    return ModelShape.of(str(folder))


def load(shape: ModelShape, **settings) -> Load:
    common = {
        "dtype": "bfloat16",
        "policy_lora": LoraSettings(16, 32),
        "critic_lora": LoraSettings(16, 32),
        "execution": Execution(),
        "limits": Limits(max_turns=5, max_turn_tokens=512, max_observation_tokens=1024, max_total_tokens=4096),
        "rollouts": 128,
        "micro_batch_rows": 8,
        "in_process": False,
        "device": "gpu",
    }
    return Load(shape, **{**common, **settings})


def test_parameters_are_those_of_the_published_model(seven_b: ModelShape) -> None:
    assert seven_b.parameters == 7_615_616_512  # Qwen2.5-7B's own count
    # Rank 1 on q, k, v, o, gate, up and down of each layer.
    a_layer = (3584 + 3584) * 2 + (3584 + 512) * 2 + (3584 + 18944) * 3
    assert seven_b.lora_parameters(LoraSettings(1, 1)) == 28 * a_layer
    assert seven_b.lora_parameters(None) == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("hidden", "intermediate", "kv_heads", "rank"), [(96, 320, 2, 8), (160, 448, 5, 4)])
def test_kept_bytes_are_what_autograd_keeps(
    dtype: str, hidden: int, intermediate: int, kv_heads: int, rank: int
) -> None:
    kept = {}
    for layers in (1, 3):
        config = Qwen2Config(
            vocab_size=64,
            hidden_size=hidden,
            intermediate_size=intermediate,
            num_hidden_layers=layers,
            num_attention_heads=hidden // 16,
            num_key_value_heads=kv_heads,
        )
        base = Qwen2ForCausalLM(config).to(getattr(torch, dtype)).eval()
        base.requires_grad_(False)
        roles = SharedBase(
            base, policy=LoraSettings(rank, rank), critic=None, execution=Execution(shared_prefixes=dtype == "bfloat16")
        )
        own = {tensor.untyped_storage().data_ptr() for tensor in (*roles.parameters(), *roles.buffers())}
        seen: dict[int, torch.Tensor] = {}

        def keep(tensor: torch.Tensor, seen=seen, own=own) -> torch.Tensor:
            if tensor.untyped_storage().data_ptr() not in own:
                seen[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        ids, mask = torch.arange(96).reshape(2, 48) % 64, torch.ones(2, 48, dtype=torch.bool)  # no common prefix
        mask[:, 0] = False
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            roles.hidden_states_at(ids, torch.ones_like(mask), mask)
        kept[layers] = sum(tensor.untyped_storage().nbytes() for tensor in seen.values()) / 96
    shape = ModelShape(hidden, intermediate, 3, kv_heads * 16, 64, 0, ())
    lora = LoraSettings(rank, rank)
    assert load(shape, dtype=dtype, policy_lora=lora).layer_bytes() == pytest.approx((kept[3] - kept[1]) / 2, rel=0.02)


def test_memory_follows_the_settings(seven_b: ModelShape) -> None:
    plain = load(seven_b)
    assert plain.parts()["base (policy, critic, reference)"] == 2 * 7_615_616_512
    assert "sampler's copy of the base" not in plain.parts()
    in_process = load(seven_b, in_process=True)
    assert in_process.parts()["sampler's adapter, on the same base"] < 0.02 * plain.base_bytes
    for merged in (replace(in_process, weight_sync="merged"), replace(in_process, dtype="float32")):
        assert merged.parts()["sampler's copy of the base"] == merged.base_bytes
    checkpointed = load(seven_b, execution=Execution(gradient_checkpointing=True))
    assert checkpointed.activations() < 0.15 * plain.activations()
    limited = load(seven_b, execution=Execution(gradient_checkpointing=True, max_tokens=4096))
    assert limited.activations() < 0.5 * checkpointed.activations()
    assert load(seven_b, execution=Execution(quantise="nf4")).base_bytes < 0.4 * plain.base_bytes
    assert replace(plain, critic_lora=None).peak() < plain.peak()
    assert plain.peak() == sum(size for name, size in plain.parts().items() if ":" not in name) + max(
        size for name, size in plain.parts().items() if ":" in name
    )


def test_what_cannot_fit_is_refused_with_its_largest_part(seven_b: ModelShape) -> None:
    with pytest.raises(
        ConfigError,
        match=r"(?s)memory of a GPU.*fit: .* 80.00 GiB wanted. The largest part is update: .*gradient_checkpointing",
    ):
        report(load(seven_b), memory_gib=80)
    fits = load(seven_b, execution=Execution(gradient_checkpointing=True, max_tokens=8192, logits_rows=1024))
    text = report(fits, memory_gib=80)
    assert text.splitlines()[-1].split()[-2] == f"{fits.peak() / GIB:.2f}"
    assert fits.peak() < 40 * GIB


def test_the_command_reads_configurations_and_overrides(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--config", str(CONFIG)]) == 0
    said = capsys.readouterr().out
    assert "sampler's copy" in said
    assert main(["plan", "--config", str(CONFIG), "--memory_gib", "0.5"]) == 1
    assert "does not fit" in capsys.readouterr().err
    vllm = str(CONFIG.parents[1] / "engines" / "vllm.yaml")
    on_gpu = ["plan", "--config", str(CONFIG), "--config", vllm, "--trainer.accelerator", "gpu", "--memory_gib", "10"]
    assert main(on_gpu) == 0
    assert "there for the trainer: 6.00 GiB" in capsys.readouterr().out, "vLLM has the other 0.4"
    assert main(["plan", "--config", str(CONFIG), "--model.base_model", "/no/such"]) == 1
    assert "configuration cannot be read" in capsys.readouterr().err
