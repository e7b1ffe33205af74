"""The interface between the trainer, which owns the weights, and what samples with a copy of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import torch

from medagent.policy import Policy
from medagent.training.module import AgentModule


@dataclass(frozen=True)
class EngineSetup:
    """What an engine is told before the first hand-over.

    `folder` is the run's, for logs. `max_tokens` is the longest rollout. `probe_ids` is a text whose log-probs tell
    whether weights have arrived.
    """

    folder: Path
    max_tokens: int
    probe_ids: tuple[int, ...]
    rank: int = 0  # of this machine's ranks
    num_ranks: int = 1
    device: torch.device = torch.device("cpu")  # the trainer's; the module may not be there yet
    sharded: bool = False  # whether no rank holds the whole base


class RolloutEngine(ABC):
    """Samples with the weights that it was handed last.

    One object serves one run. Its settings are those of the YAML.
    """

    takes_adapters = False  # whether it is handed the LoRA and not merged weights
    overlaps = True  # whether it can sample while the trainer updates
    records_routing = False  # whether its turns can carry the experts that it chose
    samples_here = False  # whether it samples in the trainer's process
    asked_form = "auto"  # its setting hand_over, where it has one
    trainer_share = 1.0  # of the GPU's memory that it leaves to the trainer

    def start(self, module: AgentModule, setup: EngineSetup) -> None:  # noqa: B027 (nothing to start by default)
        """Start what must run beside the trainer, or refuse, before any rollout."""

    @abstractmethod
    def hand_over(self, module: AgentModule, *, version: int) -> Policy:
        """Take the module's present policy weights and return a policy that samples with them.

        `version` is the iteration that the weights are of.
        """

    def rest(self) -> None:  # noqa: B027
        """The iteration's rollouts are complete: free what the update may need."""

    def metrics(self) -> dict[str, float]:
        """Metrics of the last hand-over, to be logged."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Stop what was started; safe to call twice."""
