"""Rows that a model reads and samples together, one token per step.

Rows are packed without holes: a row's place in the cache is its place in the text. A token that pads a row repeats the
position of the row's last one, so that no position lies beyond the row's text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from medagent.causal_lm import hidden_states, project
from medagent.errors import PolicyError
from medagent.policies.decoder_shape import DecoderShape
from medagent.policies.kv_cache import BufferCache
from medagent.policies.turn_ends import TurnEnds
from medagent.policy import SampledTurn


@dataclass(eq=False)
class Dialogue:
    """What a batch needs to know of one dialogue."""

    seed: int
    temperature: float
    ends: TurnEnds
    pending: list[int] = field(default_factory=list)  # not read yet
    text: list[int] = field(default_factory=list)  # what the cache holds
    cache: Tensor | None = None  # [layers, 2, heads, length, head_dim]
    turn: int = 0  # the number of the turn that is sampled, from 1
    closed: bool = False
    sampling: bool = False
    failed: bool = False  # its cache is lost

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return 0 if self.cache is None else int(self.cache.shape[3])


@dataclass(eq=False)
class TurnRow:
    """A turn being sampled. `tell` takes the turn, or what went wrong."""

    dialogue: Dialogue
    max_tokens: int
    draws: NDArray[np.float64]
    tell: Callable[[SampledTurn | BaseException], None]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    before: int = field(init=False)  # tokens of the dialogue before this turn
    ended: bool = False

    def __post_init__(self) -> None:
        """Count what the dialogue holds."""
        self.before = self.dialogue.length + len(self.dialogue.pending)

    def fail(self, error: BaseException) -> None:
        """End the row without a turn."""
        self.ended, self.dialogue.sampling, self.dialogue.failed = True, False, True
        self.tell(error)


@dataclass(frozen=True)
class Sampler:
    """A model as batches use it. With `keep_views`, a cache between turns stays a view of its batch's buffer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    shape: DecoderShape
    keep_views: bool


