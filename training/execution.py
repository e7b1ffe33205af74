"""How the passes of an update are computed: memory against time. Only a base in 4 bits learns otherwise."""

import ctypes
import os
import platform
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from medagent.errors import ConfigError, require

State = TypeVar("State")  # of a base between passes
Attention = Literal["sdpa", "flash_attention_2", "eager"]
Quantisation = Literal["none", "nf4"]


# Settings of mallopt(3): parameter and value in bytes.
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = (-1, 512 << 20), (-2, 16 << 20), (-3, 32 << 20)


@dataclass(frozen=True)
class Execution:
    """Settings of the passes.

    `attention`: transformers' implementation. `gradient_checkpointing`: keep a layer's input alone, and compute the
    layer again in the backward pass. `packed`: the rows of a micro-batch lie in one sequence without padding, each
    seeing itself alone. Packing costs nothing with flash_attention_2. With the others the mask grows with the square of
    the whole. Families whose masks take no positions (OPT, BioGPT, Falcon) are refused.

    `shared_prefixes`: what the rows of a micro-batch have in common is read once (`medagent.training.prefixes`), and
    questions keep their samples together. Rows are packed. It needs sdpa.

    `logits_rows`: the rows of the vocabulary projection that exist at a time. `max_tokens`: the most tokens that a pass
    reads, padding included (0: no limit; null: as many as fit into half of the free memory). A larger micro-batch is
    split. `quantise` "nf4": the frozen base in 4 bits (QLoRA, arXiv 2305.14314; needs
    bitsandbytes).
    """

    attention: Attention = "sdpa"
    gradient_checkpointing: bool = False
    packed: bool = False
    shared_prefixes: bool = False
    logits_rows: int = 4096
    max_tokens: int | None = None
    quantise: Quantisation = "none"

    def __post_init__(self) -> None:
        require(self.logits_rows >= 1, "model.execution.logits_rows", self.logits_rows, "1 or more")
        require(self.token_limit >= 0, "model.execution.max_tokens", self.max_tokens, "0 (no limit) or more, or null")
        if self.shared_prefixes and (self.packed or self.attention != "sdpa"):
            raise ConfigError(
                f"model.execution.shared_prefixes: found it with packed {str(self.packed).lower()} and attention "
                f"{self.attention}, wanted packed false and sdpa. It packs rows by itself."
            )

    @property
    def token_limit(self) -> int:
        """`max_tokens`; 0, no limit, until one is chosen."""
        return self.max_tokens or 0


@dataclass(frozen=True)
class TokenLimit:
    """How many tokens a pass may read (0: any number), and the reason in words."""

    max_tokens: int
    reason: str


def checkpoint_layers(base: PreTrainedModel, active: Callable[[], State], activate: Callable[[State], None]) -> None:
    """Switch gradient checkpointing on for a base whose adapters are switched between forward passes.

    A layer is computed again with the adapter of its forward pass; with another gradients would be wrong.
    transformers checkpoints a layer if its `training` is true. While it computes it is false, so dropout stays off.
    """

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _Recomputing(active(), active, activate)

    layers = [module for module in base.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not base.supports_gradient_checkpointing or not layers:
        raise ConfigError(
            f"model.execution.gradient_checkpointing: {type(base).__name__} does not support it. Leave it out."
        )
    base.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": contexts})
    for layer in layers:
        layer.register_forward_pre_hook(_stop_dropping)
        layer.register_forward_hook(_ask_to_be_checkpointed, always_call=True)
    keep_evaluating(base)


def keep_evaluating(base: PreTrainedModel) -> None:
    """Put the whole base into evaluation mode, and have its checkpointed layers checkpointed none the less."""
    base.eval()
    for module in base.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = module.gradient_checkpointing


def _stop_dropping(layer: nn.Module, inputs: object) -> None:
    layer.training = False


def _ask_to_be_checkpointed(layer: nn.Module, inputs: object, outputs: object) -> None:
    assert isinstance(layer, GradientCheckpointingLayer)
    layer.training = layer.gradient_checkpointing  # a sampler's copy of the layer is no longer checkpointed


class _Recomputing(Generic[State]):
    """Puts the state of a forward pass back while its layer is computed again, once per backward pass."""

    def __init__(self, state: State, active: Callable[[], State], activate: Callable[[State], None]) -> None:
        self._state, self._active, self._activate = state, active, activate
        self._before: list[State] = []

    def __enter__(self) -> None:
        self._before.append(self._active())
        self._activate(self._state)

    def __exit__(self, *failure: object) -> None:
        self._activate(self._before.pop())


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next pass, unless the environment has settings of its own.

    Otherwise the system clears every page again, up to a tenth of a pass of a small model on a CPU. Blocks above 32 MiB
    still go back, and so does the heap's free end of 512 MiB.
    """
    own = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if platform.libc_ver()[0] == "glibc" and not own:
        library = ctypes.CDLL(None)
        for parameter, value in (TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD):
            library.mallopt(parameter, value)
