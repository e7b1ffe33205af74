"""Real vLLM on a CPU trains a mixture of experts and serves its export.

Marked `vllm`, as tests/vllm/test_vllm.py. The CPU build has no Triton, so vLLM's own return of experts cannot run here.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import torch

from medagent.errors import ConfigError
from medagent.export import export_merged
from medagent.policies.vllm.server import HAS_TRITON, MODEL, VllmServer
from medagent.training.callbacks.export import read_metrics
from medagent.training.command import train_command
from medagent.training.engines import ModuleWeights, VllmEngine
from tests.mixtures import make_mixture
from tests.training.mixtures import made, settings
from tests.training.support import setup_of

pytestmark = [pytest.mark.vllm, pytest.mark.skipif(HAS_TRITON, reason="of the CPU build")]


def test_settings_that_need_a_gpu_are_refused_before_vllm_starts(tmp_path: Path) -> None:
    make_mixture(tmp_path / "base", "mixtral", experts=8, layers=1)
    module = made(tmp_path / "base")
    for given, words in (({"weight_sync": "adapter"}, "beside a mixture of experts"), ({}, "only on a GPU")):
        with pytest.raises(ConfigError, match=words):
            VllmEngine(**given).start(ModuleWeights(module), setup_of(module, tmp_path))


def test_a_mixture_trains_with_vllm_and_its_export_serves(train_index: Path, tmp_path: Path) -> None:
    make_mixture(tmp_path / "base", "qwen3_moe", experts=32, layers=3)
    engine = {"data.engine": "medagent.training.engines.VllmEngine", "data.engine.init_args.weight_sync": "merged"}
    more = {**engine, "model.dtype": "float32"}
    run = train_command(settings(tmp_path / "run", train_index, tmp_path / "base", epochs=3, replay="r2", **more))
    rows = read_metrics(run)
    assert len(rows) == 3
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
