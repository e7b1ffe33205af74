"""Modules, data, trainers and settings that the tests of training share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning import Trainer
from lightning.pytorch.cli import LightningArgumentParser
from torch.utils.data import DataLoader, Dataset

from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.evaluation.viewer.recorded import read_metrics
from medagent.training.advantages import GAE
from medagent.training.command import AgentParser, add_run_settings, train_command
from medagent.training.data import AgentSettings, RolloutData
from medagent.training.engines import EngineSetup
from medagent.training.experience import Experience
from medagent.training.lora import LoraSettings
from medagent.training.module import AgentModule, StepCallback
from medagent.training.prepare import prepare
from medagent.types import Question, Rollout, StopReason, Turn
from studies.starter_base.lessons import STARTER_LIMITS, STARTER_PROTOCOL
from tests.support import CONFIGS

AGENT = AgentSettings(STARTER_PROTOCOL, STARTER_LIMITS, top_k=2)
ALGORITHMS = CONFIGS / "algorithms"


def make_module(**kwargs) -> AgentModule:
    torch.manual_seed(0)
    return AgentModule(policy_lora=LoraSettings(rank=4, alpha=8), critic_lora=LoraSettings(rank=4, alpha=8), **kwargs)


def make_evidence_module(sees: str = "evidence", **settings) -> AgentModule:
    torch.manual_seed(0)
    return AgentModule(policy_lora=LoraSettings(rank=4, alpha=8), critic_lora=None, critic_inputs=sees, **settings)


def make_data(retriever, **kwargs) -> RolloutData:
    settings = {"num_questions": 16, "num_minibatches": 2, "num_micro_batches": 2, **kwargs}
    return RolloutData(StarterBenchmark("train", limit_per_kind=40), retriever, agent=AGENT, **settings)


def perturb(module: AgentModule, scale: float = 0.05) -> None:
    """Move both adapters and the value head off their start, so that ratios differ from 1."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in (*module.shared_base.policy_parameters(), *module.shared_base.critic_parameters()):
            parameter += scale * torch.randn(parameter.shape, generator=generator)


def small_experience(module: AgentModule) -> Experience:
    """Three rollouts of a few made-up tokens, the first of which earns something."""
    rollouts = [
        Rollout(
            Question(f"q{number}", ""),
            (5, 6, 7 + number),
            (
                Turn((9 + number, 10, 11), (-2.0, -1.0, -3.0), "", "query", observation_ids=(3, 4)),
                Turn((12,), (-2.0,), ""),
            ),
            StopReason.ANSWERED,
            reward=float(number == 0),
        )
        for number in range(3)
    ]
    return prepare(module, rollouts, estimator=GAE(), reduce=lambda tensor: tensor)


class OneBatch(Dataset):
    def __init__(self, batches) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int):
        return self.batches[index]


def quiet_trainer(tmp_path: Path, *, epochs: int = 1, callbacks=(), **settings) -> Trainer:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    where = {"default_root_dir": str(tmp_path), "accelerator": "cpu", "devices": 1}
    return Trainer(max_epochs=epochs, callbacks=list(callbacks), **{**where, **quiet, **settings})


class Snoop(StepCallback):
    """Keeps the gradients of each optimizer step, before clipping."""

    def __init__(self) -> None:
        self.policy: list[torch.Tensor] = []
        self.critic: list[torch.Tensor] = []
        self.lr: list[float] = []

    def on_finite_gradient(self, module, optimizer) -> None:
        def flat(parameters):
            found = [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters]
            return torch.cat(found).clone() if found else torch.zeros(0)

        self.policy.append(flat(module.shared_base.policy_parameters()))
        self.critic.append(flat(module.shared_base.critic_parameters()))
        self.lr.append(optimizer.param_groups[0]["lr"])


def gradients(module, steps, tmp_path, *, epochs: int = 1, before=()) -> Snoop:
    snoop = Snoop()
    loader = DataLoader(OneBatch(steps), batch_size=None)
    quiet_trainer(tmp_path, epochs=epochs, callbacks=[*before, snoop]).fit(module, loader)
    return snoop


def setup_of(module, folder: Path) -> EngineSetup:
    question = StarterBenchmark("train").questions()[0]
    return EngineSetup(folder, 512, tuple(STARTER_PROTOCOL.encode_prompt(module.tokenizer, question)))


def arguments(run: Path, index: Path, *, epochs: int, algorithm: str = "st_ppo", **overrides: object) -> list[str]:
    settings = {
        "trainer.default_root_dir": run,
        "trainer.max_epochs": epochs,
        "data.retriever.init_args.retriever.init_args.index": index,
        "data.num_questions": 16,
        "data.num_minibatches": 2,
        **overrides,
    }
    config, task = index / "test-config.yaml", CONFIGS / "experiments" / "starter.yaml"
    config.write_text(
        task.read_text()
        .replace("every_n_epoch: 5", "every_n_epoch: 2")
        .replace("limit_per_kind: 40", "limit_per_kind: 8")
        .replace("{split: train}", "{split: train, limit_per_kind: 60}")
    )
    return [
        "--config",
        str(config),
        "--config",
        str(ALGORITHMS / f"{algorithm}.yaml"),
        *(f"--{name}={value}" for name, value in settings.items()),
    ]


def configured(config: Path, run: Path, index: Path, epochs: int, **overrides: object) -> list[str]:
    """The command line of a run of a packaged configuration."""
    settings = {
        "trainer.default_root_dir": run,
        "trainer.max_epochs": epochs,
        "data.retriever.init_args.index": index,
        **overrides,
    }
    return ["--config", str(config), *(f"--{name}={value}" for name, value in settings.items())]


def numbers(run: Path) -> list[dict[str, float]]:
    """The metrics that must repeat: all but times and speeds."""
    return [
        {name: value for name, value in row.items() if not name.startswith(("time/", "throughput/"))}
        for row in read_metrics(run)
    ]


def parser() -> LightningArgumentParser:
    made = AgentParser()
    made.add_lightning_class_args(Trainer, "trainer")
    made.add_lightning_class_args(AgentModule, "model")
    made.add_lightning_class_args(RolloutData, "data")
    made.add_argument("--seed_everything", type=int)
    made.add_argument("--config", action="config")
    add_run_settings(made, RolloutData)
    return made


def row(success: float, **changes: float) -> dict[str, float]:
    healthy = {
        "reward/success": success,
        "policy/clip_fraction": 0.02,
        "policy/ratio_max": 1.5,
        "policy/grad_norm": 0.4,
        "policy/entropy": 0.3,
        "kl/reference": 0.05,
        "rollout/valid_answer": 0.98,
        "rollout/searches": 1.5,
    }
    return healthy | {name.replace("_", "/", 1): value for name, value in changes.items()}


def stop_at(last: int, settings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Train until weights of iteration `last` would sample."""
    collect = RolloutData.collect

    def stops(self, policy, *, version: int, **kwargs):
        if version == last:
            raise RuntimeError("stopped")
        return collect(self, policy, version=version, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(RolloutData, "collect", stops)
        with pytest.raises(RuntimeError, match="stopped"):
            train_command(settings)
