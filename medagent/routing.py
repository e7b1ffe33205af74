"""Which experts a mixture of experts chose for each token: recorded while it samples, replayed while it is trained.

Only the selection is replayed. The weights of the chosen experts come from the live router, so its gradient is there.

Shapes: N tokens in the order in which a pass reads them, L routers in the order of their layers, K experts per token.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from medagent.errors import ConfigError
from medagent.routing_record import RoutingShape

ROUTERS = (Qwen3MoeTopKRouter, MixtralTopKRouter)
MOST_IN_A_BYTE = 255  # experts whose numbers fit into a byte beside the mark for "no record"


def no_record(dtype: torch.dtype) -> int:
    """The number that stands for an expert where nothing was recorded; such a token is routed by the live router."""
    return torch.iinfo(dtype).max


class Routers:
    """The routers of a model, in the order of its layers."""

    def __init__(self, model: PreTrainedModel, *, where: str = "routing") -> None:
        """Find the routers. Raises `ConfigError` where there are none whose selection can be replayed."""
        found = [(name, module) for name, module in model.named_modules() if isinstance(module, ROUTERS)]
        if not found:
            raise ConfigError(
                f"{where}: found {type(model).__name__}, wanted a mixture of experts of the family Qwen3-MoE or "
                "Mixtral. Set model.routing_replay to none, or choose such a base."
            )
        self.modules: list[nn.Module] = [module for _, module in found]
        self.layers: tuple[int, ...] = tuple(
            int(next(part for part in name.split(".") if part.isdigit())) for name, _ in found
        )
        self.num_experts = max(int(router.num_experts) for router in self.modules)  # type: ignore[arg-type]
        self.top_k = int(self.modules[0].top_k)  # type: ignore[arg-type]
        self._replay: Tensor | None = None
        self._handles: list[RemovableHandle] = []

    @property
    def dtype(self) -> torch.dtype:
        """The type of records of these routers."""
        return torch.uint8 if self.num_experts <= MOST_IN_A_BYTE else torch.int16

    @property
    def shape(self) -> RoutingShape:
        """The facts that a sampler of the same model needs to write their records."""
        return RoutingShape(self.layers, str(self.dtype).removeprefix("torch."))

    @property
    def bytes_of_a_token(self) -> int:
        """The size of a token's record."""
        return len(self.modules) * self.top_k * self.dtype.itemsize

    @contextmanager
    def recorded(self) -> Iterator[Recording]:
        """Record what is selected in one pass of the model, whether live or replayed."""
        recording = Recording([None] * len(self.modules), self.dtype)
        handles = [router.register_forward_hook(recording.hook(number)) for number, router in enumerate(self.modules)]
        try:
            yield recording
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def replayed(self, experts_NLK: Tensor | None) -> Iterator[None]:
        """Replay a selection, token by token, in every pass within; none routes by the live routers."""
        before = self._replay
        self.replay(experts_NLK)
        try:
            yield
        finally:
            self.replay(before)

    @property
    def now(self) -> Tensor | None:
        """The selection that is replayed at present."""
        return self._replay

    def replay(self, experts_NLK: Tensor | None) -> None:
        """Replay this selection from now on. Without one no hook stays on the model, which may then be copied."""
        self._replay = experts_NLK
        if experts_NLK is None:
            for handle in self._handles:
                handle.remove()
            self._handles = []
        elif not self._handles:
            self._handles = [
                # Before the hooks that record, so that they see what is replayed.
                router.register_forward_hook(self._hook(number), prepend=True)
                for number, router in enumerate(self.modules)
            ]

    def _hook(self, number: int) -> Any:
        def replace(router: nn.Module, inputs: object, outputs: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
            assert self._replay is not None
            return reselected(router, outputs, self._replay[:, number])

        return replace


@dataclass
class Recording:
    """The experts that a pass selected, layer by layer."""

    parts: list[Tensor | None]
    dtype: torch.dtype

    def hook(self, number: int) -> Any:
        """A forward hook for the router of this number."""

        def note(router: nn.Module, inputs: object, outputs: tuple[Tensor, Tensor, Tensor]) -> None:
            self.parts[number] = outputs[2].detach().to(self.dtype)

        return note

    @property
    def experts(self) -> Tensor:
        """[N, L, K] the selection of the whole pass."""
        assert all(part is not None for part in self.parts), "no pass was made"
        return torch.stack([part for part in self.parts if part is not None], dim=1)


def reselected(router: nn.Module, outputs: tuple[Tensor, Tensor, Tensor], chosen_NK: Tensor) -> tuple[Tensor, ...]:
    """A router's output with another selection: its own logits, and the weights that they give to those chosen.

    Tokens without a record keep what the router selected. The weights are made as the family makes them.
    """
    logits_NE, weights_NK, own_NK = outputs
    if len(chosen_NK) != len(own_NK):
        raise ValueError(f"a record of {len(chosen_NK)} tokens cannot be replayed over {len(own_NK)}.")
    there_N1 = chosen_NK[:, :1] != no_record(chosen_NK.dtype)
    experts_NK = torch.where(there_N1, chosen_NK.to(own_NK.dtype), own_NK)
    probabilities_NE = torch.softmax(logits_NE.float(), dim=-1)
    found_NK = probabilities_NE.gather(1, experts_NK)
    if isinstance(router, MixtralTopKRouter) or router.norm_topk_prob:
        found_NK = found_NK / found_NK.sum(dim=-1, keepdim=True)
    return logits_NE, found_NK.to(weights_NK.dtype), experts_NK


def has_routers(model: nn.Module) -> bool:
    """Whether a model is a mixture of experts whose routing can be replayed."""
    return any(isinstance(module, ROUTERS) for module in model.modules())
