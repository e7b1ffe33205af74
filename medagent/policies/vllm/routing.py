"""The experts that vLLM's first model runner chose, kept by the tokens before them.

vLLM returns experts by itself, but only with its second model runner, which needs Triton and so a GPU. Elsewhere this
keeps them in the worker: it notes what each router selects and, after each step, stores a row per token. The key is
the whole text up to the token, as a text's beginning may be cached for another request.

It runs inside vLLM's worker processes, and imports only what is there anyway.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch


class RoutingStore:
    """Rows of experts, [layers, K] each, by the text that ends with their token."""

    def __init__(self, runner: Any) -> None:
        """Watch a model runner's routers and steps."""
        self._runner, self._execute = runner, runner.execute_model
        self._chosen: dict[int, torch.Tensor] = {}  # layer -> [N, K] of the present step
        self._rows: dict[int, np.ndarray[Any, Any]] = {}
        self._texts: dict[str, list[int]] = {}  # request -> the key of each of its tokens so far
        self._layers = int(runner.model_config.get_total_num_hidden_layers())
        for module in runner.get_model().modules():
            router: Any = getattr(module, "router", None)
            if hasattr(router, "set_capture_fn") and hasattr(module, "layer_id"):
                router.set_capture_fn(self._noting(int(module.layer_id)))
        runner.execute_model = self._step

    def _noting(self, layer: int) -> Any:
        def note(chosen_NK: torch.Tensor) -> None:
            self._chosen[layer] = chosen_NK.clone()

        return note

    def forget(self) -> None:
        """Drop all rows: new weights choose others."""
        self._rows.clear()
        self._texts.clear()

    def _step(self, scheduled: Any, *args: Any, **kwargs: Any) -> Any:
        self._chosen.clear()
        result = self._execute(scheduled, *args, **kwargs)
        for request in scheduled.finished_req_ids:
            self._texts.pop(request, None)
        if self._chosen:
            self._keep(scheduled.num_scheduled_tokens)
        return result

    def _keep(self, counts: dict[str, int]) -> None:
        """Store a row for each token of the step that was made; `counts` has each request's tokens."""
        batch, start = self._runner.input_batch, 0
        first = next(iter(self._chosen.values()))
        experts_NLK = np.zeros((len(first), self._layers, first.shape[1]), dtype=np.int16)
        for layer, chosen_NK in self._chosen.items():
            experts_NLK[:, layer] = chosen_NK.cpu().numpy()
        for place, request in enumerate(batch.req_ids):
            before, count = int(batch.num_computed_tokens_cpu[place]), counts[request]
            keys = self._texts.setdefault(request, [])
            del keys[before:]  # what is computed again
            extend(keys, batch.token_ids_cpu[place, len(keys) : before].tolist())
            extend(keys, self._runner.input_ids.cpu[start : start + count].tolist())
            for key, row in zip(keys[before:], experts_NLK[start : start + count], strict=True):
                self._rows.setdefault(key, row)
            start += count

    def of(self, token_ids: Sequence[int], first: int) -> str | None:
        """The rows of a text's tokens from `first` on, as vLLM itself returns them.

        That is the base64 of an .npy of [tokens, layers, K]; none where a row is missing.
        """
        found = [self._rows.get(key) for key in extend([], token_ids)[first:]]
        rows = [row for row in found if row is not None]
        if not rows or len(rows) < len(found):
            return None
        with io.BytesIO() as file:
            np.save(file, np.stack(rows), allow_pickle=False)
            return base64.b64encode(file.getvalue()).decode("ascii")


def extend(keys: list[int], token_ids: Sequence[int]) -> list[int]:
    """The keys of a text, and those of the tokens that follow it; `keys` itself grows."""
    for token in token_ids:
        keys.append(hash((keys[-1] if keys else 0, token)))
    return keys
