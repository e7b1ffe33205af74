"""The algorithm's variants: the level of importance weights, and clipping-bias correction (arXiv 2511.20718).

The correction (S-PPO, ST-PPO) scales the policy's update by a function of ||C||. C is the gradient that clipping
dropped, summed over micro-batches and ranks before its norm is taken.
"""

import math
from functools import partial
from typing import Any, Literal

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor
from torch.optim import Optimizer

from medagent.errors import ConfigError, require
from medagent.training.experience import Experience
from medagent.training.module import AgentModule, StepCallback
from medagent.training.objectives import PolicyLossResult, PolicyTerms, RatioLevel, logit_space_squares, ratio_segments
from medagent.training.ranks import callbacks_of, over_ranks


class _LevelSampling(Callback):
    """Writes the segments of one level."""

    level: RatioLevel

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse two levels at once."""
        levels = [type(each).__name__ for each in callbacks_of(trainer, _LevelSampling)]
        require(len(levels) < 2, "trainer.callbacks", " and ".join(levels), "one of them: a ratio has one level")

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        assert isinstance(batch, Experience)
        batch.ratio_segments_BT = ratio_segments(self.level, batch.mask_BT, batch.turn_ids_BT)


class TurnLevelSampling(_LevelSampling):
    """One importance weight per turn (Turn-PPO, ST-PPO): the geometric mean over its action tokens.

    Source: arXiv 2511.20718.
    """

    level: RatioLevel = "turn"


class SequenceLevelSampling(_LevelSampling):
    """One importance weight per rollout (GSPO, arXiv 2507.18071)."""

    level: RatioLevel = "sequence"


def level_of(trainer: Trainer) -> RatioLevel:
    """The level that a run's callbacks set; without one it is the token."""
    return next((each.level for each in callbacks_of(trainer, _LevelSampling)), "token")


Normaliser = Literal["paper", "triggered", "relative", "constant"]
Place = Literal["gradient", "step", "rollouts", "rollouts_and_step"]
Space = Literal["parameters", "logits"]
RATIO = 1.0  # of ||C|| to ||g|| at which "relative" halves the update, where no other is given