class Batch:
    """A set of rows with a common cache buffer of shape [layers, 2, rows, heads, capacity, head_dim]."""

    def __init__(self, sampler: Sampler, rows: Sequence[TurnRow]) -> None:
        self._sampler, self._model, self._shape = sampler, sampler.model, sampler.shape
        self._rows = list(rows)
        device = self._model.device
        lengths = [row.dialogue.length for row in rows]
        widest = max(len(row.dialogue.pending) for row in rows)
        capacity = max(
            length + max(widest, len(row.dialogue.pending) + row.max_tokens - len(row.token_ids))
            for length, row in zip(lengths, rows, strict=True)
        )
        self._buffer = self._shape.buffer(len(rows), capacity, device)
        for index, row in enumerate(rows):
            if row.dialogue.cache is not None:
                self._buffer[:, :, index, :, : lengths[index]] = row.dialogue.cache
                row.dialogue.cache = None
        self._lengths = torch.tensor(lengths, device=device)
        self._index = {id(row): index for index, row in enumerate(rows)}
        self._temperatures = torch.tensor([row.dialogue.temperature for row in rows], device=device)

    @property
    def num_rows(self) -> int:
        """Rows that it was made for."""
        return len(self._rows)

    def _save(self, row: TurnRow) -> None:
        index = self._index[id(row)]
        row.dialogue.cache = self._buffer[:, :, index, :, : int(self._lengths[index])]

    def release(self) -> None:
        """Hand each unfinished row its cache, so that another batch can take it over."""
        for row in self._rows:
            if not row.ended:
                self._save(row)

    @torch.no_grad()
    def step(self, rows: list[TurnRow]) -> list[TurnRow]:
        """Read the pending tokens of every row and sample one token each; returns the rows that go on."""
        hidden_BQH, last_B = self.read()
        return self._sample(
            rows, project(self._model, hidden_BQH[torch.arange(len(self._rows), device=last_B.device), last_B])
        )

    @torch.no_grad()
    def read(self) -> tuple[Tensor, Tensor]:
        """Read the pending tokens of every row: hidden states, [B, Q, H], and the place of each row's last, [B].

        Rows whose whole texts are the same are read once, as samples of a question are at their prompt.
        """
        pad = int(self._sampler.tokenizer.pad_token_id or 0)
        pending = [[pad] if row.ended else row.dialogue.pending for row in self._rows]
        counts = torch.tensor([0 if row.ended else len(row.dialogue.pending) for row in self._rows])
        counts = counts.to(self._lengths.device)
        last_B = (counts - 1).clamp(min=0)
        width = max(map(len, pending))
        ids_BQ = torch.tensor([ids + [pad] * (width - len(ids)) for ids in pending], device=self._lengths.device)
        once, of_B = self._distinct() if width > 1 else (None, None)
        hidden_DQH = self._pass(ids_BQ, last_B, once, of_B)
        self._lengths = self._lengths + counts
        for row in self._rows:
            if not row.ended:
                row.dialogue.text += row.dialogue.pending
                row.dialogue.pending = []
        return hidden_DQH if of_B is None else hidden_DQH.index_select(0, of_B), last_B

    def _distinct(self) -> tuple[list[int] | None, Tensor | None]:
        """The first row of each text, and for every row which of these it is, [B]; none where all texts differ."""
        numbers: dict[tuple[int, ...], int] = {}
        once: list[int] = []
        of_rows = []
        for index, row in enumerate(self._rows):
            text = (*row.dialogue.text, *row.dialogue.pending, *((-1, index) if row.ended else ()))
            if text not in numbers:
                numbers[text] = len(once)
                once.append(index)
            of_rows.append(numbers[text])
        if len(once) == len(self._rows):
            return None, None
        return once, torch.tensor(of_rows, device=self._lengths.device)

    def _pass(self, ids_BQ: Tensor, last_B: Tensor, once: list[int] | None, of_B: Tensor | None) -> Tensor:
        """[D, Q, H] hidden states of the rows `once` (none: of all). Others of the same text get their cache."""
        buffer, lengths_D, last_D = self._buffer, self._lengths, last_B
        offsets_Q = torch.arange(ids_BQ.shape[1], device=self._lengths.device)
        if once is not None:
            index = torch.tensor(once, device=self._lengths.device)
            ids_BQ, lengths_D, last_D = ids_BQ[index], lengths_D[index], last_B[index]
        places_DQ = lengths_D[:, None] + offsets_Q
        places_DQ = places_DQ.clamp(max=self._buffer.shape[4] - 1)  # rows that have ended
        reach = int(places_DQ.max()) + 1
        if once is not None:
            buffer = self._buffer[:, :, index, :, :reach]  # a copy
        hidden_DQH = hidden_states(
            self._model,
            input_ids=ids_BQ,
            position_ids=lengths_D[:, None] + torch.minimum(offsets_Q, last_D[:, None]),
            attention_mask=self._shape.attention_mask(places_DQ, reach),
            past_key_values=BufferCache(buffer, places_DQ, reach),
            use_cache=True,
        )
        if of_B is not None:
            for whole, read in zip(self._buffer, buffer, strict=True):  # a layer at a time, as each makes a copy
                whole[:, :, :, :reach] = read.index_select(1, of_B)
        return hidden_DQH

    def _sample(self, rows: Sequence[TurnRow], logits_BV: Tensor) -> list[TurnRow]:
        greedy = self._temperatures == 0
        logprobs_BV = torch.log_softmax(logits_BV / self._temperatures.masked_fill(greedy, 1.0)[:, None], dim=-1)
        draws = [row.draws[len(row.token_ids)] if len(row.token_ids) < row.max_tokens else 0.0 for row in self._rows]
        cumulative_BV = logprobs_BV.double().exp().cumsum(dim=-1)
        marks = torch.tensor(draws, dtype=torch.float64, device=logits_BV.device) * cumulative_BV[:, -1]
        sampled = torch.searchsorted(cumulative_BV, marks[:, None], right=True)[:, 0].clamp(max=logits_BV.shape[1] - 1)
        tokens = torch.where(greedy, logits_BV.argmax(dim=-1), sampled)
        chosen = logprobs_BV.gather(1, tokens[:, None])[:, 0]
        token_list, logprob_list = tokens.tolist(), chosen.tolist()
        return [
            row
            for row in rows
            if self._goes_on(row, token_list[self._index[id(row)]], logprob_list[self._index[id(row)]])
        ]

    def _goes_on(self, row: TurnRow, token: int, logprob: float) -> bool:
        # A score that is nan or +inf, or a row that is -inf throughout, makes every log-prob of the row nan.
        if not math.isfinite(logprob):
            row.fail(_not_finite(row))
            return False
        row.token_ids.append(token)
        row.logprobs.append(logprob)
        dialogue = row.dialogue
        dialogue.pending = [token]
        stop = dialogue.ends.stop(row.token_ids, row.max_tokens)
        if stop is None:
            limit = self._shape.longest
            if limit is not None and row.before + len(row.token_ids) > limit.tokens:
                row.fail(limit.exceeded(row.before + len(row.token_ids)))
                return False
            return True
        self._save(row)
        if not self._sampler.keep_views and dialogue.cache is not None:
            dialogue.cache = dialogue.cache.clone()  # a view would keep the whole batch's buffer until the next turn
        row.ended, dialogue.sampling = True, False
        row.tell(dialogue.ends.turn(row.token_ids, row.logprobs, stop))
        return False


def _not_finite(row: TurnRow) -> PolicyError:
    return PolicyError(
        f"dialogue with seed {row.dialogue.seed}, turn {row.dialogue.turn}, token {len(row.token_ids)}: the model's "
        "scores hold no distribution (nan or infinite), wanted finite numbers. Its weights are damaged or its dtype "
        "overflows: go back to an earlier checkpoint, lower the learning rate, or set dtype to bfloat16 or float32."
    )
