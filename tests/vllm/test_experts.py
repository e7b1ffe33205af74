"""Real vLLM with mixtures of experts: replaying those that it chose brings log-probs together, on a GPU alone."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from medagent.errors import ConfigError
from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.export import export_merged
from medagent.policies.vllm.server import HAS_TRITON, MODEL, VllmServer
from medagent.training.callbacks.export import read_metrics
from medagent.training.command import train_command
from medagent.training.engines import ModuleWeights, VllmEngine
from tests.mixtures import FAMILIES, dialogues, make_mixture
from tests.training.mixtures import made, prepared, settings
from tests.training.support import setup_of

pytestmark = pytest.mark.vllm
QUESTIONS = StarterBenchmark("train", limit_per_kind=2).questions() * 2


@pytest.mark.skipif(not HAS_TRITON, reason="vLLM returns experts on a GPU alone")
@pytest.mark.parametrize("family", FAMILIES)
def test_replaying_vllms_experts_brings_log_probs_five_times_nearer(family: str, tmp_path: Path) -> None:
    make_mixture(tmp_path / "base", family)
    module, engine = made(tmp_path / "base", dtype="bfloat16"), VllmEngine(weight_sync="merged")
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
def test_what_vllm_cannot_do_on_a_cpu_is_refused_before_it_starts(tmp_path: Path) -> None:
    make_mixture(tmp_path / "base", "mixtral", experts=8, layers=1)
    module = made(tmp_path / "base")
    for form, words in (("adapter", "beside a mixture of experts"), ("merged", "routing_replay: r2")):
        with pytest.raises(ConfigError, match=words):
            VllmEngine(weight_sync=form).start(ModuleWeights(module), setup_of(module, tmp_path))


def test_a_mixture_trains_with_vllm_and_its_export_serves(train_index: Path, tmp_path: Path) -> None:
    make_mixture(tmp_path / "base", "qwen3_moe", experts=32, layers=3)
    engine = {"data.engine": "medagent.training.engines.VllmEngine", "data.engine.init_args.weight_sync": "merged"}
    more = {**engine, "model.dtype": "float32"}
    run = train_command(settings(tmp_path / "run", train_index, tmp_path / "base", epochs=3, replay="r2", **more))
    assert len(read_metrics(run)) == 3
    export_merged(run / "agent", tmp_path / "merged")
    probe = list(range(5, 40))
    with closing(
        VllmServer(str(tmp_path / "merged"), dtype="float32", max_model_len=512, log=tmp_path / "log")
    ) as server:
        found = server.wait().api.logprobs(probe, model=MODEL)
    exported = made(tmp_path / "merged", replay="none")
    with torch.no_grad():
        wanted = ModuleWeights(exported).logprobs(tuple(probe))
    assert found == pytest.approx(wanted.tolist(), abs=1e-3)
