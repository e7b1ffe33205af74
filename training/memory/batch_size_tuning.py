"""A limit of tokens per pass that nobody set is settled at a run's first start, from the memory that is free there."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from lightning import Callback, LightningModule, Trainer

from medagent.errors import ConfigError
from medagent.training.adapters import SharedBase
from medagent.training.auto_dtype import say
from medagent.training.execution import Execution
from medagent.training.heads import CriticInputs
from medagent.training.lora import LoraSettings
from medagent.training.memory.estimate import Load, ModelShape, TokenLimit, fit_token_limit, free_memory
from medagent.training.routing import RoutingReplay
from medagent.training.sharding import over_ranks
from medagent.types import Limits


@dataclass(frozen=True)
class Work:
    """What a rank does in an iteration, as the data module says.

    `limits` are those of a rollout. `trainer_share` is the part of a GPU that a sampler leaves to the trainer.
    """

    rollouts: int
    micro_batch_rows: int
    limits: Limits
    in_process: bool
    weight_sync: str = "auto"
    trainer_share: float = 1.0


@runtime_checkable
class HasWork(Protocol):
    """A data module that tells the work of a rank."""

    def work(self, world_size: int) -> Work:
        """The work of one of `world_size` ranks."""


class Trained(Protocol):
    """What of an `AgentModule` counts for memory."""

    base_name: str
    dtype_name: str
    policy_lora: LoraSettings
    critic_lora: LoraSettings | None
    critic_inputs: CriticInputs
    execution: Execution
    routing_replay: RoutingReplay
    roles: SharedBase


class AutoMaxTokens(Callback):
    """Settles `execution.max_tokens` where it is null, says the number and the reason, and keeps it in checkpoints.

    Over several ranks the smallest number counts. A run that goes on takes the number that it began with.
    """

    def __init__(self) -> None:
        self._kept: int | None = None
        self._settles = False

    def state_dict(self) -> dict[str, Any]:
        """The number; nothing where the configuration sets it."""
        return {"max_tokens": self._kept} if self._settles else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See `state_dict`."""
        self._kept = state_dict.get("max_tokens")

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Settle the number before the first rollout."""
        module: Trained = pl_module  # type: ignore[assignment]
        data = trainer.datamodule  # type: ignore[attr-defined]
        self._settles = module.execution.max_tokens is None and isinstance(data, HasWork)
        if not self._settles:
            return
        if self._kept is not None:
            found = TokenLimit(self._kept, "the run began with it")
        else:
            found = self._over_ranks(trainer, _settle(trainer, module, data.work(trainer.world_size)))
            self._kept = found.max_tokens
        module.execution = replace(module.execution, max_tokens=found.max_tokens)
        number = f"{found.max_tokens:,}" if found.max_tokens else "any number"
        say(f"model.execution.max_tokens: {number}, as {found.reason}.")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the number where there is one."""
        if self._settles and self._kept:
            pl_module.log("update/max_tokens", float(self._kept))

    @staticmethod
    def _over_ranks(trainer: Trainer, own: TokenLimit) -> TokenLimit:
        mine = torch.tensor(float(own.max_tokens) if own.max_tokens else math.inf, dtype=torch.float64)
        least = -float(over_ranks(trainer, -mine, "max"))
        return own if least == float(mine) else TokenLimit(int(least), "another rank has less memory")


def _settle(trainer: Trainer, module: Trained, work: Work) -> TokenLimit:
    device = trainer.strategy.root_device
    try:
        shape = ModelShape.of(module.base_name)
    except ConfigError as error:
        return TokenLimit(0, f"nothing is known of what it needs ({error})")
    load = Load(
        shape,
        module.dtype_name,
        module.policy_lora,
        module.critic_lora,
        module.execution,
        work.limits,
        work.rollouts,
        work.micro_batch_rows,
        work.in_process,
        "cpu" if device.type == "cpu" else "gpu",
        trainer.world_size if module.shared_base.sharded else 1,
        module.critic_inputs,
        work.weight_sync,
        module.routing_replay,
        device.type == "cpu",
    )
    ranks_here = 1 if device.type == "cuda" else trainer.num_devices
    return fit_token_limit(load, work.trainer_share * free_memory(device, sharing=ranks_here))
