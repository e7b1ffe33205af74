"""The in-process policy: a Hugging Face model samples the waiting sessions together and keeps each one's KV cache.

Rows are packed without holes: a row's position in the cache is its position in the text. The attention mask is then
"key position <= query position", and no part of the context is computed twice. Sampling inverts the cumulative
distribution with a uniform number. That number follows from the session's seed, the turn and the position alone, so a
sample does not depend on the other rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Condition, Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from medagent.causal_lm import hidden_states, project
from medagent.errors import PolicyError
from medagent.policies.kv_cache import BufferCache
from medagent.policies.turn_ends import TurnEnds
from medagent.policy import SampledTurn, TurnStop
from medagent.protocol import Block

JOIN_SHARE, JOIN_STEPS = 8, 8  # rows join when they are an eighth of the running ones, or after eight tokens


class HFPolicy:
    """Samples turns with a causal language model.

    With `lockstep`, a batch starts when every open session waits. Batches are then full, and the same in every run,
    hence the same numbers; training and evaluation use it. Without it, waiting sessions join at any token, as serving
    needs.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, lockstep: bool = True) -> None:
        self._model, self._tokenizer, self._lockstep = model, tokenizer, lockstep
        self._open: set[HFSession] = set()
        self._waiting: list[_Row] = []
        self._running = False
        self._lock = Lock()
        self._idle = Condition(self._lock)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="policy")
        config = model.config
        self._heads = config.num_key_value_heads
        self._head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._layers = config.num_hidden_layers
        self._turn_ends = TurnEnds(tokenizer)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer."""
        return self._tokenizer

    @property
    def model(self) -> PreTrainedModel:
        """The model that samples."""
        return self._model

    def open(self, *, seed: int, temperature: float, blocks: tuple[Block, ...]) -> HFSession:
        """See `Policy.open`."""
        session = HFSession(self, seed=seed, temperature=temperature, blocks=blocks)
        with self._lock:
            self._open.add(session)
        return session

    async def disconnect(self) -> None:
        """See `Policy.disconnect`: nothing belongs to the loop."""

    @torch.no_grad()
    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Overwrite parameters by name; refused while sessions hold a KV cache of the old weights."""
        with self._lock:
            if self._open:
                raise PolicyError(f"{len(self._open)} sessions are open; close them before new weights are loaded.")
            self._idle.wait_for(lambda: not self._running)  # rows of closed sessions end at their next token
        own = dict(self._model.named_parameters())
        for name, value in weights:
            if name not in own:
                raise PolicyError(f"weight {name} is not a parameter of the sampling model.")
            own[name].copy_(value)

    def _enqueue(self, row: _Row) -> None:
        with self._lock:
            self._waiting.append(row)
        self._kick()

    def _close(self, session: HFSession) -> None:
        with self._lock:
            session.closed = True
            self._open.discard(session)
            self._waiting = [row for row in self._waiting if row.session is not session]
            if not session.sampling:  # otherwise the worker frees it
                session.cache = None
        self._kick()

    def _kick(self) -> None:
        with self._lock:
            if self._running or not self._admissible():
                return
            self._running = True
        self._executor.submit(self._work)

    def _admissible(self) -> bool:
        """Whether waiting rows may start. Call it with the lock held."""
        return bool(self._waiting) and (not self._lockstep or len(self._waiting) == len(self._open))

    def _worth_it(self, running: int, steps: int) -> bool:
        """Whether waiting rows may join `running` ones now, `steps` after the last joined.

        Each time rows join, all caches move to a larger buffer.
        """
        return JOIN_SHARE * len(self._waiting) >= running or steps >= JOIN_STEPS

    def _work(self) -> None:
        """Run batches until nothing may start. It runs on the policy's own thread."""
        batch: _Batch | None = None
        rows: list[_Row] = []
        joining: list[_Row] = []
        steps = 0
        try:
            while True:
                with self._lock:
                    rows = self._without_closed(rows)
                    joining = self._waiting if self._admissible() and self._worth_it(len(rows), steps) else []
                    if joining:
                        self._waiting = []
                        for row in joining:
                            row.session.sampling = True
                    elif not rows:
                        self._running = False
                        self._idle.notify_all()
                        return
                # Sorted, so that the order of arrival cannot change a batch.
                joining = sorted(joining, key=lambda row: row.session.seed)
                if joining and rows:  # apart at first, or all would be as wide as their prompts
                    reading, joining = self._read_apart(joining), []
                    started, rows = bool(reading), rows + reading
                else:
                    started, rows, joining = bool(joining), rows + joining, []
                if started or batch is None or 2 * len(rows) <= batch.num_rows:
                    if batch is not None:
                        batch.release()
                    batch, steps = _Batch(self, rows), 0
                rows, steps = batch.step(rows), steps + 1
        except BaseException as error:  # every waiting caller gets it
            with self._lock:
                rows, self._waiting, self._running = rows + joining + self._waiting, [], False
                self._idle.notify_all()
            for row in rows:
                row.fail(error)

    def _read_apart(self, joining: list[_Row]) -> list[_Row]:
        """The rows that go on after their first token. Where reading fails, only they fail."""
        try:
            apart = _Batch(self, joining)
            reading = apart.step(joining)
            apart.release()
            return reading
        except Exception as error:
            for row in joining:
                row.ended, row.session.sampling = True, False
                row.fail(error)
            return []

    @staticmethod
    def _without_closed(rows: list[_Row]) -> list[_Row]:
        """Drop the rows whose dialogue was closed while they were sampled; call with the lock held."""
        for row in rows:
            if row.session.closed:
                row.ended, row.session.sampling, row.session.cache = True, False, None
        return [row for row in rows if not row.ended]


