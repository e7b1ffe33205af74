"""A model as the in-process policy samples it: its KV cache, its attention windows, its longest text.

The cache's shape is measured, as families name their settings differently. Windows are read from the decoder's config.
The cache is a buffer whose rows write at their own positions. A head's positions lie side by side in memory, as
attention reads them. The other order takes about twice the time on a CPU.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from medagent.errors import PolicyError
from medagent.models.causal_lm import FULL, SLIDING, decoder_config, hidden_states, other_limits
from medagent.models.text_length import LongestText, longest_text

PROBE_TOKENS = 4


@dataclass(frozen=True)
class DecoderShape:
    """Layers and heads of the KV cache, and which keys a token may see.

    `window` is the number of latest tokens that a token sees, itself included; None is all. With `mixed`, it holds in
    the layers of type sliding_attention alone. `additive` masks are added to the scores, others are boolean.
    """

    layers: int
    heads: int
    head_dim: int
    dtype: torch.dtype
    window: int | None = None
    mixed: bool = False
    additive: bool = False
    longest: LongestText | None = None

    def buffer(self, rows: int, capacity: int, device: torch.device) -> Tensor:
        """An empty cache: [layers, 2, rows, heads, capacity, head_dim]."""
        shape = (self.layers, 2, rows, self.heads, capacity, self.head_dim)
        return torch.zeros(shape, device=device, dtype=self.dtype)

    def attention_mask(self, places_BQ: Tensor, reach: int) -> Tensor | dict[str, Tensor]:
        """Which of the first `reach` keys each query may see: [B, 1, Q, reach], or one such mask per type of layer."""
        keys_K, queries_B1Q1 = torch.arange(reach, device=places_BQ.device), places_BQ[:, None, :, None]
        causal = keys_K <= queries_B1Q1
        if self.window is None:
            return self._mask(causal)
        near = self._mask(causal & (keys_K > queries_B1Q1 - self.window))
        return {FULL: self._mask(causal), SLIDING: near} if self.mixed else near

    def _mask(self, seen: Tensor) -> Tensor:
        if not self.additive:
            return seen
        return torch.zeros_like(seen, dtype=self.dtype).masked_fill(~seen, torch.finfo(self.dtype).min)


def shape_of(model: PreTrainedModel) -> DecoderShape:
    """The shape of a model.

    Raises:
        PolicyError: the in-process policy cannot hold its kind of layers or cache.
    """
    name, config = type(model).__name__, decoder_config(model)
    settings = config.to_dict()
    if settings.get("is_encoder_decoder"):
        raise refusal(name, "it has an encoder, and a dialogue here has no text to encode")
    if settings.get("alibi") or settings.get("model_type") in ("bloom", "mpt"):
        raise refusal(name, "its attention has a bias by distance (ALiBi), which takes no positions")
    limits = other_limits(config)
    if limits:
        raise refusal(name, f"it limits what a token sees by {limits}; wanted none or a sliding_window")
    kinds = set(settings.get("layer_types") or [])
    if kinds - {FULL, SLIDING}:
        raise refusal(name, f"it has layers of type {sorted(kinds - {FULL, SLIDING})}; wanted {FULL} or {SLIDING}")
    window = settings.get("sliding_window") if not kinds or SLIDING in kinds else None
    if SLIDING in kinds and not window:
        raise refusal(name, "it has layers of type sliding_attention, and its config no sliding_window")
    layers, heads, head_dim, dtype = _cache_shape(model, name)
    return DecoderShape(
        layers,
        heads,
        head_dim,
        dtype,
        window=window,
        mixed=bool(kinds) and window is not None,
        additive=config._attn_implementation == "eager",
        longest=longest_text(model.config),
    )


@torch.no_grad()
def _cache_shape(model: PreTrainedModel, name: str) -> tuple[int, int, int, torch.dtype]:
    """Layers, heads, dimensions of a head and dtype of what the model writes into a plain KV cache."""
    cache = DynamicCache()
    ids = torch.arange(PROBE_TOKENS, device=model.device)[None]
    try:
        hidden_states(model, input_ids=ids, past_key_values=cache, use_cache=True)
        layers: list[Any] = cache.layers
        found = {(tuple(layer.keys.shape), tuple(layer.values.shape), layer.keys.dtype) for layer in layers}
    except Exception as error:  # code of any family may raise anything, and its layers may hold no keys
        raise refusal(name, f"it cannot write an ordinary KV cache ({error!r})") from error
    if not found:
        raise refusal(name, "it writes no KV cache")
    if len(found) > 1:
        shapes = sorted(str(keys) for keys, _, _ in found)
        raise refusal(name, f"its layers write caches of different shapes ({', '.join(shapes)})")
    keys, values, dtype = found.pop()
    if keys != values or len(keys) != 4 or keys[0] != 1 or keys[2] != PROBE_TOKENS:
        raise refusal(name, f"it writes keys of shape {keys} and values of shape {values}, wanted the same for both")
    return len(layers), keys[1], keys[3], dtype


def refusal(name: str, reason: str) -> PolicyError:
    """The error for a model that cannot be sampled in process."""
    return PolicyError(
        f"{name}: the in-process policy cannot sample it, as {reason}. Sample it with vLLM (data.engine "
        "medagent.training.engines.VllmEngine), or choose another model."
    )


class _BufferLayer(CacheLayerMixin):
    """One layer's view of the buffer; writes at each row's own positions."""

    def __init__(self, keys: Tensor, values: Tensor, positions_BQ: Tensor, reach: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._stored, self._positions, self._reach = (keys, values), positions_BQ, reach
        self._rows = torch.arange(positions_BQ.shape[0], device=positions_BQ.device)[:, None]

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the buffer exists."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Store [B, heads, Q, D] and return all keys and values up to the furthest position."""
        views = []
        for stored, new in zip(self._stored, (key_states, value_states), strict=True):
            stored[self._rows, :, self._positions] = new.transpose(1, 2)
            views.append(stored[:, :, : self._reach])
        return views[0], views[1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(key length, offset)."""
        return self._reach, 0

    def get_seq_length(self) -> int:
        """Tokens before this step, of the longest row."""
        return self._reach - int(self._positions.shape[1])

    def get_max_length(self) -> int:
        """The buffer's capacity."""
        return int(self._stored[0].shape[2])


class BufferCache(Cache):
    """The buffer behind the cache interface of transformers."""

    def __init__(self, buffer: Tensor, positions_BQ: Tensor, reach: int) -> None:
        super().__init__(layers=[_BufferLayer(layer[0], layer[1], positions_BQ, reach) for layer in buffer])
