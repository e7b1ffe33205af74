"""The default engine: a copy of the base in the trainer's process.

The policy adapter is merged into the copy at each hand-over.
"""

from __future__ import annotations

import copy

import torch
from transformers import PreTrainedModel

from medagent.errors import ConfigError
from medagent.policies.huggingface import HFPolicy
from training.engines.base import EngineSetup, RolloutEngine
from training.module import AgentModule


class InProcessEngine(RolloutEngine):
    """Samples reproducibly with Hugging Face's model code, on the trainer's device.

    Equal seeds give equal rollouts.
    """

    def __init__(self) -> None:
        self._policy: HFPolicy | None = None

    def start(self, module: AgentModule, setup: EngineSetup) -> None:
        """See `RolloutEngine.start`: refuses a base that is sharded."""
        _refuse(setup.sharded)

    def hand_over(self, module: AgentModule, *, version: int) -> HFPolicy:
        """See `RolloutEngine.hand_over`."""
        _refuse(module.roles.sharded)
        if self._policy is None:
            self._policy = HFPolicy(_plain_copy(module), module.tokenizer)
        self._policy.load_weights(module.roles.merged_policy())
        return self._policy

    def close(self) -> None:
        """Drop the copy, as a second run of this engine may have another base."""
        self._policy = None


def _refuse(sharded: bool) -> None:
    if sharded:
        raise ConfigError(
            "engine in_process: keeps a whole copy of the base on each rank, which ShardedBase is to avoid. "
            "Take training.engines.ServersEngine as data.engine, or VllmEngine with GPUs of its own for every rank, "
            "or trainer.strategy ddp."
        )


def _plain_copy(module: AgentModule) -> PreTrainedModel:
    """The base without adapters, with weights of its own, on the module's device."""
    model: PreTrainedModel = copy.deepcopy(module.roles.peft).unload()
    model.requires_grad_(False)
    # A KV cache with rows at their own positions needs a mask, which not every attention takes.
    model.set_attn_implementation("sdpa")
    torch.nn.Module.to(model, module.device).eval()
    return model
