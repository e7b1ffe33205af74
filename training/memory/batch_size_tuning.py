"""The limit of tokens per pass that follows from a rank's work and its free memory."""

from __future__ import annotations

from dataclasses import dataclass

from lightning import Trainer

from medagent.errors import ConfigError
from medagent.training.execution import TokenLimit
from medagent.training.memory.estimate import Load, ModelShape, fit_token_limit, free_memory
from medagent.training.module import AgentModule
from medagent.types import Limits


@dataclass(frozen=True)
class Work:
    """The work of a rank in an iteration; a sampler leaves `trainer_share` of the GPU."""

    rollouts: int
    micro_batch_rows: int
    limits: Limits
    in_process: bool
    weight_sync: str = "auto"
    trainer_share: float = 1.0


def token_limit_of(trainer: Trainer, module: AgentModule, work: Work) -> TokenLimit:
    """The limit of tokens per pass that fits the free memory of this rank."""
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
    )
    ranks_here = 1 if device.type == "cuda" else trainer.num_devices
    return fit_token_limit(load, work.trainer_share * free_memory(device, sharing=ranks_here))
