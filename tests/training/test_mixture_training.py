"""A mixture of experts trains end to end, and its export loads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from medagent.agent_folder import open_agent
from medagent.evaluation.viewer.recorded import read_metrics
from medagent.export import export_merged
from medagent.training.command import train_command
from medagent.training.lora import LoraSettings
from medagent.training.memory.estimate import ModelShape
from tests.mixtures import make_mixture
from tests.training.support import arguments


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixture")
    make_mixture(folder, "qwen3_moe", experts=32, layers=3)
    return folder


@pytest.mark.long
def test_st_ppo_trains_a_mixture_and_its_export_loads(base: Path, train_index: Path, tmp_path: Path) -> None:
    settings = {
        "model.base_model": base,
        "model.dtype": "bfloat16",
        "model.policy_lr": 1e-2,
        "model.execution.gradient_checkpointing": "true",
        "model.execution.shared_prefixes": "true",
        "data.reward": "tests.training.user_classes.EvenTokens",
        "data.num_questions": 8,
        "data.num_samples": 2,
    }
    run = train_command(arguments(tmp_path / "run", train_index, epochs=3, **settings))
    rows = read_metrics(run)
    assert len(rows) == 3
    assert all(row["policy/grad_norm"] > 0 for row in rows)
    export_merged(run / "agent", tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    moved = {name for name, value in merged.state_dict().items() if not torch.equal(value, plain.state_dict()[name])}
    assert {name.rsplit(".", 2)[1] for name in moved} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        assert merged(input_ids=ids).logits.isfinite().all()
    assert open_agent(str(run / "agent"), index=None)


def test_the_plan_counts_the_experts_that_a_token_passes(base: Path) -> None:
    shape = ModelShape.of(str(base))
    assert shape.intermediate == 2 * 64
    assert shape.lora_parameters(LoraSettings(1, 1)) == 3 * (2 * (64 + 64) + 2 * (64 + 32)), "attention alone"
