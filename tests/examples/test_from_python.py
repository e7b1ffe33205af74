"""examples/from_python/train.py trains, goes on where it was, and leaves no engine open."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from lightning import Trainer

from medagent.agent import Job
from medagent.agent_folder import load_agent
from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.retrieval.search import HybridRetriever
from medagent.starter.world import World
from medagent.training.callbacks.export import read_metrics
from medagent.training.data import RolloutData
from medagent.training.engines import InProcessEngine
from medagent.training.module import AgentModule
from medagent.training.run import quiet_lightning
from medagent.types import Rollout
from tests.support import ROOT

SCRIPT = ROOT / "examples" / "from_python" / "train.py"


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[InProcessEngine]:
    """The engines that were closed, in order."""
    engines: list[InProcessEngine] = []
    close = InProcessEngine.close

    def noted(engine: InProcessEngine) -> None:
        engines.append(engine)
        close(engine)

    monkeypatch.setattr(InProcessEngine, "close", noted)
    return engines


@pytest.mark.slow
def test_the_script_trains_an_agent_and_goes_on_when_it_is_called_again(
    tmp_path: Path, closed: list[InProcessEngine]
) -> None:
    train = runpy.run_path(str(SCRIPT))["train"]
    first = train(tmp_path / "run", iterations=1, num_questions=8, held_out=2)
    assert len(closed) == 1, "the run's engine, with nobody asking for it"
    assert [row["epoch"] for row in read_metrics(tmp_path / "run")] == [0]
    assert train(tmp_path / "run", iterations=2, num_questions=8, held_out=2) == first
    rows = read_metrics(tmp_path / "run")
    assert [row["epoch"] for row in rows] == [0, 1], "the second call began at the second iteration"
    assert "validation/accuracy" in rows[1]
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == [
        "epoch=0.ckpt",
        "epoch=1.ckpt",
    ]
    question = World.load().questions("validation")[0]
    assert load_agent(first).run_all([Job(question, temperature=0.0)])[0].turns


def test_a_run_that_fails_closes_its_engine(
    tmp_path: Path, retriever: HybridRetriever, closed: list[InProcessEngine]
) -> None:
    def broken(rollout: Rollout) -> Rollout:
        raise LookupError("no such grade")

    quiet_lightning()
    small = {"num_questions": 2, "num_minibatches": 1, "num_micro_batches": 1}
    data = RolloutData(StarterBenchmark("train"), retriever, reward=broken, **small)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(default_root_dir=tmp_path, max_epochs=1, accelerator="cpu", devices=1, **quiet)
    with pytest.raises(LookupError, match="no such grade"):
        trainer.fit(AgentModule(), datamodule=data)
    assert closed == [data.engine]
