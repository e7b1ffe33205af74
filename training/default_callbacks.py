"""The callbacks of every run: whole iterations, learning rates, counted tokens, and a limit that fits the memory."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from medagent.errors import ConfigError
from medagent.training.execution import TokenLimit
from medagent.training.experience import Experience
from medagent.training.forward import TokenCounts
from medagent.training.loading import say
from medagent.training.ranks import over_ranks
from medagent.types import Rollout

WHOLE = "iteration_is_whole"  # the key in a checkpoint


class WholeIterations(Callback):
    """Ends a run that is asked to stop inside an iteration, and marks checkpoints made between iterations.

    It runs after all other callbacks but those that write checkpoints. An iteration is whole once they have done
    their part, such as the export.
    """

    def __init__(self) -> None:
        self._whole = False

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._whole = False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: Experience, batch_idx: int
    ) -> None:
        """Raise ConfigError if the trainer is to stop here: checkpoint and agent would be of part of an iteration."""
        if trainer.should_stop and batch_idx + 1 < trainer.num_training_batches:
            raise ConfigError(
                f"trainer.should_stop: found true in iteration {trainer.current_epoch} after step {batch_idx + 1} of "
                f"{trainer.num_training_batches}, wanted it at an iteration's end: no agent is made of part of one. "
                "Set it in the callback's on_train_epoch_end, or use CollapseMonitor."
            )

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._whole = True

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, object]) -> None:
        checkpoint[WHOLE] = self._whole


def why_not_to_go_on(checkpoint: Mapping[str, Any]) -> str | None:
    """Why a run must not go on from a checkpoint, None if it may."""
    if "state_dict" in checkpoint and not {"loops", "optimizer_states"} <= checkpoint.keys():
        return "it holds weights alone"
    return None if checkpoint.get(WHOLE, True) else "it was made inside an iteration"


BACKWARD_COST = 2  # a backward pass costs about two forward passes (arXiv 2001.08361, section 2.1)


def budget_units(forward: float, backward: float) -> float:
    """Compute in units of one token read forward."""
    return forward + BACKWARD_COST * backward


def tokens_to_sample(rollouts: Sequence[Rollout]) -> int:
    """Tokens before each rollout's last sampled one; a question's samples share those they have in common."""
    read: defaultdict[str, list[list[int]]] = defaultdict(list)
    for rollout in rollouts:
        sampled = [place for place, action in enumerate(rollout.loss_mask) if action]
        read[rollout.question.id].append(rollout.token_ids[: sampled[-1]] if sampled else [])
    return sum(map(_distinct, read.values()))


def _distinct(texts: list[list[int]]) -> int:
    """Tokens of a tree of texts."""
    texts = sorted(texts)
    shared = (
        next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
        for one, other in pairwise(texts)
    )
    return sum(map(len, texts)) - sum(shared)


def log_at_once(trainer: Trainer, module: LightningModule, metrics: Mapping[str, float]) -> None:
    """Log an iteration's figures now: Lightning writes them after the checkpoint, and a kill would lose them.

    Their step is the last one that was made, as in what Lightning logs at an epoch's end.
    """
    module.log_dict(metrics, logger=False, rank_zero_only=True)
    for logger in trainer.loggers:
        logger.log_metrics({**metrics, "epoch": trainer.current_epoch}, step=max(0, trainer.global_step - 1))


class CountedTokens(Callback):
    """Logs the tokens read since the run began, over all ranks and all of its starts. It is in every run."""

    def __init__(self) -> None:
        self._totals = [0, 0]  # forward, backward
        self._goes_on = False

    def state_dict(self) -> dict[str, Any]:
        return {"totals": list(self._totals)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint; what was read to set the run up is in its totals."""
        self._totals, self._goes_on = list(state_dict["totals"]), True

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Forget what setting up has read where the run goes on."""
        if self._goes_on:
            pl_module.shared_base.token_counts.take()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        self._totals = self.so_far(trainer, pl_module)
        pl_module.shared_base.token_counts.take()
        forward, backward = map(float, self._totals)
        log_at_once(trainer, pl_module, {"compute/forward_tokens": forward, "compute/backward_tokens": backward})

    def so_far(self, trainer: Trainer, pl_module: Any) -> list[int]:
        """Tokens forward and backward up to this moment. All ranks must call it."""
        counts: TokenCounts = pl_module.shared_base.token_counts
        own = torch.tensor([counts.forward, counts.backward], dtype=torch.float64)
        added = over_ranks(trainer, own, "sum").tolist()
        return [total + int(new) for total, new in zip(self._totals, added, strict=True)]


class AutoMaxTokens(Callback):
    """Sets and prints `execution.max_tokens` where it is null: the smallest over ranks, kept in checkpoints."""

    def __init__(self) -> None:
        self._kept: int | None = None
        self._settles = False

    def state_dict(self) -> dict[str, Any]:
        """The number; nothing where the configuration sets it."""
        return {"max_tokens": self._kept} if self._settles else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._kept = state_dict.get("max_tokens")

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        data = trainer.datamodule  # type: ignore[attr-defined]
        self._settles = pl_module.execution.max_tokens is None and hasattr(data, "token_limit")
        if not self._settles:
            return
        if self._kept is not None:
            found = TokenLimit(self._kept, "the run began with it")
        else:
            found = self._over_ranks(trainer, data.token_limit())
            self._kept = found.max_tokens
        pl_module.execution = replace(pl_module.execution, max_tokens=found.max_tokens)
        number = f"{found.max_tokens:,}" if found.max_tokens else "any number"
        say(f"model.execution.max_tokens: {number}, as {found.reason}.")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._settles and self._kept:
            pl_module.log("update/max_tokens", float(self._kept))

    @staticmethod
    def _over_ranks(trainer: Trainer, own: TokenLimit) -> TokenLimit:
        mine = torch.tensor(float(own.max_tokens) if own.max_tokens else math.inf, dtype=torch.float64)
        least = -float(over_ranks(trainer, -mine, "max"))
        return own if least == float(mine) else TokenLimit(int(least), "another rank has less memory")


class LearningRates(Callback):
    """Sets the rates of the module's own optimizer before each iteration, or steps the schedulers of a user's."""

    own = True  # whether `configure_optimizers` is the module's own

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self.own:
            check_optimizers(trainer, pl_module)
        self._set(trainer, pl_module, trainer.current_epoch)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: Experience, batch_idx: int
    ) -> None:
        _step_schedulers(trainer, pl_module, "step", batch_idx + 1)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        _step_schedulers(trainer, pl_module, "epoch", trainer.current_epoch + 1)
        self._set(trainer, pl_module, trainer.current_epoch + 1)

    def _set(self, trainer: Trainer, pl_module: LightningModule, iteration: int) -> None:
        if self.own:
            rates = rates_of(pl_module, iteration)
            for group in trainer.optimizers[0].param_groups:
                group["lr"] = rates[group["name"]]


def rates_of(module: Any, iteration: int) -> dict[str, float]:
    """Learning rates by the iteration's number alone, so that a resumed or prolonged run has the same."""
    decayed = 0.0 if module.lr_decay_iterations is None else iteration / module.lr_decay_iterations
    risen = min(1.0, (iteration + 1) / (module.lr_warmup_iterations + 1))
    rates = {"policy": module.policy_lr * module.policy_lr_scale * risen, "critic": module.critic_lr}
    return {name: rate * max(0.0, 1 - decayed) for name, rate in rates.items()}