class HFSession:
    """A dialogue with an `HFPolicy`; holds the KV cache of what was read so far."""

    def __init__(self, policy: HFPolicy, *, seed: int, temperature: float, blocks: tuple[Block, ...]) -> None:
        self.seed, self.temperature = seed, temperature
        self.ends = tuple(block.end for block in blocks)
        self.pending: list[int] = []
        self.cache: Tensor | None = None  # [layers, 2, heads, length, head_dim]
        self.closed = self.sampling = False
        self._policy, self._turn = policy, 0

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return 0 if self.cache is None else int(self.cache.shape[3])

    def reseed(self, seed: int) -> None:
        """Let the next turn's sample follow from this seed alone."""
        self.seed, self._turn = seed, 0

    def append(self, token_ids: list[int]) -> None:
        """See `Session.append`."""
        self.pending += token_ids

    async def sample(self, *, max_tokens: int) -> SampledTurn:
        """See `Session.sample`."""
        if not self.pending:
            raise PolicyError("nothing to continue from: append the prompt or an observation before sampling a turn.")
        loop = asyncio.get_running_loop()
        draws = np.random.default_rng((self.seed, self._turn)).random(max_tokens)
        self._turn += 1
        future: asyncio.Future[SampledTurn] = loop.create_future()
        self._policy._enqueue(_Row(self, max_tokens, draws, loop, future))
        return await future

    def close(self) -> None:
        """See `Session.close`."""
        self._policy._close(self)


@dataclass
class _Row:
    """A turn being sampled."""

    session: HFSession
    max_tokens: int
    draws: NDArray[np.float64]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[SampledTurn]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ended: bool = False

    def finish(self, turn: SampledTurn) -> None:
        self._tell(lambda: None if self.future.done() else self.future.set_result(turn))

    def fail(self, error: BaseException) -> None:
        self._tell(lambda: None if self.future.done() else self.future.set_exception(error))

    def _tell(self, outcome: Callable[[], None]) -> None:
        try:
            self.loop.call_soon_threadsafe(outcome)
        except RuntimeError:
            if not self.loop.is_closed():  # nobody waits on a closed loop
                raise


