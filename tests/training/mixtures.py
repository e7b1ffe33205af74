"""Modules, experience and settings of mixtures of experts that the tests of routing replay share."""

from __future__ import annotations

from pathlib import Path

import torch

from medagent.training.advantages import GroupNormalised
from medagent.training.experience import Experience
from medagent.training.lora import LoraSettings
from medagent.training.module import AgentModule
from medagent.training.prepare import OffPolicy, prepare
from medagent.types import Rollout
from tests.training.support import arguments


def made(folder: Path, *, replay: str = "r3", **settings) -> AgentModule:
    torch.manual_seed(0)
    return AgentModule(
        str(folder),
        policy_lora=LoraSettings(rank=4, alpha=8),
        critic_lora=None,
        routing_replay=replay,
        **{"dtype": "float32", "kl_coef": 0.0, **settings},
    )


def prepared(module: AgentModule, rollouts: list[Rollout], importance: str = "decoupled") -> Experience:
    return prepare(
        module,
        rollouts,
        estimator=GroupNormalised(),
        reduce=lambda tensor: tensor,
        num_samples=4,
        off_policy=OffPolicy(importance=importance),
    )


def settings(run: Path, index: Path, base: Path, *, epochs: int, replay: str = "r3", **more: object) -> list[str]:
    return arguments(
        run,
        index,
        epochs=epochs,
        **{
            "model.base_model": base,
            "model.dtype": "bfloat16",
            "model.routing_replay": replay,
            "model.policy_lr": 1e-2,
            "data.reward": "tests.training.user_classes.EvenTokens",
            "data.num_questions": 8,
            "data.num_samples": 2,
            **more,
        },
    )