def _step_schedulers(trainer: Trainer, module: LightningModule, interval: str, done: int) -> None:
    for config in trainer.lr_scheduler_configs:
        if config.interval == interval and done % config.frequency == 0:
            module.lr_scheduler_step(config.scheduler, None)


def check_optimizers(trainer: Trainer, module: LightningModule) -> None:
    """Raise ConfigError unless a user's `configure_optimizers` gave what `training_step` and the settings allow."""
    said = f"{type(module).__name__}.configure_optimizers"
    found = [type(each).__name__ for each in trainer.optimizers]
    if len(found) != 1 or found[0] in ("_MockOptimizer", "LBFGS"):
        raise ConfigError(
            f"{said}: found {' and '.join(found) or 'none'}, wanted one optimizer that steps without a closure. Give "
            "it the policy and the critic as two groups, see AgentModule.parameter_groups."
        )
    if any(isinstance(each.scheduler, ReduceLROnPlateau) for each in trainer.lr_scheduler_configs):
        raise ConfigError(f"{said}: found ReduceLROnPlateau, wanted a scheduler that is stepped without a metric.")
    for name in ("lr_decay_iterations", "lr_warmup_iterations"):
        if given := getattr(module, name):
            raise ConfigError(
                f"model.{name}: found {given} beside {said}, wanted none: rates are set there. Give it a scheduler."
            )