class _Batch:
    """A set of rows with a common cache buffer of shape [layers, 2, rows, heads, capacity, head_dim]."""

    def __init__(self, policy: HFPolicy, rows: list[_Row]) -> None:
        self._policy, self._model = policy, policy._model
        self._rows = list(rows)
        device, dtype = self._model.device, self._model.dtype
        lengths = [row.session.length for row in rows]
        widest = max(len(row.session.pending) for row in rows)
        capacity = max(
            length + max(widest, len(row.session.pending) + row.max_tokens - len(row.token_ids))
            for length, row in zip(lengths, rows, strict=True)
        )
        shape = (policy._layers, 2, len(rows), policy._heads, capacity, policy._head_dim)
        self._buffer = torch.zeros(shape, device=device, dtype=dtype)
        for index, row in enumerate(rows):
            if row.session.cache is not None:
                self._buffer[:, :, index, :, : lengths[index]] = row.session.cache
                row.session.cache = None
        self._lengths = torch.tensor(lengths, device=device)
        self._index = {id(row): index for index, row in enumerate(rows)}
        self._temperatures = torch.tensor([row.session.temperature for row in rows], device=device)

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    def _save(self, row: _Row) -> None:
        index = self._index[id(row)]
        row.session.cache = self._buffer[:, :, index, :, : int(self._lengths[index])]

    def release(self) -> None:
        """Hand each unfinished row its cache, so that another batch can take it over."""
        for row in self._rows:
            if not row.ended:
                self._save(row)

    @torch.no_grad()
    def step(self, rows: list[_Row]) -> list[_Row]:
        """Read the pending tokens of every row and sample one token each; returns the rows that go on."""
        pad = int(self._policy._tokenizer.pad_token_id or 0)
        pending = [[pad] if row.ended else row.session.pending for row in self._rows]
        counts = torch.tensor([0 if row.ended else len(row.session.pending) for row in self._rows])
        counts = counts.to(self._lengths.device)
        width = max(map(len, pending))
        ids_BQ = torch.tensor([ids + [pad] * (width - len(ids)) for ids in pending], device=self._lengths.device)
        positions_BQ = self._lengths[:, None] + torch.arange(width, device=self._lengths.device)
        positions_BQ = positions_BQ.clamp(max=self._buffer.shape[4] - 1)  # rows that have ended
        reach = int(positions_BQ.max()) + 1
        mask_B1QK = torch.arange(reach, device=positions_BQ.device) <= positions_BQ[:, None, :, None]
        hidden_BQH = hidden_states(
            self._model,
            input_ids=ids_BQ,
            position_ids=positions_BQ,
            attention_mask=mask_B1QK,
            past_key_values=BufferCache(self._buffer, positions_BQ, reach),
            use_cache=True,
        )
        last = (counts - 1).clamp(min=0)
        logits_BV = project(self._model, hidden_BQH[torch.arange(len(self._rows), device=last.device), last])
        self._lengths = self._lengths + counts
        for row in rows:
            row.session.pending = []
        return self._sample(rows, logits_BV)

    def _sample(self, rows: Sequence[_Row], logits_BV: Tensor) -> list[_Row]:
        greedy = self._temperatures == 0
        logprobs_BV = torch.log_softmax(logits_BV / self._temperatures.masked_fill(greedy, 1.0)[:, None], dim=-1)
        draws = [row.draws[len(row.token_ids)] if len(row.token_ids) < row.max_tokens else 0.0 for row in self._rows]
        cumulative_BV = logprobs_BV.double().exp().cumsum(dim=-1)
        marks = torch.tensor(draws, dtype=torch.float64, device=logits_BV.device) * cumulative_BV[:, -1]
        sampled = torch.searchsorted(cumulative_BV, marks[:, None], right=True)[:, 0].clamp(max=logits_BV.shape[1] - 1)
        tokens = torch.where(greedy, logits_BV.argmax(dim=-1), sampled)
        chosen = logprobs_BV.gather(1, tokens[:, None])[:, 0]
        token_list, logprob_list = tokens.tolist(), chosen.tolist()
        going_on = []
        for row in rows:
            index = self._index[id(row)]
            row.token_ids.append(token_list[index])
            row.logprobs.append(logprob_list[index])
            row.session.pending = [token_list[index]]
            stop = self._stop(row)
            if stop is None:
                going_on.append(row)
                continue
            self._save(row)
            if not self._policy._lockstep and row.session.cache is not None:
                row.session.cache = (
                    row.session.cache.clone()
                )  # a view would keep the whole batch's buffer until the next turn
            row.ended, row.session.sampling = True, False
            text = str(self._policy._tokenizer.decode(row.token_ids, skip_special_tokens=False))
            row.finish(SampledTurn(tuple(row.token_ids), tuple(row.logprobs), text, stop))
        return going_on

    def _stop(self, row: _Row) -> TurnStop | None:
        token = row.token_ids[-1]
        if self._policy._turn_ends.ended(row.token_ids, row.session.ends):
            return TurnStop.TAG
        if token == self._policy._tokenizer.eos_token_id:
            return TurnStop.END_OF_TEXT
        return TurnStop.LENGTH if len(row.token_ids) >= row.max_tokens else None
