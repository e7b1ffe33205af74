"""How many tokens a run's models have read: forward, and backward apart. What only measures does not count.

A token that rows share as a prefix, and that is read once, counts once. Padding does not count. A pass of gradient
checkpointing that computes a layer again does not count either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from medagent.training.ranks import over_ranks
from medagent.types import Rollout

BACKWARD_COST = 2  # a backward pass costs about two forward passes (arXiv 2001.08361, section 2.1)


def budget_units(forward: float, backward: float) -> float:
    """Compute in units of one token read forward.

    >>> budget_units(100, 10)
    120
    """
    return forward + BACKWARD_COST * backward


class TokenCounts:
    """Tokens read on this rank since they were last taken."""

    def __init__(self) -> None:
        self.forward = self.backward = 0
        self._counting = True

    def read(self, tokens: int, states: Tensor | None = None) -> None:
        """Count a forward pass over so many tokens, and every backward pass that reaches its `states`."""
        if not self._counting:
            return
        self.forward += tokens
        if states is not None and states.requires_grad:

            def went_back(_: Tensor) -> None:
                self.backward += tokens

            states.register_hook(went_back)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Passes in here only measure."""
        before, self._counting = self._counting, False
        try:
            yield
        finally:
            self._counting = before

    def take(self) -> tuple[int, int]:
        """(forward, backward) so far; the count begins anew."""
        found = self.forward, self.backward
        self.forward = self.backward = 0
        return found


def tokens_to_sample(rollouts: Sequence[Rollout]) -> int:
    """Tokens that a sampler reads for rollouts: all before each one's last sampled token.

    What a question's samples have in common is read once.
    """
    read: defaultdict[str, list[list[int]]] = defaultdict(list)
    for rollout in rollouts:
        sampled = [place for place, action in enumerate(rollout.loss_mask) if action]
        read[rollout.question.id].append(rollout.token_ids[: sampled[-1]] if sampled else [])
    return sum(map(_distinct, read.values()))


def _distinct(texts: list[list[int]]) -> int:
    """Tokens of a tree of texts.

    >>> _distinct([[1, 2, 3], [1, 2, 4, 5], [1, 2, 3]])
    5
    """
    texts = sorted(texts)
    shared = (
        next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
        for one, other in pairwise(texts)
    )
    return sum(map(len, texts)) - sum(shared)


class CountedTokens(Callback):
    """Logs the tokens read since the run began, over all ranks and all of its starts. It is in every run."""

    def __init__(self) -> None:
        self._totals = [0, 0]  # forward, backward
        self._goes_on = False

    def state_dict(self) -> dict[str, Any]:
        """The totals."""
        return {"totals": list(self._totals)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint; what was read to set the run up is in its totals."""
        self._totals, self._goes_on = list(state_dict["totals"]), True

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget what setting up has read where the run goes on."""
        if self._goes_on:
            _counts(pl_module).take()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the totals at once, as a kill would lose what Lightning keeps until later."""
        self._totals = self.so_far(trainer, pl_module)
        _counts(pl_module).take()
        metrics = {
            "compute/forward_tokens": float(self._totals[0]),
            "compute/backward_tokens": float(self._totals[1]),
        }
        pl_module.log_dict(metrics, logger=False, rank_zero_only=True)
        for logger in trainer.loggers:
            logger.log_metrics({**metrics, "epoch": trainer.current_epoch}, step=trainer.global_step)

    def so_far(self, trainer: Trainer, pl_module: LightningModule) -> list[int]:
        """Tokens forward and backward up to this moment. All ranks must call it."""
        counts = _counts(pl_module)
        own = torch.tensor([counts.forward, counts.backward], dtype=torch.float64)
        added = over_ranks(trainer, own, "sum").tolist()
        return [total + int(new) for total, new in zip(self._totals, added, strict=True)]

    @staticmethod
    def of(trainer: Trainer) -> CountedTokens:
        """The one of a trainer."""
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        return next(each for each in callbacks if isinstance(each, CountedTokens))


def _counts(module: LightningModule) -> TokenCounts:
    counts = module.roles.token_counts  # type: ignore[union-attr]
    assert isinstance(counts, TokenCounts)
    return counts
