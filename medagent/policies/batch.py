"""Rows that a model reads and samples together, one token per step.

Rows are packed without holes: a row's place in the cache is its place in the text. A token that pads a row repeats the
position of the row's last one, so that no position lies beyond the row's text.

Shapes: S slots, Q tokens read, H hidden size, V vocabulary, M rows of the slot that has most.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from medagent.errors import PolicyError
from medagent.models.causal_lm import hidden_states, project
from medagent.policies.decoder_shape import BufferCache, DecoderShape
from medagent.policies.inversion import sample_tokens
from medagent.policies.turn_ends import TurnEnds
from medagent.policy import SampledTurn

LEAST_COMMON = 16  # tokens that all texts must begin with, to be read once
# Slots are read in groups of similar length: at most MOST_READ tokens, and 10% of padding above ENOUGH_READ tokens.
MOST_READ, ENOUGH_READ, PADDING = 8192, 512, 1.1
ENDED_SHARE = 1 / 8  # of the slots; above it, those that still run are moved together


@dataclass(eq=False)
class Dialogue:
    """The state of one dialogue in a batch."""

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
    """A turn being sampled. `tell` takes the turn, or the error."""

    dialogue: Dialogue
    max_tokens: int
    draws: NDArray[np.float64]
    tell: Callable[[SampledTurn | BaseException], None]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    before: int = field(init=False)  # tokens of the dialogue before this turn
    ended: bool = False

    def __post_init__(self) -> None:
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
    """A set of rows with a common cache buffer of shape [layers, 2, rows, heads, capacity, head_dim].

    Rows with the same text share a slot of the buffer, so samples of a question are read and sampled from as one until
    their tokens differ. Slots are numbered from 0. A row has one, and there are never more slots than rows.
    """

    def __init__(self, sampler: Sampler, rows: Sequence[TurnRow]) -> None:
        self._sampler, self._model, self._shape = sampler, sampler.model, sampler.shape
        self._rows = list(rows)
        lengths = [row.dialogue.length for row in rows]
        widest = max(len(row.dialogue.pending) for row in rows)
        capacity = max(
            length + max(widest, len(row.dialogue.pending) + row.max_tokens - len(row.token_ids))
            for length, row in zip(lengths, rows, strict=True)
        )
        self._buffer = self._shape.buffer(len(rows), capacity, self._model.device)
        self._lengths: list[int] = []  # of each slot
        self._temperatures: list[float] = []  # of each slot
        self._slots: dict[int, int] = {}  # id of a row -> slot
        slots: dict[tuple[float, int, tuple[int, ...]], int] = {}
        # In the order of what they read, so that slots of like length lie side by side.
        for row, length in sorted(zip(rows, lengths, strict=True), key=lambda each: len(each[0].dialogue.pending)):
            dialogue = row.dialogue
            key = (dialogue.temperature, length, (*dialogue.text, *dialogue.pending))
            if key not in slots:
                slots[key] = len(slots)
                self._lengths.append(length)
                self._temperatures.append(dialogue.temperature)
                if dialogue.cache is not None:
                    self._buffer[:, :, slots[key], :, :length] = dialogue.cache
            self._slots[id(row)] = slots[key]
            dialogue.cache = None

    def _save(self, row: TurnRow) -> None:
        slot = self._slots[id(row)]
        row.dialogue.cache = self._buffer[:, :, slot, :, : self._lengths[slot]]

    def release(self) -> None:
        """Hand each unfinished row its cache, so that another batch can take it over."""
        for row in self._rows:
            if not row.ended:
                self._save(row)

    def slot_of(self, row: TurnRow) -> int:
        """The slot of a row."""
        return self._slots[id(row)]

    @torch.no_grad()
    def step(self, rows: list[TurnRow]) -> list[TurnRow]:
        """Read the pending tokens of every row and sample one token each; returns the rows that go on."""
        self._move_together()
        self._read_common_prefix()
        hidden_NH, ends_S = self.read()
        last_S = torch.tensor([max(0, end - 1) for end in ends_S], device=hidden_NH.device)
        return self._sample(rows, project(self._model, hidden_NH.index_select(0, last_S)))

    @torch.no_grad()
    def read(self) -> tuple[Tensor, list[int]]:
        """Read the pending tokens of every slot.

        Returns hidden states, [N, H], and the place after each slot's last one; a slot's states lie side by side.
        """
        self._part()
        pending: list[list[int]] = [[]] * len(self._lengths)
        for row in self._rows:
            if not row.ended:
                pending[self._slots[id(row)]] = row.dialogue.pending
        states, ends, before = [], [], 0
        for first, after in groups_of_like_length([len(ids) for ids in pending]):
            hidden_SQH = self._read_group(first, pending[first:after])
            width = hidden_SQH.shape[1]
            ends += [before + number * width + len(ids) for number, ids in enumerate(pending[first:after])]
            states.append(hidden_SQH.flatten(0, 1))
            before += len(states[-1])
        self._lengths = [length + len(ids) for length, ids in zip(self._lengths, pending, strict=True)]
        for row in self._rows:
            if not row.ended:
                row.dialogue.text += row.dialogue.pending
                row.dialogue.pending = []
        return states[0] if len(states) == 1 else torch.cat(states), ends

    def _read_group(self, first: int, pending: Sequence[list[int]]) -> Tensor:
        """[S, Q, H] the states of so many slots from `first` on, padded to the widest."""
        device, pad = self._buffer.device, int(self._sampler.tokenizer.pad_token_id or 0)
        width = max(1, *map(len, pending))
        ids_SQ = torch.tensor([ids + [pad] * (width - len(ids)) for ids in pending], device=device)
        lengths_S = torch.tensor(self._lengths[first : first + len(pending)], device=device)
        last_S = torch.tensor([max(0, len(ids) - 1) for ids in pending], device=device)
        offsets_Q = torch.arange(width, device=device)
        places_SQ = lengths_S[:, None] + offsets_Q
        places_SQ = places_SQ.clamp(max=self._buffer.shape[4] - 1)  # slots whose rows have ended
        return self._forward(first, ids_SQ, lengths_S[:, None] + torch.minimum(offsets_Q, last_S[:, None]), places_SQ)

    def _forward(self, first: int, ids_SQ: Tensor, positions_SQ: Tensor, places_SQ: Tensor) -> Tensor:
        """[S, Q, H] the states of tokens that the slots from `first` on hold at these places."""
        reach = int(places_SQ.max()) + 1
        return hidden_states(
            self._model,
            input_ids=ids_SQ,
            position_ids=positions_SQ,
            attention_mask=self._shape.attention_mask(places_SQ, reach),
            past_key_values=BufferCache(self._buffer[:, :, first : first + len(ids_SQ)], places_SQ, reach),
            use_cache=True,
        )

    def _move_together(self) -> None:
        """Move the slots that still run into the places of ended ones, so that a step reads no ended rows."""
        going_on = {self._slots[id(row)] for row in self._rows if not row.ended}
        number = len(going_on)
        if len(self._lengths) - number < max(1, ENDED_SHARE * len(self._lengths)):
            return
        for row in self._rows:  # what an ended row has read is a view of a place that is written now
            if row.ended and self._sampler.keep_views and row.dialogue.cache is not None:
                row.dialogue.cache = row.dialogue.cache.clone()
        self._rows = [row for row in self._rows if not row.ended]
        free = [slot for slot in range(number) if slot not in going_on]
        moved = dict(zip(sorted(slot for slot in going_on if slot >= number), free, strict=True))
        for slot, place in moved.items():
            length = self._lengths[slot]
            self._buffer[:, :, place, :, :length] = self._buffer[:, :, slot, :, :length]
            self._lengths[place], self._temperatures[place] = length, self._temperatures[slot]
        self._slots = {id(row): moved.get(slot := self._slots[id(row)], slot) for row in self._rows}
        del self._lengths[number:], self._temperatures[number:]

    def _read_common_prefix(self) -> None:
        """Read the common beginning of all texts once, such as instructions, if nothing was read yet."""
        rows = [row for row in self._rows if not row.ended]
        if len(self._lengths) < 2 or any(self._lengths):
            return
        texts = zip(*(row.dialogue.pending[:-1] for row in rows), strict=False)
        common = sum(1 for _ in takewhile(lambda tokens: len(set(tokens)) == 1, texts))
        if common < LEAST_COMMON:
            return
        tokens = rows[0].dialogue.pending[:common]
        places_1Q = torch.arange(common, device=self._buffer.device)[None]
        ids_1Q = torch.tensor([tokens], device=self._buffer.device)
        self._forward(0, ids_1Q, places_1Q, places_1Q)
        self._buffer[:, :, 1 : len(self._lengths), :, :common] = self._buffer[:, :, :1, :, :common]
        self._lengths = [common] * len(self._lengths)
        for row in rows:
            row.dialogue.text, row.dialogue.pending = tokens[:], row.dialogue.pending[common:]

    def _part(self) -> None:
        """Give rows a slot of their own if their next tokens differ from those of the rows that share it."""
        first: dict[int, list[int]] = {}
        new: dict[tuple[int, tuple[int, ...]], int] = {}
        for row in self._rows:
            if row.ended:
                continue
            slot, pending = self._slots[id(row)], row.dialogue.pending
            if first.setdefault(slot, pending) != pending:
                key = (slot, tuple(pending))
                if key not in new:
                    new[key], length = len(self._lengths), self._lengths[slot]
                    self._buffer[:, :, new[key], :, :length] = self._buffer[:, :, slot, :, :length]
                    self._lengths.append(length)
                    self._temperatures.append(self._temperatures[slot])
                self._slots[id(row)] = new[key]

    def _sample(self, rows: Sequence[TurnRow], logits_SV: Tensor) -> list[TurnRow]:
        device = logits_SV.device
        slots, columns = [self._slots[id(row)] for row in rows], []
        draws: list[list[float]] = [[] for _ in self._lengths]  # of the rows of each slot
        for row, slot in zip(rows, slots, strict=True):
            columns.append(len(draws[slot]))
            draws[slot].append(row.draws[len(row.token_ids)] if len(row.token_ids) < row.max_tokens else 0.0)
        most = max(map(len, draws))
        drawn_SM = torch.tensor(
            [each + [0.0] * (most - len(each)) for each in draws], dtype=torch.float64, device=device
        )
        tokens_SM, logprobs_SM = sample_tokens(logits_SV, torch.tensor(self._temperatures, device=device), drawn_SM)
        token_rows, logprob_rows = tokens_SM.tolist(), logprobs_SM.tolist()
        return [
            row
            for row, slot, column in zip(rows, slots, columns, strict=True)
            if self._goes_on(row, token_rows[slot][column], logprob_rows[slot][column])
        ]

    def _goes_on(self, row: TurnRow, token: int, logprob: float) -> bool:
        # A score that is nan or +inf, or a row that is -inf throughout, makes every log-prob of the row nan.
        if not math.isfinite(logprob):
            error = (
                f"dialogue with seed {row.dialogue.seed}, turn {row.dialogue.turn}, token {len(row.token_ids)}: the "
                "model's scores hold no distribution (nan or infinite), wanted finite numbers. Its weights are damaged "
                "or its dtype overflows: go back to an earlier checkpoint, lower the learning rate, or set dtype to "
                "bfloat16 or float32."
            )
            row.fail(PolicyError(error))
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


def groups_of_like_length(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """The first slot of each group, and the one after its last.

    >>> groups_of_like_length([1, 1, 1])
    [(0, 3)]
    >>> groups_of_like_length([300, 300, 9000])
    [(0, 2), (2, 3)]
    """
    groups, start, widest, total = [], 0, 0, 0
    for slot, length in enumerate(lengths):
        padded = (slot - start + 1) * max(widest, length)
        wasteful = padded > ENOUGH_READ and padded > PADDING * (total + length)
        if slot > start and (padded > MOST_READ or wasteful):
            groups.append((start, slot))
            start, widest, total = slot, 0, 0
        widest, total = max(widest, length), total + length
    return [*groups, (start, len(lengths))]
