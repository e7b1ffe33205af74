"""Two checks of a weight sync. Neither lets an engine sample with old weights unnoticed.

The first compares checksums of the weights that were sent and of those that the engine holds, so rounding has no part
in it. The second compares log-probs of a probe, as the engine and as the trainer compute them.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from medagent.engines.base import PolicyWeights
from medagent.errors import PolicyError
from medagent.models.checksums import Checksum, checksum, combined, place

log = logging.getLogger(__name__)

# The largest mean |difference| of log-probs between two correct implementations.
TOLERANCE = {"float32": 1e-2, "bfloat16": 0.5, "float16": 0.25}
FLOOR = {"float32": 1e-5, "bfloat16": 2e-3, "float16": 5e-4}  # root mean square below which a change is rounding
# The tolerance if only the trainer's base is in 4 bits. The starter, whose 128 dimensions lose most, measured 0.75.
FOUR_BITS = 1.5
MEASURABLE = 4.0  # a change is judged if it is this many times the redrawn gap
LEAST_FOLLOWED = 0.5


def require_synced(
    sent: Mapping[str, Checksum], held: Mapping[str, Checksum], *, where: str, names: set[str] | None = None
) -> None:
    """Compare the weights that an engine holds with those sent to it. `names` are all that should have been sent.

    Raises:
        PolicyError: a weight was not sent, is missing in the engine, or differs there.
    """
    wanted = set(sent) if names is None else names
    wrong = sorted(name for name in wanted if name not in sent or held.get(name) != sent[name])
    if wrong:
        raise PolicyError(
            f"{where}: the weight sync failed. Found {len(wrong)} of {len(wanted)} weights that are not the policy's, "
            f"such as {wrong[0]}; wanted all of this sync. Nothing was sampled with them. Look into its log, and start "
            "the same command again."
        )


def save_adapter(weights: PolicyWeights, folder: Path) -> None:
    """Write the policy's adapter into `folder`, and read it again.

    Raises:
        PolicyError: the file does not hold the present weights.
    """
    weights.write_adapter(folder)
    held = {
        name.removeprefix("base_model.model.").removesuffix(".weight"): checksum(weight)
        for name, weight in load_file(folder / "adapter_model.safetensors").items()
    }
    sent = {name.removesuffix(".weight").rpartition(".")[0]: checksum(each) for name, each in weights.adapter().items()}
    require_synced(sent, held, where=f"adapter file in {folder}")  # by names in the base, such as `...q_proj.lora_A`


@torch.no_grad()
def served_adapter(weights: PolicyWeights) -> dict[str, Checksum]:
    """The checksums of the policy's adapter as vLLM keeps it: in the base's dtype, and B times its scaling."""
    kind: torch.dtype = getattr(torch, weights.dtype)
    found: dict[str, list[Checksum]] = {}
    for name, weight in weights.adapter().items():
        matrix = "lora_A" if ".lora_A." in name else "lora_B"
        cast = weight.to("cpu", kind)
        if matrix == "lora_B":
            cast = cast * weights.lora_scaling
        found.setdefault(place(name.partition(f".{matrix}.")[0], matrix), []).append(checksum(cast))
    return {where: combined(each) for where, each in found.items()}


@dataclass
class _Probe:
    """Log-probs of the probe at one sync."""

    engine: Tensor
    trainer: Tensor

    @property
    def difference(self) -> Tensor:
        return self.engine - self.trainer


@dataclass
class WeightSyncCheck:
    """The second check: whether the engine's log-probs of a probe move as the trainer's do.

    Engine and trainer always differ by kernels and rounding. This gap is drawn anew at each sync. The check measures
    how large a redrawn gap is, over all syncs so far. It judges only if the trainer has moved several times as far,
    since the last sync or since the first. Then the engine's move is regressed on the trainer's. The `slope` is 1 if
    the weights arrived, and 0 if the engine still has old ones. It is nan if it is not measurable.
    """

    dtype: str
    four_bits: bool = False
    gap: float = 0.0
    moved: float = 0.0
    redrawn: float = 0.0
    slope: float = math.nan
    _warned: bool = field(default=False, repr=False)
    _first: _Probe | None = field(default=None, repr=False)
    _last: _Probe | None = field(default=None, repr=False)

    def __call__(self, engine: list[float], trainer: Tensor, *, where: str) -> None:
        """Compare the log-probs of the same T - 1 tokens in both.

        Raises:
            PolicyError: they disagree by more than arithmetic can, or the engine did not follow the trainer.
        """
        now = _Probe(torch.tensor(engine, dtype=torch.float64), trainer)
        self.gap, self.moved, self.slope = float(now.difference.abs().mean()), 0.0, math.nan
        tolerance = FOUR_BITS if self.four_bits else TOLERANCE[self.dtype]
        if not self.gap <= tolerance:
            raise PolicyError(
                f"{where}: the weight sync failed, or it serves another model. On the probe its "
                f"log-probs differ from the trainer's by {self.gap:.2g} on average (at most {tolerance:g} is "
                f"arithmetic in {self.dtype}{' against 4 bits' if self.four_bits else ''}). Check that it serves the "
                "same base model and dtype, and see its log."
            )
        noise = max(self.redrawn, FLOOR[self.dtype])
        for before in (self._last, self._first):
            if before is None or self.measurable:
                continue
            move, answer = now.trainer - before.trainer, now.engine - before.engine
            if before is self._last:
                self.moved = _rms(move)
            if _rms(move) >= MEASURABLE * noise:
                self.slope = float((answer * move).sum() / move.square().sum())
        if self.slope < LEAST_FOLLOWED:
            raise PolicyError(
                f"{where}: the weight sync failed. Its log-probs of the probe followed {self.slope:.0%} of the "
                f"trainer's change, which is at least {MEASURABLE:g} times the gap between the two. Check that it "
                "serves the weights that it was sent, and see its log."
            )
        if self.four_bits and not self._warned:
            self._warned = True
            log.warning(
                "%s: samples from the base in %s, and the trainer from 4 bits. On the probe they differ by %.2g nats "
                "per token. Take off_policy.importance decoupled, or the engine in_process.",
                where,
                self.dtype,
                self.gap,
            )
        # A gap drawn twice differs by sqrt(2) times its own size. The first sync has nothing else to go by.
        drawn = 2**0.5 * _rms(now.difference) if self._last is None else _rms(now.difference - self._last.difference)
        self.redrawn = max(self.redrawn, drawn)
        self._first, self._last = self._first or now, now

    @property
    def measurable(self) -> bool:
        """Whether the last sync could be judged."""
        return not math.isnan(self.slope)

    @property
    def is_new(self) -> bool:
        """Whether nothing has been compared yet."""
        return self._last is None

    def compare_base(self, engine: list[float], reference: Tensor) -> None:
        """Begin with log-probs under the base: the engine's, and the trainer's with its adapters off.

        The gap between these cannot hide a missing adapter. So an engine that ignores adapters is caught at the first
        sync of a trained policy, as after a resumption.
        """
        start = _Probe(torch.tensor(engine, dtype=torch.float64), reference)
        self.redrawn = max(self.redrawn, 2**0.5 * _rms(start.difference))
        self._first = self._last = start

    def metrics(self) -> dict[str, float]:
        """Metrics to be logged; without `sampler/arrived` if it is not measurable."""
        return {
            "sampler/probe_gap": self.gap,
            "sampler/probe_moved": self.moved,
            "sampler/measurable": float(self.measurable),
            **({"sampler/arrived": self.slope} if self.measurable else {}),
        }


def _rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt())
