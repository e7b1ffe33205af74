"""A run ends by the compute that it has spent, exactly, whether it was stopped in between or not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from medagent.agent_spec import read_spec
from medagent.errors import ConfigError
from medagent.training.callbacks import ComputeBudget
from medagent.training.command import sft_command, train_command
from studies.budget_report import spent_by
from tests.support import CONFIGS
from tests.training.support import arguments, numbers

EXAMPLES = CONFIGS.parent / "studies" / "budget" / "configs" / "parts" / "examples.yaml"
FEW = {
    "class_path": "medagent.evaluation.benchmarks.StarterBenchmark",
    "init_args": {"split": "train", "limit_per_kind": 10},
}


def budget(folder: Path, units: float) -> list[str]:
    """The configuration of a budget of so many units."""
    path = folder / f"budget-{units:.0f}.yaml"
    callback = {"class_path": "medagent.training.callbacks.ComputeBudget", "init_args": {"units": units}}
    path.write_text(json.dumps({"trainer": {"callbacks+": [callback]}}))
    return ["--config", str(path)]


def imitate(run: Path, index: Path, *more: str) -> Path:
    settings = {
        "trainer.default_root_dir": run,
        "data.demonstrations.init_args.benchmark": json.dumps(FEW),
        "data.retriever.init_args.index": index,
    }
    return sft_command(["--config", str(EXAMPLES), *(f"--{name}={value}" for name, value in settings.items()), *more])


@pytest.mark.slow
def test_imitation_ends_after_the_step_that_crosses_the_budget(
    train_index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = imitate(tmp_path / "whole", train_index, "--trainer.max_epochs=3")
    passes = spent_by(whole)
    assert passes.forward == passes.backward > 0, "every token of a step goes back"
    units = 0.5 * passes.units  # inside the second of three passes
    at_once = imitate(tmp_path / "at-once", train_index, *budget(tmp_path, units))
    spent = spent_by(at_once)
    assert units <= spent.units < units + passes.units / 6, "less than a step too much, of two steps in a pass"
    assert spent.iterations == 2
    assert read_spec(at_once / "agent").training["iterations"] == "2"
    imitate(tmp_path / "stopped", train_index, *budget(tmp_path, units), "--trainer.max_epochs=1")
    again = imitate(tmp_path / "stopped", train_index, *budget(tmp_path, units))
    assert numbers(again) == numbers(at_once)
    made = (again / "agent" / "adapter" / "adapter_model.safetensors").read_bytes()
    assert made == (at_once / "agent" / "adapter" / "adapter_model.safetensors").read_bytes()
    capsys.readouterr()
    imitate(tmp_path / "stopped", train_index, *budget(tmp_path, units))
    assert "is spent" in capsys.readouterr().out
    assert spent_by(again) == spent
    assert (again / "agent" / "adapter" / "adapter_model.safetensors").read_bytes() == made


@pytest.mark.slow
def test_training_ends_after_the_iteration_that_crosses_the_budget(train_index: Path, tmp_path: Path) -> None:
    settings = {"data.num_questions": 4, "data.num_minibatches": 1}
    first = spent_by(train_command(arguments(tmp_path / "first", train_index, epochs=1, **settings)))
    units = 1.1 * first.units
    run = train_command([*arguments(tmp_path / "run", train_index, epochs=9, **settings), *budget(tmp_path, units)])
    assert spent_by(run).iterations == 2
    assert spent_by(run).units > units
    assert read_spec(run / "agent").training["iterations"] == "2"


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ComputeBudget\.units: found 0, wanted more than 0"):
        ComputeBudget(0)
