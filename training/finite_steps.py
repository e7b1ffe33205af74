"""Optimizer steps whose loss or gradient is not finite: skipped and counted; the third in a row ends the run."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from medagent.errors import PolicyError
from medagent.training.experience import Experience

MOST_IN_A_ROW = 3
MOST_NAMES = 8

OverRanks = Callable[[Tensor], Tensor]


class FiniteSteps:
    """Judges each optimizer step before it changes anything; `largest` takes a tensor's maximum over ranks.

    `skipped`: the present step is left out and has no gradient, so AdamW changes nothing. `in_a_row`: skipped steps up
    to the present one. `in_iteration`: those of the present iteration.
    """

    def __init__(self) -> None:
        self.skipped = False
        self.in_a_row = self.in_iteration = 0
        self._losses: list[Tensor] = []
        self._seen: list[tuple[Experience, Tensor | None]] = []

    def begin(self) -> None:
        """A step begins: forget the last one."""
        if not self.skipped:
            self.in_a_row = 0
        self.skipped = False
        self._losses, self._seen = [], []

    def note_loss(self, loss: Tensor) -> None:
        """A part's loss."""
        self._losses.append(loss.detach())

    def note_rows(self, part: Experience, read_BT: Tensor | None = None) -> None:
        """A part, and what the model read of it, by which a step's rollouts are named if it is skipped."""
        self._seen.append((part, None if read_BT is None else read_BT.detach()))

    def judge(self, optimizer: Optimizer, largest: OverRanks) -> None:
        """Skip the step where a loss or a gradient of any rank is not finite; PolicyError for the third in a row."""
        if self.skipped:
            return
        found = {"the loss": float(torch.stack(self._losses).sum()) if self._losses else 0.0}
        for group in optimizer.param_groups:
            gradients = [each.grad for each in group["params"] if each.grad is not None]
            if gradients:
                found[f"the norm of the {_name(group)}'s gradient"] = float(get_total_norm(gradients))
        bad = [f"{name} is {value}" for name, value in found.items() if not math.isfinite(value)]
        if float(largest(torch.tensor(float(bool(bad))))):
            self.skip(optimizer, " and ".join(bad) or "another rank's is not finite", largest)

    def check_weights(self, optimizer: Optimizer, largest: OverRanks) -> None:
        """Raise PolicyError if a weight of any rank is not finite: a step cannot be taken back."""
        bad = [
            _name(group)
            for group in optimizer.param_groups
            if not bool(torch.stack([each.detach().isfinite().all() for each in group["params"]]).all())
        ]
        if float(largest(torch.tensor(float(len(bad))))):
            whose = f"the {' and the '.join(bad)}'s" if bad else "another rank's"
            rates = ", ".join(f"{_name(group)} {group['lr']}" for group in optimizer.param_groups)
            raise PolicyError(
                f"update: {whose} weights are not finite after an optimizer step whose gradient was (learning rates: "
                f"{rates}). They are not exported, and no checkpoint holds them. Lower model.policy_lr, "
                "model.critic_lr or model.weight_decay, and start the run again: it goes on from its last iteration."
            )

    def skip(self, optimizer: Optimizer, why: str, largest: OverRanks) -> None:
        """Leave the present step out on all ranks, which must call it; PolicyError for the third in a row."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        self.skipped = True
        self.in_a_row, self.in_iteration = self.in_a_row + 1, self.in_iteration + 1
        who = self._rollouts(largest)
        if self.in_a_row >= MOST_IN_A_ROW:
            raise PolicyError(
                f"update: {self.in_a_row} optimizer steps in a row were not finite. In the last {why}. No weight was "
                f"changed by them. Its rollouts: {who}. Lower model.policy_lr and model.critic_lr, look at what "
                "data.reward gives these rollouts, or set model.dtype to float32."
            )
        warnings.warn(
            f"update: an optimizer step is skipped, as {why}. No weight is changed by it. Its rollouts: {who}. "
            f"After {MOST_IN_A_ROW} in a row the run ends; this is number {self.in_a_row}.",
            stacklevel=2,
        )

    def _rollouts(self, largest: OverRanks) -> str:
        """The rollouts that hold a number that is not finite; all of the step where none does."""
        rows = [(part, _not_finite(part, read_BT)) for part, read_BT in self._seen]
        named = [name for part, bad_B in rows for name in _names(part, bad_B)]
        if not float(largest(torch.tensor(float(bool(named))))):
            named = [name for part, _ in rows for name in _names(part, [True] * len(part.mask_BT))]
        return in_words(list(dict.fromkeys(named))) if named else "another rank names them"

    def state(self) -> int:
        """The state for a checkpoint: how many steps in a row were skipped."""
        return self.in_a_row if self.skipped else 0

    def restore(self, in_a_row: int) -> None:
        """Go on from a checkpoint."""
        self.in_a_row, self.skipped = in_a_row, in_a_row > 0


def _name(group: Mapping[str, Any]) -> str:
    return str(group.get("name", "model"))  # a user's optimizer may name none


def rows_not_finite(values: Tensor) -> list[bool]:
    """[B] whether a row of [B, ...] holds a number that is not finite."""
    return [bool(each) for each in (~values.isfinite()).flatten(1).any(dim=1)]


def in_words(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _not_finite(part: Experience, read_BT: Tensor | None) -> list[bool]:
    own = [getattr(part, field.name) for field in fields(part)]
    floats = [each for each in (*own, read_BT) if isinstance(each, Tensor) and each.is_floating_point()]
    return [any(row) for row in zip(*map(rows_not_finite, floats), strict=True)]


def _names(part: Experience, chosen_B: Sequence[bool]) -> Iterator[str]:
    names = part.names or tuple(f"row {row} of a batch without names" for row in range(len(part.mask_BT)))
    return (name for name, chosen in zip(names, chosen_B, strict=True) if chosen)