class ClippingBiasCorrection(StepCallback):
    """Turns PPO into S-PPO, and Turn-PPO into ST-PPO. It needs a `model.policy_loss` that clips.

    `normaliser` makes the scale from ||g||, the norm of the surrogate's gradient, and ||C||:

    - "paper": 1 / max(||C||, `floor`).
    - "triggered": 1 / max(1, ||C|| / `threshold`). The threshold is a norm, which depends on model and space and has no
      default.
    - "relative": ||g|| / (||g|| + ||C|| / `threshold`), 1 where both are 0. The threshold is the ratio of ||C|| to
      ||g|| at which the update is halved, 1 where none is given.
    - "constant": `constant`, which never looks at C, as a control. It is one scale, or one per optimizer step of an
      iteration, of which the last serves all that follow.

    `applied_to` "gradient": the scale is on the gradient, before gradient clipping. Adam takes a steady scale away
    again. "step": it is on the policy group's learning rate for this one optimizer step. "rollouts": each rollout's
    part of the loss, surrogate and KL, has a scale from its own g and C. Adam takes their mean away again.
    "rollouts_and_step": the step is scaled by that mean as well.

    `space` "parameters": exact norms, by a second backward pass. "logits": a closed form without one. Rollouts are told
    apart in "logits" alone.

    `decay`: the share of a reduction (1 - scale) that is carried over to the next step, if that step's own reduction is
    smaller. The first step on fresh or decoupled weights clips nothing, so only the decay can shorten it. The paper has
    none.
    """

    def __init__(
        self,
        normaliser: Normaliser = "relative",
        applied_to: Place = "step",
        space: Space = "logits",
        floor: float = 1e-2,
        threshold: float | None = None,
        constant: float | list[float] = 0.5,
        decay: float = 0.0,
    ) -> None:
        constants = constant if isinstance(constant, list) else [constant]
        if normaliser == "paper" and applied_to == "step":
            raise ConfigError(
                "ClippingBiasCorrection: found normaliser paper with applied_to step. A learning rate of lr / ||C|| "
                "explodes where C is small. Set applied_to: gradient, or normaliser: relative."
            )
        if applied_to.startswith("rollouts") and (normaliser != "relative" or space != "logits"):
            raise ConfigError(
                f"ClippingBiasCorrection: applied_to {applied_to} found with normaliser {normaliser} in space "
                f"{space}. A rollout's own scale is relative, in logits. Set those, or applied_to: step."
            )
        if normaliser != "relative" and (threshold is not None) != (normaliser == "triggered"):
            raise ConfigError(
                f"ClippingBiasCorrection: threshold {threshold} found with normaliser {normaliser}. Give triggered a "
                "norm (policy/clip_bias_norm of a run says which), relative a ratio or none, and the others none."
            )
        threshold = RATIO if threshold is None else threshold
        if floor <= 0 or threshold <= 0 or not constants or not all(0 < each <= 1 for each in constants):
            raise ConfigError(
                f"ClippingBiasCorrection: found floor {floor}, threshold {threshold}, constant {constant}; wanted "
                "positive ones, constants in (0, 1]."
            )
        carries = normaliser in ("relative", "triggered") and applied_to in ("gradient", "step")
        if not 0 <= decay < (1 if carries else math.ulp(0.0)):
            raise ConfigError(
                f"ClippingBiasCorrection: decay {decay} found with normaliser {normaliser} applied to {applied_to}. "
                "Wanted 0, or a number below 1 with relative or triggered on gradient or step. Set decay: 0."
            )
        self._normaliser, self._floor, self._threshold, self._constant = normaliser, floor, threshold, constant
        self._constants, self._decay = constants, decay
        self._step = 0  # of the policy, within the iteration
        self._applied_to, self._space = applied_to, space
        self._bias: list[Tensor] = []  # C so far in this step, parameter space
        self._gradient: list[Tensor] = []
        self._squares = torch.zeros(2, dtype=torch.float64)  # (||g||^2, ||C||^2) so far, logit space
        self._rollouts = torch.zeros(2, dtype=torch.float64)  # (sum of their own scales, their number) so far
        self._measured = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        number = len(callbacks_of(trainer, ClippingBiasCorrection))
        require(number < 2, "trainer.callbacks", f"{number} ClippingBiasCorrection", "one; st_ppo.yaml brings its own")
        assert isinstance(pl_module, AgentModule)
        if not pl_module.policy_loss.clips:
            raise ConfigError(
                f"ClippingBiasCorrection: found model.policy_loss {type(pl_module.policy_loss).__name__}, which clips "
                "nothing. Take the callback out, or take a loss that clips (training.objectives.ClippedSurrogate)."
            )
        policy = trainer.optimizers[0].param_groups[0]
        if policy.get("name") != "policy":
            raise ConfigError(
                f"ClippingBiasCorrection: found an optimizer of {type(pl_module).__name__} whose first group is not "
                "named policy, wanted AgentModule.parameter_groups: it scales that group's step."
            )
        if self._applied_to.endswith("step") and policy["weight_decay"] != 0:
            raise ConfigError(
                f"ClippingBiasCorrection on the step: found model.weight_decay {policy['weight_decay']}, wanted 0, or "
                "the decay would be scaled too. Set it to 0, or applied_to: gradient."
            )

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._step = 0

    def on_policy_loss(self, module: AgentModule, terms: PolicyTerms) -> None:
        """Add this part's share of C and of the surrogate's gradient."""
        self._measured = True
        if self._space == "logits":
            self._in_logits(terms)
            return
        parameters = module.shared_base.policy_parameters()
        for total in (self._bias, self._gradient):  # of full size on every rank, also where nothing is clipped
            if not total:
                total.extend(torch.zeros_like(parameter) for parameter in parameters)
        if bool(terms.result.outside_BT.any()):
            self._add(self._bias, _dropped(terms.result), parameters)
        if self._normaliser == "relative":
            self._add(self._gradient, terms.result.objective, parameters)

    def _in_logits(self, terms: PolicyTerms) -> None:
        """Add this part's squared norms; rollouts with scales of their own multiply their gradient."""
        probability_BT = terms.logprobs_BT.detach().exp()
        squares = []
        for scalar in (terms.result.objective, _dropped(terms.result)):
            (coefficients_BT,) = torch.autograd.grad(scalar, terms.logprobs_BT, retain_graph=True)
            squares.append(logit_space_squares(coefficients_BT, probability_BT, terms.collision_BT))
        self._squares += torch.stack(squares).sum(dim=1).double().cpu()
        if self._applied_to.startswith("rollouts"):
            gradient_B, bias_B = squares[0].sqrt(), squares[1].sqrt() / self._threshold
            some_B = gradient_B + bias_B > 0  # the others say nothing about the step
            scale_B = torch.where(some_B, gradient_B / (gradient_B + bias_B), 1.0)
            terms.logprobs_BT.register_hook(lambda gradient_BT: gradient_BT * scale_B[:, None])
            self._rollouts += torch.tensor([float(scale_B[some_B].sum()), float(some_B.sum())], dtype=torch.float64)

    @staticmethod
    def _add(total: list[Tensor], scalar: Tensor, parameters: list[torch.nn.Parameter]) -> None:
        gradients = torch.autograd.grad(scalar, parameters, retain_graph=True)
        for sum_, gradient in zip(total, gradients, strict=True):
            sum_ += gradient

    def on_finite_gradient(self, module: AgentModule, optimizer: Optimizer) -> None:
        """Take the norms, log them, and scale the gradient or this step's learning rate."""
        if not self._measured:
            return  # a step of the critic alone
        trainer = module.trainer
        gradient_norm, bias_norm = self._norms(trainer)
        if not (math.isfinite(gradient_norm) and math.isfinite(bias_norm)):
            why = f"the clipping bias has norm {bias_norm} beside a surrogate's gradient of norm {gradient_norm}"
            module.finite_steps.skip(optimizer, why, partial(over_ranks, trainer, op="max"))
            return
        scale = self.scale(gradient_norm, bias_norm, self._step)
        if self._applied_to.startswith("rollouts"):
            total, count = over_ranks(trainer, self._rollouts, "sum").tolist()
            scale = total / count if count else 1.0
        policy = optimizer.param_groups[0]
        if self._decay:
            # The optimizer keeps the last cut, so that a resumption and a rollback put it back with the moments.
            policy["clipping_bias_cut"] = max(1 - scale, self._decay * policy.get("clipping_bias_cut", 0.0))
            scale = 1 - policy["clipping_bias_cut"]
        module.log_dict({"policy/clip_bias_norm": bias_norm, "policy/clip_bias_scale": scale})
        if self._applied_to.endswith("step"):
            policy["lr"] *= scale
        for parameter in policy["params"]:
            if parameter.grad is not None and self._applied_to == "gradient":
                parameter.grad.mul_(scale)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> None:
        self._step += self._measured
        self._measured = False
        self._bias, self._gradient = [], []
        self._squares, self._rollouts = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)

    def scale(self, gradient_norm: float, bias_norm: float, step: int) -> float:
        """The scale, from the two norms; `step` is the optimizer step within the iteration, 0 the first."""
        if self._normaliser == "constant":
            return self._constants[min(step, len(self._constants) - 1)]
        if self._normaliser == "paper":
            return 1 / max(bias_norm, self._floor)
        if self._normaliser == "triggered":
            return 1 / max(1.0, bias_norm / self._threshold)
        both = gradient_norm + bias_norm / self._threshold
        return gradient_norm / both if both > 0 else 1.0

    def _norms(self, trainer: Trainer) -> tuple[float, float]:
        """(||g||, ||C||) over all micro-batches and ranks."""
        if self._space == "logits":
            # A rank's weights carry the factor world_size that DDP's mean divides by, its squares the factor squared.
            total = over_ranks(trainer, self._squares, "sum") / trainer.world_size**2
            return math.sqrt(total[0]), math.sqrt(total[1])
        norms = []
        for parts in (self._gradient, self._bias):
            flat = torch.cat([part.flatten() for part in parts])
            norms.append(float(over_ranks(trainer, flat, "mean").norm()))
        return norms[0], norms[1]


def _dropped(result: PolicyLossResult) -> Tensor:
    """The scalar whose gradient is C."""
    if result.clipped is None:
        raise ConfigError(
            "model.policy_loss: found a loss whose `clips` is true and whose result has no `clipped`, which "
            "ClippingBiasCorrection differentiates. Return the sum of the dropped terms, or set `clips` to false."
        )
    return result.clipped
