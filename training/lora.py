"""LoRA's settings, and a policy that starts as another agent's adapter, such as that of `medagent sft`.

The adapter is copied, and kept as the frozen reference. Nothing is merged: below float32 a merge rounds part of the
adapter away, and would make a base of its own.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel
from torch import nn
from transformers import PreTrainedModel

from medagent.agent_spec import SPEC_FILE, read_spec
from medagent.errors import ConfigError
from medagent.models.base_models import check_base, stored_name
from medagent.models.causal_lm import ADAPTER_FILE, beside_decoder, has_experts
from medagent.models.plain_lora import check_adapter, lora_layers
from medagent.training.settings import LORA_RULES, check_rules


@dataclass(frozen=True)
class LoraSettings:
    """LoRA (arXiv 2106.09685) of one adapter: delta W = (alpha / rank) B A on the decoder's linear layers.

    In a mixture of experts these are the layers of attention. Routers and experts stay as they are.

    No dropout: it would make the trainer's log-probs differ from the sampler's. `start`, of a policy alone: the folder
    of an agent or an adapter. The policy begins as this adapter, and its frozen copy is the reference.
    """

    rank: int = 16
    alpha: int = 32
    start: str | None = None

    def __post_init__(self) -> None:
        """Refuse values out of range: with rank or alpha 0 an adapter changes nothing."""
        check_rules("LoRA", vars(self), LORA_RULES)

    def config(self, base: PreTrainedModel) -> LoraConfig:
        """Peft's configuration for a base."""
        return LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha,
            # To peft, experts and routers are linear too. They stay frozen: vLLM and a merge know LoRA on layers alone.
            target_modules=linear_names(base) if has_experts(base) else "all-linear",
            exclude_modules=beside_decoder(base),
            bias="none",
            task_type="CAUSAL_LM",
        )

    def check_start(self, base_model: str, *, quantise: str) -> None:
        """Compare the adapter of `start` with a run; ConfigError if rank, alpha, base or bits differ."""
        if self.start is None:
            return
        folder, where = adapter_folder(self.start), f"model.policy_lora.start {self.start}"
        check_adapter(folder, beside=True)  # its biases, or its own part of the base's weights, would stay in the base
        settings = json.loads((folder / ADAPTER_FILE).read_text(encoding="utf-8"))
        rank, alpha = settings.get("r"), settings.get("lora_alpha")
        if (rank, alpha) != (self.rank, self.alpha):
            raise ConfigError(
                f"{where}: has rank {rank} and alpha {alpha}, wanted those of model.policy_lora, {self.rank} and "
                f"{self.alpha}. Set model.policy_lora.rank and alpha to the adapter's."
            )
        if not (Path(self.start) / SPEC_FILE).is_file():
            return  # an adapter of peft's; start_from compares its layers with the base's
        spec = read_spec(Path(self.start))
        for name, found, wanted in (
            ("model.base_model", spec.base_model, stored_name(base_model)),
            ("model.execution.quantise", spec.quantise, quantise),
        ):
            if found != wanted:
                raise ConfigError(
                    f"{where}: was trained with {name} {found}, and this run has {wanted}. Set {name} to the agent's."
                )
        check_base(base_model, spec.base_sha256, where)


def linear_names(base: PreTrainedModel) -> list[str]:
    """The last names of the decoder's linear layers, such as q_proj."""
    linear = [name for name, module in base.get_decoder().named_modules() if isinstance(module, nn.Linear)]
    own = [name.removesuffix(".base_layer") for name in linear if ".lora_" not in name]  # beside another adapter
    return sorted({name.rpartition(".")[2] for name in own})


def adapter_folder(start: str) -> Path:
    """The adapter's folder, inside an agent's or `start` itself; ConfigError without one."""
    folder = Path(start)
    for found in (folder / "adapter", folder):
        if (found / ADAPTER_FILE).is_file():
            return found
    raise ConfigError(
        f"model.policy_lora.start {start}: there is no adapter, wanted {ADAPTER_FILE} there or in its folder adapter. "
        "Give the agent that medagent sft or train exported (RUN/agent)."
    )


@torch.no_grad()
def start_from(model: PeftModel, start: str, *, policy: str, reference: str) -> None:
    """Add the adapter of `start` as `reference`, and copy it into `policy`; ConfigError if it does not fit."""
    folder, where = adapter_folder(start), f"model.policy_lora.start {start}"
    try:
        read = model.load_adapter(str(folder), reference)
    except Exception as error:  # peft raises anything where shapes or names do not fit
        raise ConfigError(
            f"{where}: cannot be put on this base ({' '.join(str(error).split())[:300]}), wanted an adapter of it. Set "
            "model.base_model to the base that it was trained on."
        ) from error
    layers = list(lora_layers(model))
    fits = [reference in layer.lora_A and policy in layer.lora_A for _, layer in layers]
    astray = [*read.missing_keys, *read.unexpected_keys]
    if astray or not all(fits):
        raise ConfigError(
            f"{where}: has LoRA on {sum(fits)} of {len(layers)} layers and {len(astray)} tensors astray, wanted one on "
            "each linear layer of the decoder. Give an agent that medagent trained on this base."
        )
    for name, layer in layers:
        found, wanted = ((layer.r[each], layer.scaling[each]) for each in (reference, policy))
        if found != wanted:  # a rank_pattern may give a layer a rank of its own
            raise ConfigError(
                f"{where}: has rank {found[0]} and scaling {found[1]:g} on {name}, wanted {wanted[0]} and "
                f"{wanted[1]:g}, as model.policy_lora gives every layer. Start from an adapter with one rank."
            )
        for matrices in (layer.lora_A, layer.lora_B):
            matrices[policy].load_state_dict(matrices[reference].state_dict())
