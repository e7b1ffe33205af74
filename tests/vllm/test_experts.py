"""Real vLLM with mixtures of experts: replaying those that it chose brings log-probs together, on a GPU alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from medagent.errors import ConfigError
from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.policies.vllm.server import HAS_TRITON
from medagent.training.engines import ModuleWeights, VllmEngine
from tests.mixtures import FAMILIES, dialogues, make_mixture
from tests.training.mixtures import made, prepared
from tests.training.support import setup_of

pytestmark = pytest.mark.vllm
QUESTIONS = StarterBenchmark("train", limit_per_kind=2).questions() * 2


@pytest.mark.skipif(not HAS_TRITON, reason="vLLM returns experts on a GPU alone")
@pytest.mark.parametrize("family", FAMILIES)
def test_replaying_vllms_experts_brings_log_probs_five_times_nearer(family: str, tmp_path: Path) -> None:
    make_mixture(tmp_path / "base", family)
    module, engine = made(tmp_path / "base", dtype="bfloat16"), VllmEngine()
    try:
        engine.start(ModuleWeights(module), setup_of(module, tmp_path))
        rollouts = dialogues(engine.sync_weights(ModuleWeights(module), version=0), QUESTIONS)
    finally:
        engine.close()
    batch = prepared(module, rollouts)
    print(family, batch.metrics)
    assert batch.metrics["routing/differs"] > 0.05
    assert batch.metrics["routing/logprob_gap_live"] > 5 * batch.metrics["routing/logprob_gap"]
    routing = module.shared_base.routing(batch.experts_BTLK, records=True)
    module.shared_base.policy_scores(
        batch.token_ids_BT, batch.attention_BT, batch.mask_BT, temperature=1.0, routing=routing
    )
    for row, rollout in enumerate(rollouts):
        record = rollout.routing.experts
        assert len(record) == len(rollout.token_ids) - 1
        assert np.array_equal(routing.chosen_BTLK[row, : len(record)].numpy(), record)


@pytest.mark.skipif(HAS_TRITON, reason="of the CPU build")
def test_experts_without_triton_are_refused_before_vllm_starts(tmp_path: Path) -> None:
    make_mixture(tmp_path / "base", "mixtral", experts=8, layers=1)
    module = made(tmp_path / "base")
    with pytest.raises(ConfigError, match="beside a mixture of experts"):
        VllmEngine().start(ModuleWeights(module), setup_of(module, tmp_path))
