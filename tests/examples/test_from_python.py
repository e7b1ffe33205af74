"""examples/from_python/train.py trains, goes on where it was, and leaves no engine open."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from lightning import Trainer

from medagent import training
from medagent.agent import Job
from medagent.agent_folder import load_agent
from medagent.errors import ConfigError
from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.retrieval.search import HybridRetriever
from medagent.starter.world import World
from medagent.training.data import RolloutData
from medagent.training.engines import InProcessEngine
from medagent.training.module import AgentModule
from medagent.training.run import _with_defaults, quiet_lightning
from medagent.types import Rollout
from tests.support import ROOT
from tests.training.support import make_data, make_module

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
    text = SCRIPT.read_text()
    assert len(re.findall(r"^(?:from|import) medagent", text, re.MULTILINE)) <= 6
    train = runpy.run_path(str(SCRIPT))["train"]
    first = train(tmp_path / "run", iterations=1, num_questions=8, held_out=2)
    assert closed, "the run's engine, with nobody asking for it"
    assert [row["epoch"] for row in first.metrics] == [0]
    second = train(tmp_path / "run", iterations=2, num_questions=8, held_out=2)
    assert second.agent == first.agent == tmp_path / "run" / "agent"
    assert [row["epoch"] for row in second.metrics] == [0, 1], "the second call began at the second iteration"
    assert "validation/accuracy" in second.metrics[1]
    assert (tmp_path / "run" / "rollouts" / "iteration_0001.jsonl.gz").exists(), "as `medagent train` writes"
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == [
        "epoch=0.ckpt",
        "epoch=1.ckpt",
    ]
    question = World.load().questions("validation")[0]
    assert load_agent(first.agent).run_all([Job(question, temperature=0.0)])[0].turns


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
    with pytest.raises(ConfigError, match="no such grade"):
        trainer.fit(AgentModule(), datamodule=data)
    assert closed == [data.engine]


def test_importing_the_package_loads_no_torch_and_its_names_are_there() -> None:
    code = "import sys, medagent.training; assert 'torch' not in sys.modules and 'lightning' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    for name in training.__all__:
        assert getattr(training, name).__name__ == name


def test_a_callback_of_the_users_takes_the_place_of_a_default_one(retriever: HybridRetriever) -> None:
    export = training.AgentExport(every=7)
    found = _with_defaults([export, training.TurnLevelSampling()], make_data(retriever))
    assert [type(each).__name__ for each in found] == [
        "RolloutRecords",
        "AgentExport",
        "ProgressLine",
        "TurnLevelSampling",
    ]
    assert export in found


def test_a_folder_of_other_files_or_more_iterations_is_refused(retriever: HybridRetriever, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "mine.txt").write_text("precious")
    with pytest.raises(ConfigError, match="no run of ours"):
        training.train(make_module(), make_data(retriever), out=tmp_path, accelerator="cpu")
