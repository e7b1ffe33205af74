"""`medagent preference`: the policy learns to prefer the right one of two rollouts.

Tokens, masks, adapters, passes and the export are those of reinforcement learning. Only the loss differs.

Shapes: P pairs, B = 2P rollouts, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jsonargparse import lazy_instance  # type: ignore[attr-defined]
from torch import Tensor

from medagent.training.execution import Execution
from medagent.training.experience import Experience
from medagent.training.lora import LoraSettings
from medagent.training.module import AgentModule
from medagent.training.preference.losses import TDPO2, PairTerms, PreferenceLoss
from medagent.training.preference.scores import PairScores, pair_scores
from medagent.training.settings import as_config


class PreferenceModule(AgentModule):
    """The policy alone, taught by pairs; the reference is what it started as.

    The loss is the mean of `preference_loss` over the pairs of an optimizer step.
    """

    whole_groups = True

    def __init__(
        self,
        base_model: str = "starter",
        dtype: str = "auto",
        policy_lora: LoraSettings = LoraSettings(),
        policy_lr: float = 1e-4,
        lr_decay_iterations: int | None = None,
        weight_decay: float = 0.0,
        preference_loss: PreferenceLoss = lazy_instance(TDPO2),
        policy_max_grad_norm: float = 1.0,
        temperature: float = 1.0,
        execution: Execution = Execution(),
    ) -> None:
        super().__init__(
            base_model,
            dtype,
            policy_lora,
            critic_lora=None,
            policy_lr=policy_lr,
            lr_decay_iterations=lr_decay_iterations,
            weight_decay=weight_decay,
            policy_max_grad_norm=policy_max_grad_norm,
            temperature=temperature,
            execution=execution,
        )
        self.preference_loss = preference_loss
        self.save_hyperparameters(as_config({"preference_loss": preference_loss}))

    def loss_terms(self, batch: Experience) -> list[Callable[[Experience], Tensor]]:
        """See `AgentModule.loss_terms`: that of the pairs alone."""
        return [self._preference_loss]

    def on_train_epoch_end(self) -> None:
        """Log besides how many pairs are trained on, and how many are held out."""
        super().on_train_epoch_end()
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        self.log_dict({"preference/pairs": float(len(data.items)), "preference/held_out": float(len(data.held_out))})

    def pair_terms(self, batch: Experience) -> tuple[PairTerms, PairScores]:
        """The terms of a micro-batch's pairs, in the order of their right rollouts, and what they are sums of."""
        scores = pair_scores(
            self.shared_base,
            self.execution,
            batch.token_ids_BT,
            batch.attention_BT,
            batch.mask_BT,
            temperature=self.temperature,
            vocabulary=self.preference_loss.reads_vocabulary,
        )
        sides_B = (batch.advantages_BT * batch.mask_BT).sum(dim=1)
        chosen_P, rejected_P = ((sides_B * sign > 0).nonzero()[:, 0] for sign in (1, -1))
        chosen_P, rejected_P = (rows_P[batch.groups_B[rows_P].argsort()] for rows_P in (chosen_P, rejected_P))
        assert torch.equal(batch.groups_B[chosen_P], batch.groups_B[rejected_P]), "a pair was divided"
        logratio_B = (scores.logprobs_BT - scores.reference_logprobs_BT).sum(dim=1)
        kl_B = scores.kl_BT.sum(dim=1)
        terms = PairTerms(logratio_B[chosen_P], logratio_B[rejected_P], kl_B[chosen_P], kl_B[rejected_P])
        return terms, scores

    def _preference_loss(self, batch: Experience) -> Tensor:
        terms, scores = self.pair_terms(batch)
        self.finite_steps.note_rows(batch, scores.logprobs_BT)
        loss_P = self.preference_loss(terms)
        self.add_to_sums({**pair_metrics(self.preference_loss, terms), "tokens": torch.tensor(float(len(loss_P)))})
        # A pass without pairs, which a sharded base may ask for, has a gradient of 0.
        return batch.loss_weights_BT.amax() * loss_P.sum() + 0.0 * scores.logprobs_BT.sum()


@torch.no_grad()
def pair_metrics(loss: PreferenceLoss, terms: PairTerms) -> dict[str, Tensor]:
    """Sums over pairs of what is logged; the trainer divides them by the step's pairs."""
    margins_P = loss.margins(terms)
    kls = {"chosen_kl": terms.chosen_kl_P, "rejected_kl": terms.rejected_kl_P} if loss.reads_vocabulary else {}
    found = {
        "loss": loss(terms),
        "accuracy": (margins_P > 0).float(),
        "margin": margins_P,
        "chosen_logratio": terms.chosen_logratio_P,
        "rejected_logratio": terms.rejected_logratio_P,
        **kls,
    }
    return {f"preference/{name}": values_P.double().sum() for name, values_P in found.items()}
