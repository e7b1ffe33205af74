"""The interface of an engine: it samples turns with weights from an agent's folder, or synced from the trainer."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from medagent.agent_spec import AgentSpec
from medagent.errors import ConfigError
from medagent.models.plain_lora import Form, MergeLoss
from medagent.policy import Policy


class PolicyWeights(ABC):
    """The policy under training, as an engine sees it. `medagent.training.engines.ModuleWeights` implements it."""

    base_name: str
    dtype: str  # of the base, such as "bfloat16"
    four_bit: bool  # whether the trainer's base is quantised
    lora_rank: int
    lora_scaling: float
    has_experts: bool  # whether the base is a mixture of experts
    config: PretrainedConfig
    tokenizer: PreTrainedTokenizerBase
    end_ids: tuple[int, ...]  # the ids that end a turn

    @abstractmethod
    def sampling_model(self, form: Form) -> PreTrainedModel:
        """A model to sample with, on the trainer's device.

        "merged": a copy of the plain base. "adapter": the trainer's base, with LoRA matrices of its own.
        """

    @abstractmethod
    def adapted(self) -> dict[str, Tensor]:
        """Name in the plain base -> weight or bias, of every layer that the LoRA changes; no copies."""

    @abstractmethod
    def merged(self, loss: MergeLoss | None = None) -> Iterator[tuple[str, Tensor]]:
        """Each name of `adapted` with its weight and the LoRA merged in. `loss` counts what rounding takes."""

    @abstractmethod
    def adapter(self) -> dict[str, Tensor]:
        """Name in the base with the LoRA beside it -> LoRA matrix, such as "...q_proj.lora_A.policy.weight"."""

    @abstractmethod
    def write_adapter(self, folder: Path) -> None:
        """Write the LoRA as peft does (safetensors and its configuration)."""

    @abstractmethod
    def logprobs(self, token_ids: tuple[int, ...]) -> Tensor:
        """[T - 1] log-probs of the tokens after the first under the policy, at temperature 1, on the CPU."""

    @abstractmethod
    def base_logprobs(self, token_ids: tuple[int, ...]) -> Tensor:
        """The same under the base, with all adapters off."""


@dataclass(frozen=True)
class EngineSetup:
    """A training run, as its engine needs to know it before the first sync.

    `folder` is the run's, for logs. `max_tokens` is the longest rollout. `probe_ids` is a text whose log-probs the
    sync is checked on.
    """

    folder: Path
    max_tokens: int
    probe_ids: tuple[int, ...]
    rank: int = 0  # of this machine's ranks
    num_ranks: int = 1
    device: torch.device = torch.device("cpu")  # the trainer's; the module may not be there yet


class Engine(ABC):
    """Samples with the weights that were opened or synced last.

    Server and evaluation call `open`. The trainer calls `start` once, and `sync_weights` each iteration. One object
    serves one run. Its settings are those of the YAML.
    """

    takes_adapters = False  # whether the LoRA is synced and not merged weights
    overlaps = True  # whether it can sample while the trainer updates
    samples_here = False  # whether it samples in the trainer's process
    weight_sync = "auto"  # its setting of that name
    trainer_share = 1.0  # of the GPU's memory that it leaves to the trainer

    def open(self, folder: Path, spec: AgentSpec, *, lockstep: bool = False) -> Policy:
        """A policy with the weights in an agent's folder. Blocks while they load.

        It may be called again when the folder has changed. `lockstep`: see `HFPolicy`.

        Raises:
            ConfigError: the engine cannot serve this agent.
            PolicyError: the new weights need a new start.
        """
        raise ConfigError(f"{type(self).__name__}: serves no agent's folder. Take --engine in_process.")

    def start(self, weights: PolicyWeights, setup: EngineSetup) -> None:  # noqa: B027 (nothing to start by default)
        """Start what must run beside the trainer, or refuse, before any rollout."""

    @abstractmethod
    def sync_weights(self, weights: PolicyWeights, *, version: int) -> Policy:
        """Take the present weights and return a policy that samples with them. `version` is their iteration."""

    def is_alive(self) -> bool:
        """Whether it can sample, as far as is known without a request."""
        return True

    def sleep(self) -> None:  # noqa: B027
        """Free what the update may need: the iteration's rollouts are complete."""

    def metrics(self) -> dict[str, float]:
        """Metrics of the last sync, to be logged."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Stop what was started; safe to call twice."""
