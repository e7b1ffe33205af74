"""Policy, critic and reference on ONE copy of the base weights: LoRA adapters, and the base with adapters off."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import torch
from peft import PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from medagent.errors import ConfigError
from medagent.models.causal_lm import hidden_size, project
from medagent.models.fused_lora import fuse_lora
from medagent.models.plain_lora import MergeLoss, check_layers
from medagent.training.execution import Execution, checkpoint_layers, keep_evaluating
from medagent.training.forward import (
    SelectedHiddenStates,
    TokenCounts,
    TokenScores,
    chosen_scores,
    evidence_network,
    frozen_head,
    selected_hidden_states,
)
from medagent.training.lora import LoraSettings, start_from
from medagent.training.prefixes import share_prefixes

POLICY, CRITIC, REFERENCE = "policy", "critic", "reference"


class SharedBase(nn.Module):
    """One base model with a policy adapter, and a critic that is an adapter with a value head, or a network, or none.

    The critic reads V_t from the hidden state that predicts token t; values start at its bias. The network reads
    `num_evidence_features` numbers that the context does not hold (`medagent.training.prepare`).
    """

    def __init__(
        self,
        base: PreTrainedModel,
        *,
        policy: LoraSettings,
        critic: LoraSettings | None,
        num_evidence_features: int = 0,
        execution: Execution = Execution(),
    ) -> None:
        super().__init__()
        self.execution, self._active = execution, ""
        self.token_counts = TokenCounts()
        try:
            self.peft: PeftModel = get_peft_model(base, policy.config(base), adapter_name=POLICY)
        except ValueError as error:  # layers that read their weight themselves, as state-space models' do
            raise ConfigError(
                f"model.base_model: {type(base).__name__} cannot carry LoRA on its linear layers ({error}), wanted a "
                "model that can. Take a transformer, such as a Llama or a Qwen."
            ) from error
        self.value_head: nn.Linear | None = None
        if critic is not None:
            self.peft.add_adapter(CRITIC, critic.config(base))
            self.value_head = nn.Linear(hidden_size(base), 1, dtype=torch.float32)
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)
        self.evidence_head = evidence_network(num_evidence_features) if num_evidence_features else None
        check_layers(self.peft, "model.base_model", remedy="Take a model without shared layers.")
        if policy.start is not None:
            start_from(self.peft, policy.start, policy=POLICY, reference=REFERENCE)
        self._activate(POLICY, again=True)
        fuse_lora(self.peft)
        if execution.shared_prefixes:
            share_prefixes(self.base)
        if execution.gradient_checkpointing:
            checkpoint_layers(self.base, lambda: self._active, self._activate)
        self.train()

    def train(self, mode: bool = True) -> "SharedBase":
        """Keep the base and its adapters in evaluation mode: dropout makes each forward pass different."""
        super().train(mode)
        self.peft.eval()
        keep_evaluating(self.base)
        return self

    @property
    def base(self) -> PreTrainedModel:
        """The causal language model inside, adapters included."""
        return cast(PreTrainedModel, self.peft.get_base_model())

    @property
    def has_own_reference(self) -> bool:
        """Whether the reference is an adapter, and not the base alone."""
        return REFERENCE in self.peft.peft_config

    def policy_parameters(self) -> list[nn.Parameter]:
        """The policy adapter's weights."""
        return [p for name, p in self.peft.named_parameters() if f".{POLICY}." in name]

    def critic_parameters(self) -> list[nn.Parameter]:
        """The weights of the critic's adapter and head, or of the network that reads the evidence."""
        if self.value_head is None:
            return [] if self.evidence_head is None else list(self.evidence_head.parameters())
        adapter = [p for name, p in self.peft.named_parameters() if f".{CRITIC}." in name]
        return [*adapter, *self.value_head.parameters()]

    def trained(self) -> dict[str, list[nn.Parameter]]:
        """What is trained, by whose it is: `policy` and, where there is one, `critic`."""
        parts = {"policy": self.policy_parameters(), "critic": self.critic_parameters()}
        return {name: parameters for name, parameters in parts.items() if parameters}

    def _activate(self, adapter: str, *, again: bool = False) -> None:
        """Switch the adapter, unless it is active and not `again`. Peft freezes the others, which still train."""
        if not again and adapter == self._active:
            return
        self._active = adapter
        self.peft.set_adapter(adapter)
        if adapter == REFERENCE:
            self.peft.set_requires_grad(REFERENCE, False)
        for parameter in (*self.policy_parameters(), *self.critic_parameters()):
            parameter.requires_grad_(True)

    def policy_scores(
        self,
        token_ids_BT: Tensor,
        attention_BT: Tensor,
        mask_BT: Tensor,
        *,
        temperature: float,
        entropy_gradient: bool = False,
    ) -> TokenScores:
        """Scores of the action tokens, at the sampling temperature; a gradient of the entropy costs more."""
        self._activate(POLICY)
        found = self.hidden_states_at(token_ids_BT, attention_BT, mask_BT)
        head = frozen_head(self.base)
        if head is not None and not entropy_gradient:
            rows = self.execution.logits_rows
            scores = chosen_scores(head, found.states_UH, found.tokens_U, temperature=temperature, rows=rows)
            return TokenScores(*map(found.placed, scores))

        def score(hidden_RH: Tensor, tokens_R: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            logprobs_RV = torch.log_softmax(project(self.base, hidden_RH) / temperature, dim=-1)
            chosen_R = logprobs_RV.gather(1, tokens_R[:, None])[:, 0]
            with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
                probabilities_RV = logprobs_RV.exp()
                # p log p is 0 at p = 0, where the log-prob may be -inf.
                entropy_R = -(probabilities_RV * logprobs_RV.clamp_min(torch.finfo(logprobs_RV.dtype).min)).sum(-1)
            return chosen_R, probabilities_RV.detach().square().sum(-1), entropy_R

        return TokenScores(*(found.placed(values_U) for values_U in self._by_rows(score, found)))

    @torch.no_grad()
    def greedy_scores(
        self, token_ids_BT: Tensor, attention_BT: Tensor, mask_BT: Tensor, *, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """[B, T] log-probs of the action tokens under the policy, and whether it would write them greedily."""
        self._activate(POLICY)
        found = self.hidden_states_at(token_ids_BT, attention_BT, mask_BT)

        def score(hidden_RH: Tensor, tokens_R: Tensor) -> tuple[Tensor, Tensor]:
            logits_RV = project(self.base, hidden_RH) / temperature
            return -cross_entropy(logits_RV, tokens_R, reduction="none"), logits_RV.argmax(dim=-1) == tokens_R

        chosen_U, likeliest_U = self._by_rows(score, found)
        return found.placed(chosen_U), found.placed(likeliest_U)

    def _by_rows(
        self, score: Callable[[Tensor, Tensor], tuple[Tensor, ...]], found: SelectedHiddenStates
    ) -> list[Tensor]:
        """`score` of all rows; many are scored in parts, whose logits the backward pass computes again."""
        rows = self.execution.logits_rows
        if len(found.tokens_U) <= rows:
            return list(score(found.states_UH, found.tokens_U))
        parts = [
            checkpoint(score, hidden_RH, tokens_R, use_reentrant=False)
            if torch.is_grad_enabled()
            else score(hidden_RH, tokens_R)
            for hidden_RH, tokens_R in zip(found.states_UH.split(rows), found.tokens_U.split(rows), strict=True)
        ]
        return [torch.cat(column) for column in zip(*parts, strict=True)]

    @torch.no_grad()
    def reference_logprobs(
        self, token_ids_BT: Tensor, attention_BT: Tensor, mask_BT: Tensor, *, temperature: float
    ) -> Tensor:
        """[B, T] log-probs under what the policy started as, the base or `LoraSettings.start`, as it was sampled."""
        if not self.has_own_reference:
            return self.base_logprobs(token_ids_BT, attention_BT, mask_BT, temperature=temperature)
        self._activate(REFERENCE)
        try:
            return self._logprobs(token_ids_BT, attention_BT, mask_BT, temperature)
        finally:
            self._activate(POLICY)

    @torch.no_grad()
    def base_logprobs(
        self, token_ids_BT: Tensor, attention_BT: Tensor, mask_BT: Tensor, *, temperature: float
    ) -> Tensor:
        """[B, T] log-probs under the frozen base, all adapters off, at the sampling temperature."""
        try:
            with self.peft.disable_adapter():
                return self._logprobs(token_ids_BT, attention_BT, mask_BT, temperature)
        finally:
            self._activate(POLICY, again=True)

    def _logprobs(self, token_ids_BT: Tensor, attention_BT: Tensor, mask_BT: Tensor, temperature: float) -> Tensor:
        found = self.hidden_states_at(token_ids_BT, attention_BT, mask_BT)

        def score(hidden_RH: Tensor, tokens_R: Tensor) -> tuple[Tensor]:
            return (-cross_entropy(project(self.base, hidden_RH) / temperature, tokens_R, reduction="none"),)

        return found.placed(*self._by_rows(score, found))

    def values(
        self, token_ids_BT: Tensor, attention_BT: Tensor, mask_BT: Tensor, evidence_AF: Tensor | None = None
    ) -> Tensor:
        """[B, T] V before each token of the mask, 0 elsewhere; `evidence_AF` has a row per such token."""
        if self.evidence_head is not None:
            assert evidence_AF is not None, "this critic sees the evidence"
            values_A = self.evidence_head(evidence_AF)[:, 0]
            return torch.zeros(mask_BT.shape, device=values_A.device).masked_scatter(mask_BT, values_A)
        assert self.value_head is not None, "this base has no critic"
        self._activate(CRITIC)
        found = self.hidden_states_at(token_ids_BT, attention_BT, mask_BT)
        return found.placed(self.value_head(found.states_UH.float())[:, 0])

    @torch.no_grad()
    def start_values_at(self, value: float) -> None:
        """Set the last layer's bias, so that an untrained critic predicts `value` everywhere."""
        last = self.value_head if self.evidence_head is None else self.evidence_head[-1]
        assert isinstance(last, nn.Linear), "this base has no critic"
        last.bias.fill_(value)

    def hidden_states_at(self, token_ids_BT: Tensor, attention_BT: Tensor, mask_BT: Tensor) -> SelectedHiddenStates:
        """The states that predict the marked tokens, under the active adapter; see `selected_hidden_states`."""
        found = selected_hidden_states(self.base, self.execution, token_ids_BT, attention_BT, mask_BT)
        self.token_counts.read(found.num_read, found.states_UH)
        return found

    def adapted_weights(self) -> dict[str, Tensor]:
        """Name in the plain base -> weight or bias, of every layer that the policy adapter changes; no copies."""
        layers = [(name, base) for name, _, base in self._adapted_layers()]
        biases = {f"{name}.bias": base.bias for name, base in layers if base.bias is not None}
        return {f"{name}.weight": base.weight for name, base in layers} | biases

    @torch.no_grad()
    def merged_policy(self, loss: MergeLoss | None = None) -> Iterator[tuple[str, Tensor]]:
        """(name, W + delta W) of `adapted_weights`, rounded once; `loss` counts that."""
        counted = MergeLoss() if loss is None else loss
        for name, layer, base in self._adapted_layers():
            delta = layer.get_delta_weight(POLICY)  # type: ignore[attr-defined]
            yield f"{name}.weight", counted.merge(base.weight, delta)
            if base.bias is not None:
                yield f"{name}.bias", base.bias

    def adapter_weights(self) -> dict[str, Tensor]:
        """Name in the base with the adapter beside it -> the policy's LoRA matrix; no copies."""
        return {
            f"{name}.{kind}.{POLICY}.weight": getattr(layer, kind)[POLICY].weight.detach()
            for name, layer, _ in self._adapted_layers()
            for kind in ("lora_A", "lora_B")
        }

    def sampling_twin(self) -> PreTrainedModel:
        """A second model on the SAME base weights, which are frozen, with the policy's matrices beside them."""
        trained = {id(parameter) for parameter in (*self.policy_parameters(), *self.critic_parameters())}
        shared = {id(parameter): parameter for parameter in self.peft.parameters() if id(parameter) not in trained}
        twin: PeftModel = copy.deepcopy(self.peft, shared)
        for name in set(twin.peft_config) - {POLICY}:
            twin.delete_adapter(name)
        twin.set_adapter(POLICY)
        return cast(PreTrainedModel, twin.get_base_model())

    def save_policy(self, folder: Path) -> None:
        """Write the policy's adapter as peft does (safetensors and its configuration), into `folder` itself."""
        self.peft.save_pretrained(str(folder), selected_adapters=[POLICY])
        for path in (folder / POLICY).iterdir():  # peft gives a named adapter a folder of its own
            path.rename(folder / path.name)
        (folder / POLICY).rmdir()

    def _adapted_layers(self) -> Iterator[tuple[str, LoraLayer, nn.Linear]]:
        for name, module in self.base.named_modules():
            if isinstance(module, LoraLayer) and POLICY in module.lora_A:
                yield name, module, cast(nn.Linear, module.get_base_layer())
