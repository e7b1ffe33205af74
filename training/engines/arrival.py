"""Checks that new weights have arrived where the rollouts are sampled.

It compares log-probs of a probe, as the sampler and as the trainer compute them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from medagent.errors import PolicyError
from training.module import AgentModule

# Largest mean |difference| between two right implementations.
TOLERANCE = {"float32": 1e-2, "bfloat16": 0.5, "float16": 0.25}
FLOOR = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 5e-3}  # root mean square below which a change is rounding
# where only the trainer's base is in 4 bits; 0.75 was measured on the starter, whose 128 dimensions lose most
FOUR_BITS = 1.5
LEAST_SHARE = 0.25


@torch.no_grad()
def trainer_logprobs(module: AgentModule, token_ids: tuple[int, ...]) -> Tensor:
    """[T - 1] log-probs of the tokens after the first under the present policy, at temperature 1, on the CPU."""
    ids = torch.tensor([token_ids], device=module.device)
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[:, 0] = False
    scores = module.roles.policy_scores(ids, torch.ones_like(mask), mask, temperature=1.0)
    return scores.logprobs_BT[0, 1:].double().cpu()


@dataclass
class ArrivalCheck:
    """Compares sampler and trainer at each hand-over, and how each has moved since the one before.

    The difference between the two at one moment comes from kernels and precision. In bf16 it is far larger than what an
    iteration changes. So the sampler's change is regressed on the trainer's. The slope is 1 where the weights arrived,
    and 0 where the sampler still has the old ones.
    """

    dtype: str
    four_bits: bool = False
    _before: tuple[Tensor, Tensor] | None = field(default=None, repr=False)
    gap: float = 0.0
    slope: float = 1.0

    def __call__(self, sampler: list[float], trainer: Tensor, *, where: str) -> None:
        """Compare the two.

        Raises:
            PolicyError: they disagree, or the sampler stood still while the trainer moved.
        """
        heard = torch.tensor(sampler, dtype=torch.float64)
        self.gap, self.slope = float((heard - trainer).abs().mean()), 1.0
        if self._before is not None:
            moved, answered = trainer - self._before[1], heard - self._before[0]
            if float(moved.square().mean().sqrt()) > FLOOR[self.dtype]:
                self.slope = float((answered * moved).sum() / moved.square().sum())
        self._before = (heard, trainer)
        tolerance = FOUR_BITS if self.four_bits else TOLERANCE[self.dtype]
        if self.gap > tolerance or self.slope < LEAST_SHARE:
            raise PolicyError(
                f"{where}: the weights handed over did not arrive. On the probe its log-probs differ from the "
                f"trainer's by {self.gap:.2g} on average (at most {tolerance:g} is arithmetic in "
                f"{self.dtype}{' against 4 bits' if self.four_bits else ''}), and it followed {self.slope:.0%} of "
                "the trainer's last change. Check that it serves the same base model and dtype, and see its log."
            )

    def metrics(self) -> dict[str, float]:
        """Metrics to be logged."""
        return {"sampler/probe_gap": self.gap, "sampler/arrived": self.slope}
