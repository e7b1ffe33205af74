"""The default engine: it samples in the trainer's process.

In float32 the policy adapter is merged into a copy of the base at each hand-over. In other dtypes it is copied and
lies beside the base, which trainer and sampler then share.
"""

from __future__ import annotations

import copy

import torch
from transformers import PreTrainedModel

from medagent.errors import ConfigError
from medagent.models.causal_lm import hidden_states, plain_attention, project
from medagent.models.checksums import Handed, of_parameters
from medagent.models.merging import MAX_MERGE_LOST, MergeLoss
from medagent.policies.huggingface import HFPolicy
from medagent.training.engines.arrival import ArrivalCheck, require_arrival, trainer_logprobs
from medagent.training.engines.base import EngineSetup, RolloutEngine
from medagent.training.engines.hand_over import WITHOUT_MERGE, HandOver, form_of, is_whole, merge_metrics
from medagent.training.module import AgentModule


class InProcessEngine(RolloutEngine):
    """Samples reproducibly with Hugging Face's model code, on the trainer's device.

    Equal seeds give equal rollouts. `hand_over` "merged": the LoRA is folded into a copy of the base. "adapter": the
    LoRA lies beside the base, and nothing is rounded. "auto": merged where the base is in float32, else adapter. A
    merge that loses a larger share than `max_merge_lost` of the LoRA to rounding stops the run.
    """

    samples_here = records_routing = True

    def __init__(self, hand_over: HandOver = "auto", max_merge_lost: float = MAX_MERGE_LOST) -> None:
        self._hand_over, self._max_merge_lost = hand_over, max_merge_lost
        self.asked_form = hand_over
        self.takes_adapters = hand_over != "merged"
        self._policy: HFPolicy | None = None
        self._probe_ids: tuple[int, ...] = ()
        self._check: ArrivalCheck | None = None
        self._loss: MergeLoss | None = None

    def start(self, module: AgentModule, setup: EngineSetup) -> None:
        """See `RolloutEngine.start`: refuses a base that is sharded."""
        _refuse(setup.sharded)
        self._probe_ids = setup.probe_ids
        self._check = ArrivalCheck(module.dtype_name)

    def hand_over(self, module: AgentModule, *, version: int) -> HFPolicy:
        """See `RolloutEngine.hand_over`."""
        _refuse(module.roles.sharded)
        merges = form_of(self._hand_over, module) == "merged"
        if self._policy is None:
            model = _plain_copy(module) if merges else _twin(module)
            self._policy = HFPolicy(model, module.tokenizer, record_routing=module.routing_replay == "r3")
        self._loss = MergeLoss() if merges else None
        weights = module.roles.merged_policy(self._loss) if merges else module.roles.adapter_weights().items()
        names = set(module.roles.adapted_weights() if merges else module.roles.adapter_weights())
        handed = Handed()
        self._policy.load_weights(handed.watch(weights))
        held = of_parameters(self._policy.model, names)
        require_arrival(handed.checksums, held, where="engine in_process", names=names)
        if self._loss is not None:
            self._loss.require(self._max_merge_lost, where="engine in_process", remedy=WITHOUT_MERGE)
        if self._check is not None and len(self._probe_ids) > 1 and is_whole(self._loss):
            heard = _logprobs(self._policy.model, self._probe_ids)
            self._check(heard, trainer_logprobs(module, self._probe_ids), where="engine in_process")
        return self._policy

    def metrics(self) -> dict[str, float]:
        """See `RolloutEngine.metrics`: those that a resumed run has too, so none of an earlier hand-over."""
        gap = {} if self._check is None else {"sampler/probe_gap": self._check.gap}
        return {**merge_metrics(self._loss), **gap}

    def close(self) -> None:
        """Drop the copy, as a second run of this engine may have another base."""
        self._policy = None


def _refuse(sharded: bool) -> None:
    if sharded:
        raise ConfigError(
            "engine in_process: keeps a whole copy of the base on each rank, which ShardedBase is to avoid. "
            "Take training.engines.ServersEngine as data.engine, or VllmEngine with GPUs of its own for every rank, "
            "or trainer.strategy ddp."
        )


def _plain_copy(module: AgentModule) -> PreTrainedModel:
    """The base without adapters, with weights of its own."""
    return _ready(copy.deepcopy(module.roles.peft).unload(), module)


def _twin(module: AgentModule) -> PreTrainedModel:
    """The trainer's base with LoRA matrices of its own beside it."""
    return _ready(module.roles.sampling_twin(), module)


def _ready(model: PreTrainedModel, module: AgentModule) -> PreTrainedModel:
    """The model in evaluation mode on the module's device, with an attention that takes a mask of its own.

    A KV cache with rows at their own positions needs such a mask: flash attention takes none.
    """
    model.requires_grad_(False)
    if model.is_gradient_checkpointing:
        model.gradient_checkpointing_disable()
    if module.execution.attention == "flash_attention_2" or module.execution.shared_prefixes:
        model.set_attn_implementation(plain_attention(model))
    torch.nn.Module.to(model, module.device).eval()
    return model


@torch.no_grad()
def _logprobs(model: PreTrainedModel, token_ids: tuple[int, ...]) -> list[float]:
    """Log-probs of the tokens after the first, in one plain pass of the sampling model."""
    ids = torch.tensor([token_ids], device=model.device)
    scores = torch.log_softmax(project(model, hidden_states(model, input_ids=ids, use_cache=False)), -1)
    found: list[float] = scores[0, :-1].gather(1, ids[0, 1:, None])[:, 0].tolist()
    return found
