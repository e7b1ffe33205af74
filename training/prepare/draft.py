"""An iteration's rollouts while they are prepared, and the settings of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from medagent.errors import ConfigError
from medagent.training.advantages import AdvantageEstimator, Reduce
from medagent.training.experience import RolloutTensors
from medagent.training.module import AgentModule
from medagent.types import Rollout

ImportanceMode = Literal["behaviour", "decoupled"]
TruncatedMode = Literal["terminal", "bootstrap", "mask"]
ZeroStdMode = Literal["keep", "mask", "resample"]


@dataclass(frozen=True)
class OffPolicy:
    """The policy that importance weights compare with, and the largest age of rollouts.

    `staleness` s: iteration i trains on rollouts of the policy of iteration i - s, as asynchronous systems do. The
    first s + 1 iterations train on those of the start. With `overlap` the rollouts of iteration i + s are sampled
    while iteration i updates, with the weights from before that update.

    `importance` "behaviour": w = pi_theta / pi_rollout, with the sampler's own log-probs. "decoupled": w = pi_theta /
    pi_prox, recomputed before the update. Every policy term then counts min(pi_prox / pi_rollout, `cap`) times, which
    is truncated importance sampling.
    """

    staleness: int = 0
    importance: ImportanceMode = "behaviour"
    cap: float = 2.0
    overlap: bool = False

    def __post_init__(self) -> None:
        if self.staleness < 0:
            raise ConfigError(f"OffPolicy.staleness: found {self.staleness}, wanted 0 or more iterations.")
        if self.overlap and not self.staleness:
            raise ConfigError(
                "OffPolicy.overlap: found true with staleness 0. Rollouts sampled during an update are one iteration "
                "old when it is used. Set staleness to 1."
            )
        if self.cap < 1:
            raise ConfigError(
                f"OffPolicy.cap: found {self.cap}, wanted 1 or more (below it, on-policy terms shrink too)."
            )


@dataclass
class ExperienceDraft:
    """Experience in the making: each stage of `medagent.training.prepare` fills in its part."""

    module: AgentModule
    estimator: AdvantageEstimator
    reduce: Reduce
    off_policy: OffPolicy
    truncated: TruncatedMode
    zero_std_groups: ZeroStdMode
    rollouts: Sequence[Rollout]
    tensors: RolloutTensors
    evidence_BKF: Tensor = field(default_factory=lambda: torch.zeros(0))
    """[B, K, F] what the critic is told; F is 0 where it reads the context alone."""
    metrics: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        logprobs_BT = self.tensors.rollout_logprobs_BT
        self.truncated_B = torch.tensor([rollout.stop_reason.truncated for rollout in self.rollouts])
        self.reference_BT, self.proximal_BT, self.values_BT = (torch.zeros_like(logprobs_BT) for _ in range(3))
        self.ends_B = torch.zeros(len(self.rollouts))  # the critic's values after the last tokens
        self.old_BT, self.truncation_BT = logprobs_BT, torch.zeros_like(logprobs_BT)

    def value_mask(self) -> Tensor:
        """[B, T] where the critic is read."""
        return self.estimator.value_mask(self.tensors.mask_BT, self.tensors.turn_ids_BT)
