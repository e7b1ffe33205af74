"""Watches a run for collapse: reports it, stops the run, or takes it back to the last good weights.

Collapse is recognised from an iteration's metrics alone, of a run or of a record. A fall of success is an alarm by
itself. Other signs are warnings, of which several together are an alarm.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning_utilities.core.apply_func import apply_to_collection

from medagent.errors import ConfigError, require
from medagent.files import write_json
from medagent.training.callbacks.export import AgentExport
from medagent.training.data import RolloutData
from medagent.training.default_callbacks import log_at_once
from medagent.training.module import AgentModule
from medagent.training.ranks import callbacks_of, over_ranks

Action = Literal["report", "stop", "rollback"]
EVENTS_FILE = "collapse.json"
KEPT = ("rollbacks", "stopped", "events")  # of the monitor, in a checkpoint
SUCCESS, HELD_OUT = "reward/success", "validation/accuracy"
CLIPPED, ENTROPY = "policy/clip_fraction", "policy/entropy"
ANSWERS, SEARCHES = "rollout/valid_answer", "rollout/searches"
HEAVY_TAILED = {  # metric -> what it tells where it is out of bounds twice in a row
    "kl/reference": "the policy is far from its start",
    "policy/grad_norm": "a lasting spike",
    "policy/ratio_max": "a lasting spike",
}
WATCHED = (SUCCESS, CLIPPED, ENTROPY, ANSWERS, SEARCHES, *HEAVY_TAILED)
# Accuracies nearer than this are equal, and one on its bound is not below it. As shares of a number of questions they
# tie often. Rounding to the six digits of kept numbers must not decide a tie.
TIE = 1e-5


@dataclass(frozen=True)
class Thresholds:
    """When an iteration's metrics (means over its optimizer steps) are a sign of collapse.

    A fall compares the mean of the last two iterations with the best such mean. Held-out accuracy is judged where both
    were measured. With `held_out_decides` its fall is the only alarm. Alarms are then fewer and later, which suits runs
    in which a false alarm costs more than two iterations.

    KL, gradient norm and largest ratio have heavy tails, so they count only two iterations in a row. KL and gradient
    norm together count as one sign.
    """

    success_fall: float = 1 / 3  # share below the best
    learnt: float = 0.05  # rise of the best above the first iteration, without which nothing can collapse
    entropy_rise: float = 2.0  # multiple of its lowest: it falls while a policy learns
    entropy_low: float = 0.02  # share of the first iteration's
    clip_rise: float = 2.0  # multiple of the lowest clip fraction, once above `clip_floor`
    clip_floor: float = 0.08
    kl: float = 1.0  # nats per token from the reference
    spike: float = 5.0  # of gradient norm and largest ratio, as multiples of the median of `history` iterations
    history: int = 8
    invalid_rise: float = 0.2  # of the share of unreadable answers, above its lowest
    searches_fall: float = 0.5  # share of searches per question below their highest
    warnings_for_alarm: int = 3  # signs at once, without success's own
    held_out_fall: float = 0.25  # share below the best
    held_out_decides: bool = False

    def __post_init__(self) -> None:
        for name in ("success_fall", "searches_fall", "held_out_fall"):
            require(0 < getattr(self, name) < 1, f"Thresholds.{name}", getattr(self, name), "a share between 0 and 1")
        for name in ("spike", "entropy_rise", "clip_rise"):
            require(getattr(self, name) > 1, f"Thresholds.{name}", getattr(self, name), "a multiple above 1")
        for name, least in (("history", 2), ("warnings_for_alarm", 1)):
            require(getattr(self, name) >= least, f"Thresholds.{name}", getattr(self, name), f"{least} or more")


class CollapseVerdict(NamedTuple):
    """The signs by metric, in words; whether they are a collapse; whether the policy that sampled is good."""

    signs: dict[str, str]
    alarm: bool
    good: bool


@dataclass
class CollapseDetector:
    """Takes one row of metrics per iteration, in order; `state` and `restore` carry it through a checkpoint."""

    thresholds: Thresholds = Thresholds()
    first: dict[str, float] = field(default_factory=dict)
    rows: list[dict[str, float]] = field(default_factory=list)
    best: float = 0.0  # mean of two iterations: one lucky batch is not yet a best
    best_held_out: float = 0.0

    def observe(self, metrics: Mapping[str, float]) -> CollapseVerdict:
        """Judge an iteration: success from before its updates, held-out accuracy from after them."""
        row = {name: metrics[name] for name in (*WATCHED, HELD_OUT) if name in metrics}
        require(SUCCESS in row, "CollapseDetector", f"metrics without {SUCCESS}", "it, to tell collapse from progress")
        self.first = self.first or row
        self.rows.append(row)
        signs = {name: f"not a number: {name} is {value}" for name, value in row.items() if not math.isfinite(value)}
        for name, found, low, high, what in self._bounds(row):
            if found < low or found > high:
                bound = low if found < low else high
                signs.setdefault(name, f"{what}: {name} is {found:.3g} (bound {bound:.3g})")
        # A token that blows up the estimate of KL blows up the gradient's norm too: one cause, counted once.
        causes = signs.keys() - ({"policy/grad_norm"} if "kl/reference" in signs else set())
        alarm = bool(signs.keys() & {HELD_OUT, SUCCESS}) or len(causes) >= self.thresholds.warnings_for_alarm
        if self.thresholds.held_out_decides and self._mean_of_two(HELD_OUT) is not None:
            alarm = HELD_OUT in signs
        return CollapseVerdict(signs, alarm, good=not signs and row[SUCCESS] >= 0.9 * self.best)

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        return {name: copy(value) for name, value in vars(self).items() if name != "thresholds"}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up the state of a checkpoint."""
        vars(self).update({name: copy(value) for name, value in state.items()})

    def _mean_of_two(self, name: str) -> float | None:
        recent = [each[name] for each in self.rows[-2:] if name in each]
        return sum(recent) / 2 if len(recent) == 2 else None

    def _bounds(self, row: dict[str, float]) -> Iterator[tuple[str, float, float, float, str]]:
        """(metric, what was found, its lowest and highest value without a sign, what a sign means)."""
        limits, held_out, success = self.thresholds, self._mean_of_two(HELD_OUT), self._mean_of_two(SUCCESS)
        if held_out is not None:
            self.best_held_out = max(self.best_held_out, held_out)
            low = (1 - limits.held_out_fall) * self.best_held_out - TIE
            yield HELD_OUT, held_out, low, math.inf, "held-out accuracy has fallen from its best"
        self.best = max(self.best, row[SUCCESS] if success is None else success)
        if success is not None and self.best >= self.first[SUCCESS] + limits.learnt - TIE:
            low = (1 - limits.success_fall) * self.best - TIE
            yield SUCCESS, success, low, math.inf, "success has fallen from its best"
        past = {name: [each[name] for each in self.rows[:-1] if name in each] for name in row}
        if clips := past.get(CLIPPED):
            high = max(limits.clip_floor, limits.clip_rise * min(clips))
            yield CLIPPED, row[CLIPPED], -math.inf, high, "clipping drops more and more of the update"
        if entropies := past.get(ENTROPY):
            high, low = limits.entropy_rise * min(entropies), limits.entropy_low * self.first.get(ENTROPY, entropies[0])
            yield ENTROPY, row[ENTROPY], -math.inf, high, "the policy becomes random"
            yield ENTROPY, row[ENTROPY], low, math.inf, "the policy has become deterministic"
        if answers := past.get(ANSWERS):
            yield ANSWERS, row[ANSWERS], max(answers) - limits.invalid_rise, math.inf, "answers become unreadable"
        if searches := past.get(SEARCHES):
            low = (1 - limits.searches_fall) * max(searches)
            yield SEARCHES, row[SEARCHES], low, math.inf, "the agent stops searching"
        for name, what in HEAVY_TAILED.items():
            *before, last = past.get(name) or [0.0]
            if len(before) > 1:
                high = limits.kl if name == "kl/reference" else limits.spike * median(before[-limits.history :])
                if last > high:
                    yield name, row[name], -math.inf, high, what


