"""Preference losses as pure functions of a pair's sums over action tokens.

Sources: DPO, arXiv 2305.18290, eq. 7; TDPO1 and TDPO2, arXiv 2404.11999.

Shapes: P pairs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import logsigmoid

from medagent.errors import ConfigError


@dataclass(frozen=True)
class PairTerms:
    """The inputs of a loss, each [P] and a sum over the action tokens of one rollout of each pair, in nats."""

    chosen_logratio_P: Tensor  # log pi - log pi_ref of the right rollouts, with gradient
    rejected_logratio_P: Tensor
    chosen_kl_P: Tensor  # KL(pi_ref || pi) over the vocabulary, with gradient; 0 where the loss does not read it
    rejected_kl_P: Tensor


class PreferenceLoss(ABC):
    """How pairs become a loss: `model.preference_loss` names a subclass.

    The loss of a pair is -log sigmoid(margin). `reads_vocabulary`: whether the margin needs `chosen_kl_P` and
    `rejected_kl_P`.
    """

    reads_vocabulary: ClassVar[bool]

    @abstractmethod
    def margins(self, terms: PairTerms) -> Tensor:
        """[P] how much more the policy prefers the right rollout than the reference does, with gradient."""

    def __call__(self, terms: PairTerms) -> Tensor:
        """[P] the loss of each pair."""
        return -logsigmoid(self.margins(terms))


class DPO(PreferenceLoss):
    """Direct preference optimization (arXiv 2305.18290, eq. 7): beta (log-ratio of the right - of the wrong)."""

    reads_vocabulary = False

    def __init__(self, beta: float = 0.1) -> None:
        self._beta = positive("DPO.beta", beta)

    def margins(self, terms: PairTerms) -> Tensor:
        return self._beta * (terms.chosen_logratio_P - terms.rejected_logratio_P)


class TDPO1(PreferenceLoss):
    """Token-level DPO (arXiv 2404.11999): DPO's margin less the difference of the sequential KLs."""

    reads_vocabulary = True

    def __init__(self, beta: float = 0.1) -> None:
        self._beta = positive("TDPO1.beta", beta)

    def margins(self, terms: PairTerms) -> Tensor:
        """See `PreferenceLoss.margins`; both KLs carry a gradient."""
        logratio_P = terms.chosen_logratio_P - terms.rejected_logratio_P
        return self._beta * (logratio_P - (terms.rejected_kl_P - terms.chosen_kl_P))


class TDPO2(PreferenceLoss):
    """The second form (arXiv 2404.11999): the KLs weigh alpha, and that of the right rollout has no gradient.

    With alpha 0 it is DPO.
    """

    reads_vocabulary = True

    def __init__(self, beta: float = 0.1, alpha: float = 0.5) -> None:
        self._beta, self._alpha = positive("TDPO2.beta", beta), alpha
        if not (math.isfinite(alpha) and alpha >= 0):
            raise ConfigError(f"TDPO2.alpha: found {alpha}, wanted a finite number, 0 or more.")

    def margins(self, terms: PairTerms) -> Tensor:
        logratio_P = terms.chosen_logratio_P - terms.rejected_logratio_P
        return self._beta * (logratio_P - self._alpha * (terms.rejected_kl_P - terms.chosen_kl_P.detach()))


def positive(name: str, value: float) -> float:
    """The value; ConfigError unless it is finite and above 0."""
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{name}: found {value}, wanted a finite number above 0.")
    return value
