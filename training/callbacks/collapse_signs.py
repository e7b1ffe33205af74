"""Recognises collapse from an iteration's metrics alone, of a run or of a record.

A fall of success is an alarm by itself. Other signs are warnings, of which several together are an alarm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from statistics import median

from medagent.errors import ConfigError

WATCHED = (
    "reward/success",
    "policy/clip_fraction",
    "policy/ratio_max",
    "policy/grad_norm",
    "policy/entropy",
    "kl/reference",
    "rollout/valid_answer",
    "rollout/searches",
)
HELD_OUT = "validation/accuracy"
# Accuracies nearer than this are equal, and one on its bound is not below it. As shares of a number of questions they
# tie often. Rounding to the six digits of kept numbers must not decide a tie.
TIE = 1e-5


@dataclass(frozen=True)
class Thresholds:
    """When an iteration's metrics (means over its optimizer steps) are a sign of collapse.

    - `success_fall`: the mean of the last two iterations' success lies this share below the best such mean.
    - `learnt`: that best must first have risen by so much above the first iteration. Else nothing can collapse.
    - `entropy_rise`: entropy is above this multiple of its lowest. It falls while a policy learns.
    - `entropy_low`: entropy is below this share of the first iteration's.
    - `clip_rise`: clip fraction, as a multiple of its lowest, once above `clip_floor`.
    - `kl`: nats per token from the reference.
    - `spike`: gradient norm and largest ratio, as multiples of their median over the last `history` iterations.
    - `invalid_rise`: the share of unreadable answers above its lowest.
    - `searches_fall`: searches per question, as a share below their highest.
    - `warnings_for_alarm`: so many signs at once, without success's own, are an alarm.
    - `held_out_fall`: the mean of the last two held-out accuracies lies this share below the best such mean. That is an
      alarm. It is judged where both were measured.
    - `held_out_decides`: the fall of held-out accuracy is the only alarm, and the rest are signs. Alarms are then fewer
      and later. It suits runs in which a false alarm costs more than two iterations.

    KL, gradient norm and largest ratio have heavy tails, so they count only two iterations in a row. KL and gradient
    norm together count as one sign.
    """

    success_fall: float = 1 / 3
    learnt: float = 0.05
    entropy_rise: float = 2.0
    entropy_low: float = 0.02
    clip_rise: float = 2.0
    clip_floor: float = 0.08
    kl: float = 1.0
    spike: float = 5.0
    history: int = 8
    invalid_rise: float = 0.2
    searches_fall: float = 0.5
    warnings_for_alarm: int = 3
    held_out_fall: float = 0.25
    held_out_decides: bool = False

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        for name in ("success_fall", "searches_fall", "held_out_fall"):
            if not 0 < getattr(self, name) < 1:
                raise ConfigError(f"Thresholds.{name}: found {getattr(self, name)}, wanted a share between 0 and 1.")
        for name in ("spike", "entropy_rise", "clip_rise"):
            if getattr(self, name) <= 1:
                raise ConfigError(f"Thresholds.{name}: found {getattr(self, name)}, wanted a multiple above 1.")
        if self.history < 2 or self.warnings_for_alarm < 1:
            raise ConfigError("Thresholds: history must be 2 or more, warnings_for_alarm 1 or more.")


@dataclass(frozen=True)
class Sign:
    """One metric that is out of bounds: what was found, and the bound."""

    metric: str
    found: float
    bound: float
    what: str

    def __str__(self) -> str:
        """One line for a person."""
        return f"{self.what}: {self.metric} is {self.found:.3g} (bound {self.bound:.3g})"


@dataclass(frozen=True)
class CollapseVerdict:
    """The signs, whether they are a collapse, and whether the policy that sampled is as good as any before."""

    signs: tuple[Sign, ...]
    alarm: bool
    good: bool


@dataclass
class CollapseDetector:
    """Takes one row of metrics per iteration, in order; `state` and `restore` carry it through a checkpoint."""

    thresholds: Thresholds = Thresholds()
    first: dict[str, float] = field(default_factory=dict)
    rows: list[dict[str, float]] = field(default_factory=list)
    best: float = 0.0
    best_held_out: float = 0.0

    def observe(self, metrics: Mapping[str, float]) -> CollapseVerdict:
        """Judge an iteration: success from before its updates, held-out accuracy from after them."""
        row = {name: metrics[name] for name in (*WATCHED, HELD_OUT) if name in metrics}
        if "reward/success" not in row:
            raise ConfigError(
                "CollapseDetector: the metrics hold no reward/success, which tells collapse from progress."
            )
        self.first = self.first or row
        self.rows.append(row)
        recent = [each["reward/success"] for each in self.rows[-2:]]
        mean = sum(recent) / len(recent)
        # The best mean over two iterations: one lucky batch is not yet a best.
        self.best = max(self.best, mean)
        bounds, signs = self.thresholds, self._update_signs(row)
        held_out = [each[HELD_OUT] for each in self.rows[-2:] if HELD_OUT in each]
        if len(self.rows) > 1 and self.best >= self.first["reward/success"] + bounds.learnt - TIE:
            signs = _fall("success", "reward/success", mean, self.best, bounds.success_fall) + signs
        if len(held_out) == 2:
            measured = sum(held_out) / 2
            self.best_held_out = max(self.best_held_out, measured)
            signs = _fall("held-out accuracy", HELD_OUT, measured, self.best_held_out, bounds.held_out_fall) + signs
        seen = {sign.metric for sign in signs}
        # A token that blows up the estimate of KL blows up the gradient's norm too: one cause, counted once.
        causes = seen - ({"policy/grad_norm"} if "kl/reference" in seen else set())
        alarm = bool(seen & {HELD_OUT, "reward/success"}) or len(causes) >= bounds.warnings_for_alarm
        if bounds.held_out_decides and len(held_out) == 2:
            alarm = HELD_OUT in seen
        return CollapseVerdict(tuple(signs), alarm, good=not signs and row["reward/success"] >= 0.9 * self.best)

    def forget_recent(self) -> None:
        """Forget the last iterations, as a rollback discards their policy."""
        self.rows = []

    def state(self) -> dict[str, object]:
        """The state for a checkpoint."""
        return {"first": self.first, "rows": self.rows, "best": self.best, "best_held_out": self.best_held_out}

    def restore(self, state: Mapping[str, object]) -> None:
        """Take up the state of a checkpoint."""
        for name in self.state():
            setattr(self, name, copy(state[name]))

    def _update_signs(self, row: dict[str, float]) -> list[Sign]:
        bounds, before = self.thresholds, self.rows[:-1]

        def past(name: str) -> list[float]:
            return [each[name] for each in before if name in each]

        tops: list[tuple[str, float, str]] = []
        floors: list[tuple[str, float, str]] = []
        if clips := past("policy/clip_fraction"):
            bound = max(bounds.clip_floor, bounds.clip_rise * min(clips))
            tops.append(("policy/clip_fraction", bound, "clipping drops more and more of the update"))
        if entropies := past("policy/entropy"):
            tops.append(("policy/entropy", bounds.entropy_rise * min(entropies), "the policy becomes random"))
            first = self.first.get("policy/entropy", entropies[0])
            floors.append(("policy/entropy", bounds.entropy_low * first, "the policy has become deterministic"))
        if answers := past("rollout/valid_answer"):
            floors.append(("rollout/valid_answer", max(answers) - bounds.invalid_rise, "answers become unreadable"))
        if searches := past("rollout/searches"):
            floors.append(("rollout/searches", (1 - bounds.searches_fall) * max(searches), "the agent stops searching"))
        found = [Sign(n, row[n], math.inf, "not a number") for n in row if not math.isfinite(row[n])]
        found += [Sign(n, row[n], bound, what) for n, bound, what in tops if n in row and row[n] > bound]
        found += [Sign(n, row[n], bound, what) for n, bound, what in floors if n in row and row[n] < bound]
        return found + self._lasting_signs(row)

    def _lasting_signs(self, row: dict[str, float]) -> list[Sign]:
        """Signs of metrics with heavy tails: out of bounds in this iteration and the one before."""
        found = []
        for name in ("kl/reference", "policy/grad_norm", "policy/ratio_max"):
            values = [each[name] for each in self.rows if name in each]
            if name not in row or len(values) < 4:
                continue
            usual = median(values[-self.thresholds.history - 2 : -2])
            kl = name == "kl/reference"
            bound = self.thresholds.kl if kl else self.thresholds.spike * usual
            if min(values[-2:]) > bound:
                what = "the policy is far from its start" if kl else "a lasting spike"
                found.append(Sign(name, row[name], bound, what))
        return found


def _fall(name: str, metric: str, mean: float, best: float, share: float) -> list[Sign]:
    """A sign where a mean of two iterations lies `share` below the best."""
    bound = (1 - share) * best
    return [Sign(metric, mean, bound, f"{name} has fallen from its best")] if mean < bound - TIE else []
