"""Checks that a model read in batches, through the policy's own cache, scores as it does in one plain pass.

Families differ in how they take positions, masks and caches, and some ignore their inputs. So each model is tried when
its policy is made: two rows of different lengths are read in steps, as dialogues are.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from medagent.models.causal_lm import decoder_config, hidden_states, project
from medagent.models.text_length import LongestText
from medagent.policies.batch import Batch, Dialogue, Sampler, TurnRow
from medagent.policies.decoder_shape import refusal
from medagent.policies.turn_ends import TurnEnds

STEPS = ((24, 40), (20, 9), (1, 1), (1, 1), (1, 1))  # tokens that each row reads: prompt, observation, its own
WINDOW = 16  # larger windows are made so narrow while the model is tried, or no row would reach beyond them
# The largest gap that rounding explains, as a share of the scores' standard deviation over the vocabulary.
ROUNDING = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.5}


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
    dtype = sampler.model.dtype
    coarse = torch.cuda.is_available() and torch.get_float32_matmul_precision() != "highest"
    if gap > ROUNDING.get(torch.float16 if coarse and dtype is torch.float32 else dtype, ROUNDING[torch.bfloat16]):
        raise refusal(
            name,
            f"its scores in a batch with a cache differ from those of a plain pass by {gap:.2g} of their spread: it "
            "ignores the mask, the positions or the cache that it is given, or was left in training mode",
        )


@torch.no_grad()
def _gap(sampler: Sampler) -> float:
    """How far scores are from those of a plain pass, as a share of their standard deviation over the vocabulary.

    It is the largest over rows and kinds of step of a low quantile over the later half of their tokens. A model that
    is read wrongly has all of these wrong. Rounding sends some tokens to other experts, whose gap says nothing.
    """
    model, device = sampler.model, sampler.model.device
    vocabulary = min(len(sampler.tokenizer), decoder_config(model).vocab_size)
    generator = torch.Generator().manual_seed(0)  # the global one drives training
    steps = _steps(sampler.shape.longest)
    lengths = [sum(counts) for counts in zip(*steps, strict=True)]
    texts = [torch.randint(vocabulary, (length,), generator=generator).tolist() for length in lengths]
    plain = [project(model, hidden_states(model, input_ids=torch.tensor([text], device=device)))[0] for text in texts]
    ends = TurnEnds(sampler.tokenizer, (), frozenset())
    rows = [TurnRow(Dialogue(0, 1.0, ends), max(lengths), np.zeros(0), lambda outcome: None) for _ in texts]
    batch: Batch | None = None
    shares: list[list[list[Tensor]]] = [[[], [], []] for _ in rows]  # by row and kind of step
    read = [0] * len(rows)
    for number, step in enumerate(steps):
        for index, (row, count) in enumerate(zip(rows, step, strict=True)):
            row.dialogue.pending = texts[index][read[index] : read[index] + count]
        batch = batch or Batch(sampler, rows)
        hidden_NH, after = batch.read()
        for index, count in enumerate(step):
            wanted = plain[index][read[index] : read[index] + count]
            end = after[batch.slot_of(rows[index])]
            shares[index][min(number, 2)].append(_share(project(sampler.model, hidden_NH[end - count : end]), wanted))
            read[index] += count
    whole = [torch.cat(found) for row in shares for found in row]
    later = [shares_T[len(shares_T) // 2 :].sort().values for shares_T in whole]
    return max(float(shares_T[len(shares_T) // 4]) for shares_T in later)


def _steps(longest: LongestText | None) -> tuple[tuple[int, int], ...]:
    """The steps, shorter where a text may not be as long."""
    if longest is None or longest.tokens >= max(map(sum, zip(*STEPS, strict=True))):
        return STEPS
    return tuple((1, min(2, longest.tokens // len(STEPS))) for _ in STEPS)


def _share(found_TV: Tensor, wanted_TV: Tensor) -> Tensor:
    """[T]: the root mean square of the difference over that of the scores, both without their means."""
    found, wanted = (scores - scores.mean(dim=-1, keepdim=True) for scores in (found_TV, wanted_TV))
    share = (found - wanted).square().mean(dim=-1).sqrt() / (wanted.square().mean(dim=-1).sqrt() + 1e-6)
    # Plain scores that are not finite say nothing. If only the batch's are not finite, the batch is wrong.
    return share.nan_to_num(nan=torch.inf).where(wanted.isfinite().all(dim=-1), torch.zeros_like(share))
