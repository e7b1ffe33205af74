"""Watches a run for collapse: reports it, stops the run, or takes it back to the last good weights."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden

from medagent.errors import ConfigError
from medagent.files import write_whole
from medagent.training.callbacks.collapse_signs import HELD_OUT, WATCHED, CollapseDetector, CollapseVerdict, Thresholds
from medagent.training.callbacks.export import AgentExport
from medagent.training.data import RolloutData
from medagent.training.default_callbacks import log_at_once
from medagent.training.module import AgentModule
from medagent.training.sharding import over_ranks

Action = Literal["report", "stop", "rollback"]
EVENTS_FILE = "collapse.json"


class CollapseMonitor(Callback):
    """Judges every iteration by `medagent.training.callbacks.collapse_signs`.

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
        if not 0 < factor < 1:
            raise ConfigError(f"CollapseMonitor.factor: found {factor}, wanted a number between 0 and 1.")
        self._action, self._factor, self._max_rollbacks = action, factor, max_rollbacks
        self._detector = CollapseDetector(thresholds)
        self._rollbacks = 0
        self._stopped = False
        self._events: list[dict[str, Any]] = []
        self._sums: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._candidate: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        """The state that a resumed run needs."""
        own = {"rollbacks": self._rollbacks, "stopped": self._stopped, "events": self._events}
        return {"detector": self._detector.state(), **own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._detector.restore(state_dict["detector"])
        self._rollbacks, self._stopped = state_dict["rollbacks"], state_dict["stopped"]
        self._events = list(state_dict["events"])

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
        """Begin an iteration."""
        self._sums.clear()
        self._counts.clear()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Keep the weights that this iteration's rollouts were sampled with, before the first update."""
        if batch_idx == 0 and self._action != "report":
            weights = {name: each for name, each in pl_module.named_parameters() if each.requires_grad}
            everything = {"weights": weights, "optimizer": trainer.optimizers[0].state_dict()}
            self._candidate = {"iteration": trainer.current_epoch + 1, **_copied(everything)}

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Sum what is watched over the iteration's optimizer steps."""
        assert isinstance(pl_module, AgentModule)
        skipped = pl_module.finite_steps.skipped
        for name in WATCHED:
            # Lightning keeps old values: a step that is skipped, or of the critic alone, shows the last policy step's.
            if (batch.critic_only or skipped) and name.startswith(("policy/", "kl/")):
                continue
            if name in trainer.callback_metrics:
                self._sums[name] += float(trainer.callback_metrics[name])  # type: ignore[assignment]
                self._counts[name] += 1

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take this iteration's accuracy on held-out questions."""
        if HELD_OUT in trainer.callback_metrics:
            self._sums[HELD_OUT] = float(trainer.callback_metrics[HELD_OUT])  # type: ignore[assignment]
            self._counts[HELD_OUT] = 1

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Judge the iteration and act."""
        assert isinstance(pl_module, AgentModule)
        found = {name: self._sums[name] / self._counts[name] for name in self._counts}
        names = sorted(found)
        means = torch.tensor([found[name] for name in names])
        means = over_ranks(trainer, means, "mean")  # every rank must come to the same verdict
        verdict = self._detector.observe(dict(zip(names, means.tolist(), strict=True)))
        metrics = {"monitor/signs": float(len(verdict.signs)), "monitor/alarm": float(verdict.alarm)}
        log_at_once(trainer, pl_module, metrics)
        if verdict.good and self._candidate and trainer.is_global_zero:
            path = _good_path(trainer)
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(self._candidate, path.with_suffix(".part"))
            os.replace(path.with_suffix(".part"), path)
        if verdict.alarm:
            self._raise_alarm(trainer, pl_module, verdict)

    def _raise_alarm(self, trainer: Trainer, module: AgentModule, verdict: CollapseVerdict) -> None:
        iteration = trainer.current_epoch + 1
        action: str = self._action
        good = _good_path(trainer)
        if action != "report" and not good.exists():
            action = "report"  # nothing good has been seen to go back to
        if action == "rollback" and self._rollbacks >= self._max_rollbacks:
            action = "stop"
        event: dict[str, Any] = {"iteration": iteration, "action": action, "signs": list(map(str, verdict.signs))}
        if action != "report":
            kept = torch.load(good, map_location="cpu", weights_only=True)
            event["back_to"] = kept["iteration"]
            _restore(trainer, module, kept)
        if action == "rollback":
            self._rollbacks += 1
            module.policy_lr_scale = self._factor**self._rollbacks
            event["policy_lr_scale"] = module.policy_lr_scale
            self._detector.forget_recent()
        if action == "stop":
            self._stopped = trainer.should_stop = True
        exports = any(isinstance(each, AgentExport) for each in trainer.callbacks)  # type: ignore[attr-defined]
        if exports and (action == "stop" or (action == "rollback" and iteration == trainer.max_epochs)):
            # An agent exported before this callback has the weights that are discarded.
            AgentExport.export(trainer, module)
        self._events.append(event)
        if trainer.is_global_zero:
            write_whole(Path(trainer.default_root_dir) / EVENTS_FILE, json.dumps(self._events, indent=2) + "\n")
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


def _copied(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return tree.detach().cpu().clone()
    if isinstance(tree, dict):
        return {name: _copied(value) for name, value in tree.items()}
    return [_copied(value) for value in tree] if isinstance(tree, list) else tree


@torch.no_grad()
def _restore(trainer: Trainer, module: LightningModule, state: dict[str, Any]) -> None:
    parameters = dict(module.named_parameters())
    for name, value in state["weights"].items():
        parameters[name].copy_(value)
    trainer.optimizers[0].load_state_dict(state["optimizer"])
