"""The default engine: it samples in this process, with Hugging Face's model code.

In float32 the policy's LoRA is merged into a copy of the base at each sync. In other dtypes it is copied and lies
beside the base, which trainer and engine then share.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from torch import Tensor

from medagent.agent_spec import AgentSpec
from medagent.engines.base import Engine, EngineSetup, PolicyWeights
from medagent.engines.weight_sync_check import WeightSyncCheck, require_synced
from medagent.models.agent_weights import load_weights
from medagent.models.checksums import Checksum, checksum
from medagent.models.plain_lora import MAX_MERGE_LOST, MergeLoss, form_for
from medagent.models.text_length import check_text_length
from medagent.policies.huggingface import HFPolicy

WeightSync = Literal["auto", "merged", "adapter"]


class InProcessEngine(Engine):
    """Samples reproducibly with Hugging Face's model code, on the trainer's device.

    Equal seeds give equal rollouts. `weight_sync` "merged": the LoRA is merged into a copy of the base. "adapter": the
    LoRA lies beside the base, and nothing is rounded. "auto": merged where the base is in float32, else adapter. A
    merge that loses more than 5% of the LoRA to rounding stops the run.
    """

    samples_here = True

    def __init__(self, weight_sync: WeightSync = "auto") -> None:
        self.weight_sync: WeightSync = weight_sync
        self.takes_adapters = weight_sync != "merged"
        self._policy: HFPolicy | None = None
        self._probe_ids: tuple[int, ...] = ()
        self._check: WeightSyncCheck | None = None
        self._loss: MergeLoss | None = None

    def open(self, folder: Path, spec: AgentSpec, *, lockstep: bool = False) -> HFPolicy:
        """See `Engine.open`. Raises `ConfigError` if the agent's limits exceed the texts that its model reads."""
        model, tokenizer = load_weights(folder, spec)
        check_text_length(model.config, spec.limits.max_total_tokens, f"agent {folder}")
        return HFPolicy(model, tokenizer, lockstep=lockstep, refill=True)

    def start(self, weights: PolicyWeights, setup: EngineSetup) -> None:
        self._probe_ids = setup.probe_ids
        self._check = WeightSyncCheck(weights.dtype)

    def sync_weights(self, weights: PolicyWeights, *, version: int) -> HFPolicy:
        form = self.weight_sync
        if form == "auto":
            form = form_for(weights.dtype, quantised=weights.four_bit)
        if self._policy is None:
            self._policy = HFPolicy(weights.sampling_model(form), weights.tokenizer)
        self._loss = MergeLoss() if form == "merged" else None
        names = set(weights.adapted() if form == "merged" else weights.adapter())
        sent: dict[str, Checksum] = {}

        def recorded() -> Iterator[tuple[str, Tensor]]:
            rows = weights.merged(self._loss) if self._loss is not None else weights.adapter().items()
            for name, weight in rows:
                sent[name] = checksum(weight)
                yield name, weight

        self._policy.load_weights(recorded())
        held = {name: checksum(each) for name, each in self._policy.model.named_parameters() if name in names}
        require_synced(sent, held, where="engine in_process", names=names)
        if self._loss is not None:
            remedy = "Take weight_sync: adapter (or auto), or train with model.dtype float32."
            self._loss.require(MAX_MERGE_LOST, where="engine in_process", remedy=remedy)
        if self._check is not None and len(self._probe_ids) > 1:
            found = self._policy.logprobs(list(self._probe_ids))
            self._check(found, weights.logprobs(self._probe_ids), where="engine in_process")
        return self._policy

    def metrics(self) -> dict[str, float]:
        """See `Engine.metrics`: those that a resumed run has too, so none of an earlier sync."""
        lost = {} if self._loss is None else {"sampler/merge_lost": self._loss.share}
        gap = {} if self._check is None else {"sampler/probe_gap": self._check.gap}
        return {**lost, **gap}

    def close(self) -> None:
        """See `Engine.close`: drops the copy, as a second run of this engine may have another base."""
        self._policy = None
