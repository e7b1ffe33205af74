"""A base sharded over two processes: a run of them trains, stops, goes on, and learns what one process learns."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from medagent.errors import ConfigError
from medagent.training.callbacks.export import read_metrics
from medagent.training.command import train_command
from medagent.training.engines import EngineSetup, InProcessEngine, ModuleWeights
from tests.fake_vllm import FakeVllm
from tests.support import ROOT
from tests.training.support import arguments, make_module, setup_of


def test_a_copy_of_a_sharded_base_is_refused(tmp_path: Path) -> None:
    module = make_module()
    setup = setup_of(module, tmp_path)
    with pytest.raises(ConfigError, match=r"whole copy of the base on each rank.*training.engines.ServersEngine"):
        InProcessEngine().start(
            ModuleWeights(module), EngineSetup(setup.folder, setup.max_tokens, setup.probe_ids, sharded=True)
        )


@pytest.mark.long
def test_two_processes_train_and_go_on_as_one_would(train_index: Path, tmp_path: Path) -> None:
    server = FakeVllm()
    policy = {
        "class_path": "medagent.training.engines.ServersEngine",
        "init_args": {"urls": [server.url], "model": "base", "adapters": str(tmp_path / "shared")},
    }
    settings = {
        "data.engine": json.dumps(policy),
        "data.num_minibatches": 1,  # who shares a step must not depend on the number of ranks
        "model.execution.max_tokens": 1000,
        "trainer.accelerator": "cpu",
    }
    sharded = {"trainer.devices": 2, "trainer.strategy.class_path": "medagent.training.sharding.ShardedBase"}
    line = [sys.executable, *"-m torch.distributed.run --standalone --nproc_per_node=2 -m medagent.cli.main".split()]
    for epochs in (1, 2):
        given = arguments(tmp_path / "two", train_index, epochs=epochs, **settings, **sharded)
        done = subprocess.run(
            [*line, "train", *given], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
    assert "Going on from" in done.stdout
    one = train_command(arguments(tmp_path / "one", train_index, epochs=2, **settings))
    server.close()
    adapters = [load_file(run / "agent" / "adapter" / "adapter_model.safetensors") for run in (tmp_path / "two", one)]
    for name, weight in adapters[1].items():
        apart = (adapters[0][name] - weight).abs()  # Adam turns gradients that are nothing but rounding into steps
        assert float((apart > 1e-4).float().mean()) < 0.02, name
    rows, wanted = read_metrics(tmp_path / "two"), read_metrics(one)
    assert len(rows) == len(wanted) == 2
    assert all(row["sampler/probe_gap"] < 1e-4 for row in rows)
    assert rows[1]["policy/grad_norm"] == pytest.approx(wanted[1]["policy/grad_norm"], rel=1e-2)
