"""The engines by the names that configurations use, and the trained module's weights as engines read them."""

import copy
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from medagent.engines.base import Engine, EngineSetup, PolicyWeights
from medagent.engines.in_process import InProcessEngine
from medagent.engines.servers import ServersEngine
from medagent.engines.vllm import VllmEngine
from medagent.models.causal_lm import has_experts
from medagent.models.plain_lora import Form, MergeLoss
from medagent.policies.turn_ends import end_token_ids
from medagent.training.module import AgentModule

__all__ = ["Engine", "EngineSetup", "InProcessEngine", "ModuleWeights", "PolicyWeights", "ServersEngine", "VllmEngine"]


class ModuleWeights(PolicyWeights):
    """The weights of an `AgentModule`'s policy."""

    def __init__(self, module: AgentModule) -> None:
        self._module, self._base = module, module.shared_base
        self.base_name, self.dtype, self.tokenizer = module.base_name, module.dtype_name, module.tokenizer
        self.four_bit = module.execution.quantise != "none"
        self.lora_rank, self.lora_scaling = module.policy_lora.rank, module.policy_lora.alpha / module.policy_lora.rank
        self.has_experts = has_experts(self._base.base)
        self.config = self._base.peft.config
        self.end_ids = end_token_ids(module.tokenizer, self._base.peft)

    def sampling_model(self, form: Form) -> PreTrainedModel:
        """See `PolicyWeights.sampling_model`.

        Its KV cache has rows at their own positions, and flash attention does not take the mask that this needs.
        """
        model: PreTrainedModel = (
            copy.deepcopy(self._base.peft).unload() if form == "merged" else self._base.sampling_twin()
        )
        model.requires_grad_(False)
        if model.is_gradient_checkpointing:
            model.gradient_checkpointing_disable()
        execution = self._module.execution
        if execution.attention == "flash_attention_2" or execution.shared_prefixes:
            model.set_attn_implementation("sdpa")
        torch.nn.Module.to(model, self._module.device).eval()
        return model

    def adapted(self) -> dict[str, Tensor]:
        return self._base.adapted_weights()

    def merged(self, loss: MergeLoss | None = None) -> Iterator[tuple[str, Tensor]]:
        return self._base.merged_policy(loss)

    def adapter(self) -> dict[str, Tensor]:
        return self._base.adapter_weights()

    def write_adapter(self, folder: Path) -> None:
        self._base.save_policy(folder)

    @torch.no_grad()
    def logprobs(self, token_ids: tuple[int, ...]) -> Tensor:
        with self._base.token_counts.paused():
            scores = self._base.policy_scores(*self._after_first(token_ids), temperature=1.0)
        return scores.logprobs_BT[0, 1:].double().cpu()

    @torch.no_grad()
    def base_logprobs(self, token_ids: tuple[int, ...]) -> Tensor:
        with self._base.token_counts.paused():
            found = self._base.base_logprobs(*self._after_first(token_ids), temperature=1.0)
        return found[0, 1:].double().cpu()

    def _after_first(self, token_ids: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
        """Token ids, attention and the mask of all tokens but the first, each [1, T]."""
        ids = torch.tensor([token_ids], device=self._module.device)
        mask = torch.ones_like(ids, dtype=torch.bool)
        mask[:, 0] = False
        return ids, torch.ones_like(mask), mask
