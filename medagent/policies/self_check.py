"""Whether a model that is read in batches, through the policy's own cache, scores as it does in one plain pass.

Families differ in how they take positions, masks and caches, and some ignore what they are given. So each model is
tried when its policy is made: two rows of different lengths, read in two steps.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from medagent.causal_lm import hidden_states, project
from medagent.policies.batch import Batch, Dialogue, Row, Sampler
from medagent.policies.model_shape import decoder_config, refusal
from medagent.policies.turn_ends import TurnEnds

FIRST, SECOND = (40, 24), (1, 3)  # tokens that each row reads per step
WINDOW = 16  # larger windows are made so narrow while the model is tried, or no row would reach beyond them
# The largest gap that rounding explains, as a share of the scores' standard deviation over the vocabulary.
ROUNDING = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.25}


def check_sampling(sampler: Sampler) -> None:
    """Compare the scores after each step with those of plain passes.

    Weights that are not finite are left to sampling, which names them.

    Raises:
        PolicyError: they differ by more than rounding, or the model cannot be read in batches.
    """
    name = type(sampler.model).__name__
    shape, config = sampler.shape, decoder_config(sampler.model)
    window = shape.window
    if window is not None and window > WINDOW:
        sampler, config.sliding_window = replace(sampler, shape=replace(shape, window=WINDOW)), WINDOW
    try:
        gap = _gap(sampler)
    except Exception as error:  # code of any family may raise anything
        raise refusal(name, f"it cannot be read in batches with a mask and positions per row ({error!r})") from error
    finally:
        if window is not None:
            config.sliding_window = window
    if gap > _tolerance(sampler.model.dtype):
        raise refusal(
            name,
            f"its scores in a batch with a cache differ from those of a plain pass by {gap:.2g} of their spread: it "
            "ignores the mask, the positions or the cache that it is given, or was left in training mode",
        )


def _tolerance(dtype: torch.dtype) -> float:
    coarse = torch.cuda.is_available() and torch.get_float32_matmul_precision() != "highest"
    return ROUNDING[torch.float16 if coarse and dtype is torch.float32 else dtype]


@torch.no_grad()
def _gap(sampler: Sampler) -> float:
    """The largest root mean square of the difference of scores, as a share of the scores' standard deviation."""
    longest = sampler.shape.longest
    room = FIRST[0] if longest is None else min(FIRST[0], longest.tokens - max(SECOND))
    first = (room, max(1, room * FIRST[1] // FIRST[0]))
    vocabulary = min(len(sampler.tokenizer), decoder_config(sampler.model).vocab_size)
    generator = torch.Generator().manual_seed(0)  # the global one drives training
    texts = [
        torch.randint(
            sampler.model.get_input_embeddings().weight.shape[0], (one + other,), generator=generator
        ).tolist()
        for one, other in zip(first, SECOND, strict=True)
    ]
    ends = TurnEnds(sampler.tokenizer, (), frozenset())
    rows = [
        Row(Dialogue(0, 1.0, ends, list(text[:count])), max(SECOND) + 1, np.zeros(0), lambda outcome: None)
        for text, count in zip(texts, first, strict=True)
    ]
    batch = Batch(sampler, rows)
    steps = [batch.read()]
    for row, text, count in zip(rows, texts, first, strict=True):
        row.dialogue.pending = list(text[count:])
    steps.append(batch.read())
    gap = 0.0
    for index, (text, count) in enumerate(zip(texts, first, strict=True)):
        ids = torch.tensor([text], device=sampler.model.device)
        plain = project(sampler.model, hidden_states(sampler.model, input_ids=ids)[0, [count - 1, len(text) - 1]])
        gap = max(gap, _difference(torch.stack([step[index] for step in steps]), plain))
    return gap


def _difference(found_SV: Tensor, wanted_SV: Tensor) -> float:
    if not wanted_SV.isfinite().all():
        return 0.0
    found, wanted = (scores - scores.mean(dim=-1, keepdim=True) for scores in (found_SV, wanted_SV))
    share = (found - wanted).square().mean(dim=-1).sqrt() / (wanted.square().mean(dim=-1).sqrt() + 1e-6)
    worst = float(share.max())
    return worst if worst == worst else float("inf")  # nan: the batch alone is not finite
