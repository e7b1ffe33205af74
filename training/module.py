"""The LightningModule: one optimizer step per batch, by manual optimisation (`AgentModule.training_step`)."""

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, Literal

import torch
from jsonargparse import lazy_instance  # type: ignore[attr-defined]
from lightning import Callback
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import AdamW, Optimizer

from medagent.models.base_models import base_sha256, check_base
from medagent.models.causal_lm import fastest_device, load_causal_lm, refuse_unmerged
from medagent.training.adapters import REFERENCE, SharedBase
from medagent.training.batching import pack_rows
from medagent.training.default_callbacks import (
    AutoMaxTokens,
    CountedTokens,
    LearningRates,
    WholeIterations,
    log_at_once,
)
from medagent.training.execution import Execution
from medagent.training.experience import Experience
from medagent.training.finite_steps import FiniteSteps
from medagent.training.forward import NUM_EVIDENCE_FEATURES, CriticInputs, check_packing
from medagent.training.loading import DTYPE, CheckedModule, check_dtype, resolve_dtype
from medagent.training.lora import LoraSettings
from medagent.training.objectives import (
    ClippedSurrogate,
    PolicyLoss,
    PolicyTerms,
    policy_metrics,
    reference_kl,
    teaches,
    value_loss,
)
from medagent.training.ranks import callbacks_of, over_ranks
from medagent.training.settings import INSTANTIATOR, as_config, check_module_settings, check_trainer
from medagent.training.validation import ValidationModule

KLMode = Literal["loss", "reward"]


class StepCallback(Callback):
    """A callback that takes part in optimizer steps, such as `medagent.training.callbacks.ClippingBiasCorrection`."""

    def on_policy_loss(self, module: "AgentModule", terms: PolicyTerms) -> None:
        """The policy's loss of a part of the step is made, and its backward pass is still to come."""

    def on_finite_gradient(self, module: "AgentModule", optimizer: Optimizer) -> None:
        """The gradient is whole, unclipped and, unlike in `on_before_optimizer_step`, finite. Rates hold for a step."""


