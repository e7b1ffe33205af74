"""Proof that new weights have arrived where the rollouts are sampled, and a second opinion on it.

The proof compares checksums of what the sampler holds with those of what it was handed: rounding has no part in it. The
second opinion compares log-probs of a probe, as the sampler and as the trainer compute them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from medagent.errors import PolicyError
from medagent.models.checksums import Checksum
from medagent.training.module import AgentModule

log = logging.getLogger(__name__)

# Largest mean |difference| between two right implementations.
TOLERANCE = {"float32": 1e-2, "bfloat16": 0.5, "float16": 0.25}
FLOOR = {"float32": 1e-5, "bfloat16": 2e-3, "float16": 5e-4}  # root mean square below which a change is rounding
# where only the trainer's base is in 4 bits; 0.75 was measured on the starter, whose 128 dimensions lose most
FOUR_BITS = 1.5
MEASURABLE = 4.0  # the probe judges a change of so many times the redrawn gap
LEAST_FOLLOWED = 0.5

Verdict = Literal["arrived", "not measurable"]


@torch.no_grad()
def trainer_logprobs(module: AgentModule, token_ids: tuple[int, ...]) -> Tensor:
    """[T - 1] log-probs of the tokens after the first under the present policy, at temperature 1, on the CPU."""
    with module.roles.token_counts.paused():
        scores = module.roles.policy_scores(*_after_the_first(module, token_ids), temperature=1.0)
    return scores.logprobs_BT[0, 1:].double().cpu()


def require_arrival(
    handed: Mapping[str, Checksum], held: Mapping[str, Checksum], *, where: str, names: set[str] | None = None
) -> None:
    """Compare what a sampler holds with what it was handed. `names` are those of the policy, where `handed` may lack.

    Raises:
        PolicyError: a weight was not handed over, is missing there, or is another one.
    """
    wanted = set(handed) if names is None else names
    wrong = sorted(name for name in wanted if name not in handed or held.get(name) != handed[name])
    if wrong:
        raise PolicyError(
            f"{where}: the weights handed over did not arrive. Found {len(wrong)} of {len(wanted)} weights that are "
            f"not the policy's, such as {wrong[0]}; wanted all of this hand-over. Nothing was sampled with them. "
            "Look into its log, and start the same command again."
        )


@torch.no_grad()
def base_logprobs(module: AgentModule, token_ids: tuple[int, ...]) -> Tensor:
    """The same of the base, with all adapters off."""
    with module.roles.token_counts.paused():
        found = module.roles.base_logprobs(*_after_the_first(module, token_ids), temperature=1.0)
    return found[0, 1:].double().cpu()


def _after_the_first(module: AgentModule, token_ids: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids, attention and the mask of all tokens but the first, each [1, T]."""
    ids = torch.tensor([token_ids], device=module.device)
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[:, 0] = False
    return ids, torch.ones_like(mask), mask


@dataclass
class _HandOver:
    """Log-probs of the probe at one hand-over."""

    sampler: Tensor
    trainer: Tensor

    @property
    def difference(self) -> Tensor:
        return self.sampler - self.trainer


@dataclass
class ArrivalCheck:
    """The second opinion: whether the sampler's log-probs of a probe move as the trainer's do.

    Sampler and trainer differ at any moment by kernels and rounding. This gap is drawn anew at each hand-over. The
    check measures how large a redrawn gap is, over all hand-overs so far. It judges only where the trainer has moved
    several times as far, since the last hand-over or since the first. Then the sampler's move is regressed on the
    trainer's. The `slope` is 1 where the weights arrived, and 0 where the sampler still has old ones. Otherwise the
    verdict is "not measurable", and the slope no number.
    """

    dtype: str
    four_bits: bool = False
    gap: float = 0.0
    moved: float = 0.0
    redrawn: float = 0.0
    slope: float = math.nan
    verdict: Verdict = "not measurable"
    _warned: bool = field(default=False, repr=False)
    _first: _HandOver | None = field(default=None, repr=False)
    _last: _HandOver | None = field(default=None, repr=False)

    def __call__(self, sampler: list[float], trainer: Tensor, *, where: str) -> None:
        """Compare the two: log-probs of the same T - 1 tokens.

        Raises:
            PolicyError: they disagree by more than arithmetic can, or the sampler did not follow the trainer.
        """
        now = _HandOver(torch.tensor(sampler, dtype=torch.float64), trainer)
        self.gap, self.moved, self.slope = float(now.difference.abs().mean()), 0.0, math.nan
        tolerance = FOUR_BITS if self.four_bits else TOLERANCE[self.dtype]
        if not self.gap <= tolerance:
            raise PolicyError(
                f"{where}: the weights handed over did not arrive, or it serves another model. On the probe its "
                f"log-probs differ from the trainer's by {self.gap:.2g} on average (at most {tolerance:g} is "
                f"arithmetic in {self.dtype}{' against 4 bits' if self.four_bits else ''}). Check that it serves the "
                "same base model and dtype, and see its log."
            )
        noise = max(self.redrawn, FLOOR[self.dtype])
        for before in (self._last, self._first):
            if before is None or not math.isnan(self.slope):
                continue
            move, answer = now.trainer - before.trainer, now.sampler - before.sampler
            if before is self._last:
                self.moved = _rms(move)
            if _rms(move) >= MEASURABLE * noise:
                self.slope = float((answer * move).sum() / move.square().sum())
        self.verdict = "not measurable" if math.isnan(self.slope) else "arrived"
        if self.slope < LEAST_FOLLOWED:
            raise PolicyError(
                f"{where}: the weights handed over did not arrive. The sampler's log-probs of the probe followed "
                f"{self.slope:.0%} of the trainer's change, which is {MEASURABLE:g} times the gap between the two "
                "or more. Check that it serves the weights it was handed, and see its log."
            )
        if self.four_bits and not self._warned:
            self._warned = True
            log.warning(
                "%s: samples from the base in %s, and the trainer from 4 bits. On the probe they differ by %.2g nats "
                "per token; take off_policy.importance decoupled, or the engine in_process.",
                where,
                self.dtype,
                self.gap,
            )
        # A gap drawn twice differs by sqrt(2) times its own size: all there is to go by at the first hand-over.
        drawn = 2**0.5 * _rms(now.difference) if self._last is None else _rms(now.difference - self._last.difference)
        self.redrawn = max(self.redrawn, drawn)
        self._first, self._last = self._first or now, now

    @property
    def is_new(self) -> bool:
        """Whether nothing was compared yet."""
        return self._last is None

    def compare_base(self, sampler: list[float], reference: Tensor) -> None:
        """Begin with the base: the sampler's log-probs of it, and the trainer's with its adapters off.

        The gap between these cannot hide a missing adapter. So a sampler that ignores adapters shows at the first
        hand-over of a trained policy, as after a resumption.
        """
        start = _HandOver(torch.tensor(sampler, dtype=torch.float64), reference)
        self.redrawn = max(self.redrawn, 2**0.5 * _rms(start.difference))
        self._first = self._last = start

    def metrics(self) -> dict[str, float]:
        """Metrics to be logged; `sampler/arrived` is left out where it is not measurable."""
        measured = self.verdict == "arrived"
        return {
            "sampler/probe_gap": self.gap,
            "sampler/probe_moved": self.moved,
            "sampler/measurable": float(measured),
            **({"sampler/arrived": self.slope} if measured else {}),
        }


def _rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt())
