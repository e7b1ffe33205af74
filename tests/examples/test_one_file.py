"""The loop of examples/st_ppo_in_one_file.py ends with the very weights of `medagent train`."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch
import yaml

from medagent.evaluation.viewer.recorded import read_metrics
from medagent.retrieval.controls import UnreliableRetriever
from medagent.retrieval.search import HybridRetriever
from medagent.training.command import train_command
from medagent.training.run import newest_checkpoint
from tests.support import ROOT

CONFIGS = ("configs/experiments/starter.yaml", "configs/algorithms/st_ppo.yaml")
ITERATIONS = 2


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    return importlib.import_module("st_ppo_in_one_file")


def test_its_settings_are_those_of_the_configurations(example: ModuleType) -> None:
    task, algorithm = (yaml.safe_load((ROOT / name).read_text(encoding="utf-8")) for name in CONFIGS)
    model, data = task["model"] | algorithm["algorithm"]["model"], task["data"]
    settings = example.Settings()
    shared = ("num_questions", "num_minibatches", "policy_lr", "critic_lr", "lr_decay_iterations", "kl_coef")
    assert [getattr(settings, name) for name in shared] == [(model | data)[name] for name in shared]
    assert settings.num_micro_batches == data["num_micro_batches"]
    limits = data["agent"]["limits"]
    assert {name: getattr(example.LIMITS, name) for name in limits} == limits


@pytest.mark.slow
def test_two_iterations_give_every_weight_of_the_trainer_exactly(
    example: ModuleType, train_index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = example.Settings(num_questions=16)
    overrides = {
        "trainer.default_root_dir": tmp_path / "run",
        "trainer.max_epochs": ITERATIONS,
        "data.retriever.init_args.retriever.init_args.index": train_index,
        "data.num_questions": settings.num_questions,
    }
    configs = [argument for name in CONFIGS for argument in ("--config", str(ROOT / name))]
    run = train_command([*configs, *(f"--{name}={value}" for name, value in overrides.items())])
    checkpoint = newest_checkpoint(run)
    assert checkpoint is not None
    wanted = torch.load(checkpoint, weights_only=True)["state_dict"]

    retriever = UnreliableRetriever(HybridRetriever(str(train_index)), share=0.05)
    start, _ = example.train(settings, retriever, iterations=0)
    capsys.readouterr()
    shared_base, history = example.train(settings, retriever, iterations=ITERATIONS)
    assert len(capsys.readouterr().out.splitlines()) == ITERATIONS, "a line per iteration"

    found, before = (
        {f"shared_base.{name}": weight for name, weight in each.named_parameters() if weight.requires_grad}
        for each in (shared_base, start)
    )
    assert found.keys() == wanted.keys()
    assert not [name for name, weight in found.items() if not torch.equal(weight, wanted[name])]
    # The equality says something: all weights have moved, terms were clipped, and the correction shortened a step.
    assert not [name for name, weight in found.items() if torch.equal(weight, before[name])]
    assert all(row["clipped"] > 0 and row["smallest scale"] < 1 for row in history)
    assert [row["success"] for row in history] == [row["reward/success"] for row in read_metrics(run)]