class CollapseMonitor(Callback):
    """Judges every iteration by `Thresholds`.

    Logs `monitor/signs` and `monitor/alarm`, and writes alarms to RUN/collapse.json.

    `action` at an alarm: "report" writes it and does nothing else. "stop" puts back the last good weights, exports them
    and ends the run. "rollback" puts back weights and optimizer state, multiplies the policy's rate by `factor` and
    goes on. It does so at most `max_rollbacks` times, then it stops.

    An iteration's starting weights are good when its rollouts show no sign and succeed at 0.9 of the best or more.
    """

    def __init__(
        self,
        action: Action = "report",
        factor: float = 0.5,
        max_rollbacks: int = 3,
        thresholds: Thresholds = Thresholds(),
    ) -> None:
        require(0 < factor < 1, "CollapseMonitor.factor", factor, "a number between 0 and 1")
        self._action, self._factor, self._max_rollbacks = action, factor, max_rollbacks
        self._detector = CollapseDetector(thresholds)
        self._rollbacks, self._stopped = 0, False
        self._events: list[dict[str, Any]] = []
        self._seen = defaultdict[str, list[float]](list)  # what is watched, of each optimizer step of the iteration
        self._candidate: dict[str, Any] = {}  # weights and optimizer before the iteration

    def state_dict(self) -> dict[str, Any]:
        return {"detector": self._detector.state(), **{name: getattr(self, f"_{name}") for name in KEPT}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._detector.restore(state_dict["detector"])
        vars(self).update({f"_{name}": state_dict[name] for name in KEPT})

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take up the smaller step of a resumed run; a run that was stopped stays stopped."""
        assert isinstance(pl_module, AgentModule)
        pl_module.policy_lr_scale = self._factor**self._rollbacks
        if self._stopped:
            print("collapse monitor: this run was stopped; its agent is that of the last good iteration.", flush=True)
            trainer.should_stop = True

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse to judge one policy by the rollouts of another, and rates that it could not lower."""
        if self._action == "rollback" and is_overridden("configure_optimizers", pl_module, AgentModule):
            raise ConfigError(
                f"CollapseMonitor.action: found 'rollback' with {type(pl_module).__name__}.configure_optimizers, whose "
                "rates it does not lower. Use action: stop or report."
            )
        data = getattr(trainer, "datamodule", None)
        if self._action != "report" and isinstance(data, RolloutData) and data.off_policy.staleness:
            raise ConfigError(
                f"CollapseMonitor.action: found {self._action!r} with data.off_policy.staleness "
                f"{data.off_policy.staleness}: rollouts would judge weights from earlier iterations. Use action: "
                "report, or staleness 0."
            )

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._seen.clear()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Keep the weights that this iteration's rollouts were sampled with, before the first update."""
        if batch_idx == 0 and self._action != "report":
            weights = {name: each for name, each in pl_module.named_parameters() if each.requires_grad}
            everything = {"weights": weights, "optimizer": trainer.optimizers[0].state_dict()}
            copied = apply_to_collection(everything, torch.Tensor, lambda tensor: tensor.detach().cpu().clone())
            self._candidate = {"iteration": trainer.current_epoch + 1, **copied}

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, AgentModule)
        skipped = pl_module.finite_steps.skipped
        for name in WATCHED:
            # Lightning keeps old values: a step that is skipped, or of the critic alone, shows the last policy step's.
            if (batch.critic_only or skipped) and name.startswith(("policy/", "kl/")):
                continue
            if name in trainer.callback_metrics:
                self._seen[name].append(float(trainer.callback_metrics[name]))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if HELD_OUT in trainer.callback_metrics:
            self._seen[HELD_OUT] = [float(trainer.callback_metrics[HELD_OUT])]

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, AgentModule)
        names = sorted(self._seen)
        means = torch.tensor([sum(self._seen[name]) / len(self._seen[name]) for name in names])
        means = over_ranks(trainer, means, "mean")  # every rank must come to the same verdict
        verdict = self._detector.observe(dict(zip(names, means.tolist(), strict=True)))
        metrics = {"monitor/signs": float(len(verdict.signs)), "monitor/alarm": float(verdict.alarm)}
        log_at_once(trainer, pl_module, metrics)
        if verdict.good and self._candidate and trainer.is_global_zero:
            good = _good_path(trainer)
            good.parent.mkdir(parents=True, exist_ok=True)
            torch.save(self._candidate, good.with_suffix(".part"))
            good.with_suffix(".part").replace(good)
        if verdict.alarm:
            self._raise_alarm(trainer, pl_module, verdict)

    def _raise_alarm(self, trainer: Trainer, module: AgentModule, verdict: CollapseVerdict) -> None:
        iteration, action = trainer.current_epoch + 1, self._action
        if not _good_path(trainer).exists():
            action = "report"  # nothing good has been seen to go back to
        if action == "rollback" and self._rollbacks >= self._max_rollbacks:
            action = "stop"
        event: dict[str, Any] = {"iteration": iteration, "action": action, "signs": list(verdict.signs.values())}
        if action != "report":
            event["back_to"] = _go_back(trainer, module)
        if action == "rollback":
            self._rollbacks += 1
            module.policy_lr_scale = self._factor**self._rollbacks
            event["policy_lr_scale"] = module.policy_lr_scale
            self._detector.rows = []  # of a policy that is discarded
        if action == "stop":
            self._stopped = trainer.should_stop = True
        if callbacks_of(trainer, AgentExport) and (
            action == "stop" or (action == "rollback" and iteration == trainer.max_epochs)
        ):
            # An agent exported before this callback has the weights that are discarded.
            AgentExport.export(trainer, module)
        self._events.append(event)
        if trainer.is_global_zero:
            write_json(Path(trainer.default_root_dir) / EVENTS_FILE, self._events)
            print(_aloud(event), flush=True)


def describe_alarms(run: Path) -> str:
    """The alarms of a finished run, in words."""
    path = run / EVENTS_FILE
    events = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return " ".join(map(_aloud, events)) or "The collapse monitor saw no collapse."


def _aloud(event: dict[str, Any]) -> str:
    done = {
        "report": "the run goes on as it is",
        "stop": f"the run stops with the weights it had before iteration {event.get('back_to')}",
        "rollback": f"back to the weights before iteration {event.get('back_to')}, policy rate now "
        f"{event.get('policy_lr_scale', 1.0):.3g} of its setting",
    }
    return f"COLLAPSE at iteration {event['iteration']}: {'; '.join(event['signs'])}. {done[event['action']]}."


def _good_path(trainer: Trainer) -> Path:
    return Path(trainer.default_root_dir) / "checkpoints" / "good.pt"


def _go_back(trainer: Trainer, module: LightningModule) -> int:
    """Put back the last good weights and their optimizer; returns the iteration before which they were so."""
    good = torch.load(_good_path(trainer), map_location="cpu", weights_only=True)
    module.load_state_dict(good["weights"], strict=False)
    trainer.optimizers[0].load_state_dict(good["optimizer"])
    return int(good["iteration"])