class AgentModule(CheckedModule, ValidationModule):
    """Policy LoRA, critic LoRA + value head and frozen reference on one base, trained by PPO (arXiv 1707.06347).

    `policy_loss` is what the policy maximises. Without `critic_lora` there is no critic, and the advantage must need
    none. With `critic_inputs` "evidence" the critic is a small network. It reads how near a rollout has come to the
    gold answer and passages (`medagent.training.prepare`). "evidence_and_group": also how the question's other
    rollouts ended.

    `kl_mode` "loss": `kl_coef` times the k3 estimate of KL(policy || reference) is added to the loss. "reward":
    `kl_coef` times k1, the log-ratio at sampling, is taken off each action token's reward. With 0 nothing reads it.

    Over `lr_decay_iterations` both learning rates fall linearly to zero. Over `lr_warmup_iterations` the policy's rate
    rises first, as AdamW's first steps move every weight by the whole rate. Every log-prob is at `temperature`, too.
    """

    automatic_optimization = False  # a batch is an optimizer step, see `training_step`

    def __init__(
        self,
        base_model: str = "starter",
        dtype: str = "auto",
        policy_lora: LoraSettings = LoraSettings(),
        critic_lora: LoraSettings | None = LoraSettings(),
        policy_lr: float = 2e-3,
        critic_lr: float = 3e-3,
        critic_inputs: CriticInputs = "context",
        lr_decay_iterations: int | None = None,
        lr_warmup_iterations: int = 0,
        weight_decay: float = 0.0,
        policy_loss: PolicyLoss = lazy_instance(ClippedSurrogate),
        kl_coef: float = 1e-3,
        kl_mode: KLMode = "loss",
        entropy_coef: float = 0.0,
        value_clip: float | None = None,
        policy_max_grad_norm: float = 1.0,
        critic_max_grad_norm: float = 1.0,
        temperature: float = 1.0,
        execution: Execution = Execution(),
    ) -> None:
        """Loads the base at once, so that a wrong name fails before anything long starts."""
        check_module_settings(locals())
        dtype = resolve_dtype(dtype, base_model, device=fastest_device())
        super().__init__()
        objects = {"policy_lora": policy_lora, "critic_lora": critic_lora, "policy_loss": policy_loss}
        self.save_hyperparameters(ignore=[*objects, "execution"])
        # As a configuration writes them: `load_from_checkpoint` makes the objects again, and reads no pickle.
        self.save_hyperparameters(as_config({**objects, "execution": execution}) | INSTANTIATOR)
        self.base_name, self.dtype_name, self.base_sha256 = base_model, dtype, base_sha256(base_model)
        self.policy_lora, self.critic_lora = policy_lora, critic_lora
        self.policy_lr, self.critic_lr, self.weight_decay = policy_lr, critic_lr, weight_decay
        self.policy_loss, self.critic_inputs = policy_loss, critic_inputs
        self.lr_decay_iterations, self.lr_warmup_iterations = lr_decay_iterations, lr_warmup_iterations
        self.kl_coef, self.kl_mode, self.entropy_coef = kl_coef, kl_mode, entropy_coef
        self.value_clip, self.temperature = value_clip, temperature
        self.max_grad_norms = {"policy": policy_max_grad_norm, "critic": critic_max_grad_norm}
        self.policy_lr_scale = 1.0  # below 1 after a rollback
        self.execution = execution
        refuse_unmerged(base_model)
        base, self.tokenizer = load_causal_lm(
            base_model, dtype=dtype, attention=execution.attention, four_bit=execution.quantise == "nf4"
        )
        base.requires_grad_(False)
        self.shared_base = SharedBase(
            base,
            policy=policy_lora,
            critic=critic_lora,
            num_evidence_features=NUM_EVIDENCE_FEATURES[critic_inputs],
            execution=execution,
        )
        if execution.packed or execution.shared_prefixes:
            check_packing(self.shared_base.base, execution)
        self.finite_steps = FiniteSteps()
        self._step_callbacks: list[StepCallback] = []
        self._sums: dict[str, float] = {}
        self._ratio_max = 0.0
        self._teaches: list[bool] = []  # see `teaches`, of each part of a step
        self._began = self._ended = 0.0

    def configure_callbacks(self) -> list[Callback]:
        """The callbacks of every run, after the configuration's and before those that write checkpoints.

        Lightning asks for them first, so wrong settings of the trainer end here.
        """
        check_trainer(self.trainer)
        rates = LearningRates()
        rates.own = not is_overridden("configure_optimizers", self, AgentModule)
        return [rates, CountedTokens(), WholeIterations(), AutoMaxTokens()]

    def on_fit_start(self) -> None:
        self._step_callbacks = callbacks_of(self.trainer, StepCallback)

    @property
    def has_critic(self) -> bool:
        """Whether there is a critic."""
        return bool(self.shared_base.critic_parameters())

    @property
    def pad_id(self) -> int:
        """The padding token."""
        return int(self.tokenizer.pad_token_id)

    def on_save_checkpoint(self, checkpoint: dict[str, object]) -> None:
        """Keep what is trained, and a reference of its own; the base is loaded by name."""
        trained = {name for name, p in self.named_parameters() if p.requires_grad or f".{REFERENCE}." in name}
        state: dict[str, Tensor] = checkpoint["state_dict"]  # type: ignore[assignment]
        checkpoint["state_dict"] = {name: value for name, value in state.items() if name in trained}
        checkpoint["steps_skipped_in_a_row"] = self.finite_steps.state()
        checkpoint |= {DTYPE: self.dtype_name, "base_sha256": self.base_sha256}

    def on_load_checkpoint(self, checkpoint: dict[str, object]) -> None:
        """Complete the state with the base's own weights, so that loading stays strict."""
        check_base(self.base_name, str(checkpoint.get("base_sha256", "")), "the run's checkpoint")
        check_dtype(self.dtype_name, checkpoint)
        state: dict[str, Tensor] = checkpoint["state_dict"]  # type: ignore[assignment]
        checkpoint["state_dict"] = {**self.state_dict(), **state}
        self.finite_steps.restore(int(checkpoint.get("steps_skipped_in_a_row", 0)))  # type: ignore[call-overload]

    def training_step(self, batch: Experience, batch_idx: int) -> None:
        """Make one optimizer step, whose gradient is the sum over its micro-batches.

        All losses are sums, weighted for the whole step. A micro-batch over the limit of tokens is split, and one graph
        exists at a time.
        """
        optimizer = self.optimizers()
        assert isinstance(optimizer, LightningOptimizer)
        optimizer.zero_grad()
        self._sums, self._ratio_max, self._teaches = {}, 0.0, []
        self.finite_steps.begin()
        losses = self.loss_terms(batch)
        *first, (last_loss, last_part) = [(loss_of, part) for part in self._parts(batch) for loss_of in losses]
        ddp = strategy if isinstance(strategy := self.trainer.strategy, DDPStrategy) else None
        with ddp.block_backward_sync() if ddp else nullcontext():
            for loss_of, part in first:
                self._backward(loss_of(part.to(self.device)))
        loss = last_loss(last_part.to(self.device))
        self._backward(self._reaching_every_parameter(loss) if ddp else loss)
        teaches = not self._teaches or bool(self._largest(torch.tensor(float(any(self._teaches)))))
        if batch.critic_only or not teaches:  # AdamW would make a whole step of a gradient that is rounding
            for parameter in self.shared_base.policy_parameters():
                parameter.grad = None
        rates = [group["lr"] for group in optimizer.param_groups]
        optimizer.step()  # which calls `on_before_optimizer_step` first
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate  # callbacks may scale the rate of one step
        self._log_step(batch)
        self.finite_steps.check_weights(self.trainer.optimizers[0], self._largest)
        self._ended = time.perf_counter()

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Judge the gradient after callbacks' hooks of this name, let others correct it, and clip it."""
        self.finite_steps.judge(optimizer, self._largest)
        for callback in self._step_callbacks:
            if not self.finite_steps.skipped:
                callback.on_finite_gradient(self, optimizer)
        self.configure_gradient_clipping(optimizer)

    def transfer_batch_to_device(self, batch: Experience, device: torch.device, dataloader_idx: int) -> Experience:
        """Leave an optimizer step where it is: its micro-batches are moved one at a time."""
        return batch

    def _parts(self, batch: Experience) -> list[Experience]:
        """The rows of each pass of a step: its micro-batches, split at the limit of tokens."""
        parts = []
        for micro_batch in batch.split():
            groups = pack_rows(self.execution, micro_batch.token_ids_BT, micro_batch.attention_BT)
            parts += [micro_batch.rows(rows) for rows in groups] if len(groups) > 1 else [micro_batch]
        return parts

    def _backward(self, loss: Tensor) -> None:
        self.finite_steps.note_loss(loss)
        self.manual_backward(loss)

    def _reaching_every_parameter(self, loss: Tensor) -> Tensor:
        """The loss with a gradient of zero for other parameters: DDP's last pass waits for every one."""
        return loss + 0.0 * sum(parameter.sum() for parameter in self.parameters() if parameter.requires_grad)

    def loss_terms(self, batch: Experience) -> list[Callable[[Experience], Tensor]]:
        """The losses of a micro-batch, each a function of a part of it."""
        critic: list[Callable[[Experience], Tensor]] = [self._critic_loss] if self.has_critic else []
        return critic if batch.critic_only else [*critic, self._policy_loss]

    def add_to_sums(self, sums: Mapping[str, Tensor]) -> None:
        """Add a micro-batch's figures to those of its optimizer step, as Lightning would log the last one's alone."""
        for name, value in sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(value)

    def _critic_loss(self, batch: Experience) -> Tensor:
        value_mask_BT = batch.value_weights_BT > 0
        values_BT = self.shared_base.values(
            batch.token_ids_BT, batch.attention_BT, value_mask_BT, batch.evidence_at(value_mask_BT)
        )
        loss = value_loss(
            values_BT,
            old_values_BT=batch.values_BT,
            returns_BT=batch.returns_BT,
            loss_weights_BT=batch.value_weights_BT,
            clip=self.value_clip,
        )
        self.finite_steps.note_rows(batch, values_BT)
        self.add_to_sums({"critic/loss": loss.detach()})
        return loss

    def _policy_loss(self, batch: Experience) -> Tensor:
        scores = self.shared_base.policy_scores(
            batch.token_ids_BT,
            batch.attention_BT,
            batch.mask_BT,
            temperature=self.temperature,
            entropy_gradient=self.entropy_coef != 0,
        )
        self.finite_steps.note_rows(batch, scores.logprobs_BT)
        result = self.policy_loss(scores.logprobs_BT, batch)
        self._ratio_max = max(self._ratio_max, float(torch.where(batch.mask_BT, result.ratios_BT, 0.0).max()))
        self.add_to_sums(policy_metrics(result, scores, batch))
        loss = -result.objective - self.entropy_coef * (batch.loss_weights_BT * scores.entropy_BT).sum()
        if self.kl_coef:  # else the reference was not read
            kl_BT = reference_kl(scores.logprobs_BT, batch.reference_logprobs_BT, batch.mask_BT)
            self.add_to_sums({"kl/reference": kl_BT.detach().sum()})
            if self.kl_mode == "loss":
                loss = loss + self.kl_coef * (batch.loss_weights_BT * kl_BT).sum()
        eps = torch.finfo(getattr(torch, self.dtype_name)).eps
        self._teaches.append(teaches(scores, batch, kl_coef=self.kl_coef, entropy_coef=self.entropy_coef, eps=eps))
        terms = PolicyTerms(result, scores.logprobs_BT, scores.collision_BT, scores.entropy_BT, batch)
        for callback in self._step_callbacks:
            callback.on_policy_loss(self, terms)
        return loss

    def _log_step(self, batch: Experience) -> None:
        """Log the means over the action tokens of all ranks; a skipped step has none."""
        names = sorted(self._sums)
        sums = torch.tensor([self._sums[name] for name in names], dtype=torch.float64)
        found = dict(zip(names, over_ranks(self.trainer, sums, "sum").tolist(), strict=True))
        tokens = max(1.0, found.pop("tokens", 0.0))
        # A rank's weights carry the factor world_size, which DDP's mean of the gradients takes off again.
        shares = dict.fromkeys(("policy/loss", "critic/loss"), float(self.trainer.world_size))
        means = {name: found[name] / shares.get(name, tokens) for name in self._sums if name != "tokens"}
        if "policy/loss" in found:
            means["policy/ratio_max"] = float(self._largest(torch.tensor(self._ratio_max, dtype=torch.float64)))
        self.log_dict({**({} if self.finite_steps.skipped else means), **batch.metrics})

    def _largest(self, tensor: Tensor) -> Tensor:
        """The largest over ranks, entry by entry."""
        return over_ranks(self.trainer, tensor, "max")

    def on_train_epoch_start(self) -> None:
        self._began = time.perf_counter()
        self.finite_steps.in_iteration = 0

    def on_train_epoch_end(self) -> None:
        """Log the iteration's time without its rollouts, and how many steps were skipped."""
        rollout_s = float(self.trainer.callback_metrics.get("time/rollout", 0.0))
        update_s = torch.tensor(self._ended - self._began - rollout_s, dtype=torch.float64)
        self.log("time/update", float(self._largest(update_s)))
        log_at_once(self.trainer, self, {"update/skipped": float(self.finite_steps.in_iteration)})

    def configure_optimizers(self) -> Optimizer:
        """One AdamW with the groups `policy` and, where there is one, `critic`, each at its own rate."""
        return AdamW(self.parameter_groups(), weight_decay=self.weight_decay)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """What is trained as an optimizer's groups, for a `configure_optimizers` of your own too."""
        rates = {"policy": self.policy_lr, "critic": self.critic_lr}
        return [{"params": each, "lr": rates[name], "name": name} for name, each in self.shared_base.trained().items()]

    def configure_gradient_clipping(
        self, optimizer: Optimizer, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip policy and critic apart, so that neither starves the other; log both norms before clipping."""
        for name, parameters in self.shared_base.trained().items():  # whatever the optimizer's groups
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            if gradients:  # there are none in a skipped step, nor of the policy in a step of the critic alone
                norm = get_total_norm(gradients)
                clip_grads_with_norm_(parameters, self.max_grad_norms[name], norm)
                self.log(f"{name}/grad_norm", norm)
