"""A mixture of experts trains end to end with routing replay, resumes to the same numbers, and its export loads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from medagent.agent_folder import open_agent
from medagent.export import export_merged
from medagent.training.callbacks.export import read_metrics
from medagent.training.command import train_command
from medagent.training.execution import Execution
from medagent.training.lora import LoraSettings
from medagent.training.memory.estimate import Load, ModelShape
from medagent.types import Limits
from tests.mixtures import make_mixture
from tests.training.mixtures import settings


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixture")
    make_mixture(folder, "qwen3_moe", experts=32, layers=3)
    return folder


@pytest.mark.long
def test_st_ppo_trains_a_mixture_with_r3_and_its_export_loads(base: Path, train_index: Path, tmp_path: Path) -> None:
    way = {"model.execution.gradient_checkpointing": "true", "model.execution.shared_prefixes": "true"}
    run = train_command(settings(tmp_path / "run", train_index, base, epochs=3, **way))
    rows = read_metrics(run)
    assert len(rows) == 3
    for row in rows:
        assert row["policy/grad_norm"] > 0
        assert 0 <= row["routing/differs"] < 0.5
        assert row["routing/logprob_gap"] <= row["routing/logprob_gap_live"] < 0.5
    export_merged(run / "agent", tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    moved = {name for name, value in merged.state_dict().items() if not torch.equal(value, plain.state_dict()[name])}
    assert {name.rsplit(".", 2)[1] for name in moved} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        assert merged(input_ids=ids).logits.isfinite().all()
    assert open_agent(str(run / "agent"), index=None)


def test_the_plan_counts_records_and_the_experts_that_a_token_passes(base: Path) -> None:
    shape = ModelShape.of(str(base))
    assert shape.record_bytes == 3 * 2  # layers, experts of a token, a byte each
    assert shape.intermediate == 2 * 64
    assert shape.lora_parameters(LoraSettings(1, 1)) == 3 * (2 * (64 + 64) + 2 * (64 + 32)), "attention alone"

    def load(replay: str, device: str = "cpu") -> Load:
        lora, limits = LoraSettings(4, 8), Limits(max_total_tokens=100)
        return Load(shape, "bfloat16", lora, None, Execution(), limits, 10, 4, True, device, routing_replay=replay)

    name = "experts to be replayed"
    assert name not in load("none").parts()
    assert load("r2").parts()[name] == 10 * 100 * 6
    assert load("r3").parts()[name] == 2 * 10 * 100 * 6, "as the turns carry them, and padded"
    assert load("r3").peak() - load("none").peak() == 2 * 10 * 100 * 6
    on_gpu = load("r3", "gpu")
    assert on_gpu.parts()[name] == 4 * 100 * 6, "those of a micro-batch; the rest stays with the host"
    assert on_gpu.records() == 2 * 10 * 100 * 6
