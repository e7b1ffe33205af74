"""The in-process policy: a Hugging Face model samples the waiting sessions together and keeps each one's KV cache.

No part of the context is computed twice. Sampling inverts the cumulative distribution with a uniform number. That
number follows from the session's seed, the turn and the position alone, so a sample does not depend on other rows.
"""

import asyncio
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Condition, Lock

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from medagent.errors import PolicyError
from medagent.models.causal_lm import hidden_states, project
from medagent.models.grouped_attention import use_grouped_attention
from medagent.pieces import Block
from medagent.policies.batch import Batch, Dialogue, Sampler, TurnRow
from medagent.policies.decoder_shape import shape_of
from medagent.policies.self_check import check_sampling
from medagent.policies.turn_ends import TurnEnds, end_token_ids
from medagent.policy import Policy, SampledTurn, Session

JOIN_SHARE, JOIN_STEPS = 8, 8  # rows join when they are an eighth of the running ones, or after eight tokens


class HFPolicy(Policy):
    """Samples turns with a causal language model.

    With `lockstep`, a batch starts when every open session waits. Batches are then the same in every run, hence the
    same numbers; training and evaluation use it. With `refill`, sessions join the batch as others end, at tokens that
    follow from what was sampled and not from how long a search took. Each session must then go on, or close, while the
    others are sampled. Without `lockstep`, waiting sessions join at any token, as serving needs. A model that cannot be
    sampled so is refused when the policy is made.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, lockstep: bool = True, refill: bool = False
    ) -> None:
        self.model, self.tokenizer, self._lockstep, self._refill = model, tokenizer, lockstep, refill
        use_grouped_attention(model)
        self.end_ids = end_token_ids(tokenizer, model)
        self._sampler = Sampler(model, tokenizer, shape_of(model), keep_views=lockstep)
        check_sampling(self._sampler)
        self._open: set[Dialogue] = set()
        self._waiting: list[TurnRow] = []
        self._running = False
        self._lock = Lock()
        self._changed = Condition(self._lock)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="policy")

    def open(self, *, seed: int, temperature: float, blocks: tuple[Block, ...]) -> "HFSession":
        session = HFSession(self, seed=seed, temperature=temperature, blocks=blocks)
        with self._lock:
            self._open.add(session.dialogue)
        return session

    @torch.no_grad()
    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Overwrite parameters by name; refused while sessions hold a KV cache of the old weights."""
        with self._lock:
            if self._open:
                raise PolicyError(f"{len(self._open)} sessions are open; close them before new weights are loaded.")
            self._changed.wait_for(lambda: not self._running)  # rows of closed sessions end at their next token
        own = dict(self.model.named_parameters())
        for name, value in weights:
            if name not in own:
                raise PolicyError(f"weight {name} is not a parameter of the sampling model.")
            own[name].copy_(value)

    @torch.no_grad()
    def logprobs(self, token_ids: list[int]) -> list[float]:
        """Log-probs of the tokens after the first at temperature 1, in one plain pass."""
        ids = torch.tensor([token_ids], device=self.model.device)
        scores = torch.log_softmax(project(self.model, hidden_states(self.model, input_ids=ids, use_cache=False)), -1)
        found: list[float] = scores[0, :-1].gather(1, ids[0, 1:, None])[:, 0].tolist()
        return found

    def option_logprobs(self, prompt_ids: Sequence[int], options: Sequence[Sequence[int]]) -> Tensor:
        """[O] float64, the log-prob of each option's ids after the prompt."""
        if all(len(ids) == 1 for ids in options):  # one pass tells of all
            last_V = self._next_logprobs(prompt_ids, [])[-1]
            found = [float(last_V[ids[0]]) for ids in options]
        else:
            found = [
                float(self._next_logprobs(prompt_ids, ids[:-1]).gather(1, torch.tensor(ids)[:, None]).sum())
                for ids in options
            ]
        return torch.tensor(found, dtype=torch.float64)

    @torch.no_grad()
    def _next_logprobs(self, prompt_ids: Sequence[int], read_ids: Sequence[int]) -> Tensor:
        """[R + 1, V] of the token after the prompt, and after each of the R ids read behind it."""
        ids_1T = torch.tensor([[*prompt_ids, *read_ids]], device=self.model.device)
        logits_RV = self.model(input_ids=ids_1T, logits_to_keep=len(read_ids) + 1).logits[0]
        return torch.Tensor(logits_RV.float().log_softmax(-1).cpu())

    def refuse_long(self, tokens: int) -> None:
        """Raise `PolicyError` where a text of so many tokens is longer than the model reads."""
        longest = self._sampler.shape.longest
        if longest is not None and tokens > longest.tokens:
            raise longest.exceeded(tokens)

    def _enqueue(self, row: TurnRow) -> None:
        with self._lock:
            self._waiting.append(row)
            self._changed.notify_all()
        self._kick()

    def _close(self, dialogue: Dialogue) -> None:
        with self._lock:
            dialogue.closed = True
            self._open.discard(dialogue)
            self._waiting = [row for row in self._waiting if row.dialogue is not dialogue]
            if not dialogue.sampling:  # otherwise the worker frees it
                dialogue.cache = None
            self._changed.notify_all()
        self._kick()

    def _kick(self) -> None:
        with self._lock:
            if self._running or not self._admissible():
                return
            self._running = True
        self._executor.submit(self._work)

    def _admissible(self) -> bool:
        """Whether waiting rows may start. Call it with the lock held."""
        return bool(self._waiting) and (not self._lockstep or self._all_sample_or_wait())

    def _all_sample_or_wait(self) -> bool:
        waiting = {row.dialogue for row in self._waiting}
        return all(each.sampling or each.failed or each in waiting for each in self._open)

    def _take_waiting(self) -> list[TurnRow]:
        """The rows that join now, if they may. Call it with the lock held."""
        if not self._admissible():
            return []
        joining, self._waiting = self._waiting, []
        for row in joining:
            row.dialogue.sampling = True
        return sorted(joining, key=lambda row: row.dialogue.seed)  # the order of arrival cannot change a batch

    def _work(self) -> None:
        """Run batches until nothing may start. It runs on the policy's own thread."""
        batch: Batch | None = None
        rows: list[TurnRow] = []
        joining: list[TurnRow] = []
        begun = steps = 0  # rows that began since others could join, and tokens sampled
        try:
            while True:
                with self._lock:
                    rows = self._without_closed(rows)
                    # Each time rows join, all caches move to a larger buffer.
                    if self._lockstep:
                        worth_it = not rows or (self._refill and JOIN_SHARE * (begun - len(rows)) >= len(rows))
                        if worth_it and rows:
                            self._changed.wait_for(self._all_sample_or_wait)
                            begun = len(rows)
                    else:
                        worth_it = JOIN_SHARE * len(self._waiting) >= len(rows) or steps >= JOIN_STEPS
                    joining = self._take_waiting() if worth_it else []
                    if not joining and not rows:
                        self._running = False
                        self._changed.notify_all()
                        return
                if joining and rows:  # apart at first, or all would be as wide as their prompts
                    reading, joining = self._read_apart(joining), []
                    started, rows = bool(reading), rows + reading
                else:
                    started, rows, joining = bool(joining), rows + joining, []
                if started or batch is None:
                    if batch is not None:
                        batch.release()
                    batch, begun, steps = Batch(self._sampler, rows), len(rows), 0
                rows, steps = batch.step(rows), steps + 1
        except BaseException as error:  # every waiting caller gets it
            with self._lock:
                rows, self._waiting, self._running = rows + joining + self._waiting, [], False
                self._changed.notify_all()
            for row in rows:
                row.fail(error)

    def _read_apart(self, joining: list[TurnRow]) -> list[TurnRow]:
        """The rows that have not ended after their first token. If reading fails, only they fail."""
        try:
            apart = Batch(self._sampler, joining)
            reading = apart.step(joining)
            apart.release()
            return reading
        except Exception as error:
            for row in joining:
                row.fail(error)
            return []

    @staticmethod
    def _without_closed(rows: list[TurnRow]) -> list[TurnRow]:
        """Drop the rows whose dialogue was closed while they were sampled; call with the lock held."""
        for row in rows:
            if row.dialogue.closed:
                row.ended, row.dialogue.sampling, row.dialogue.cache = True, False, None
        return [row for row in rows if not row.ended]


class HFSession(Session):
    """A dialogue with an `HFPolicy`, which holds the KV cache of what was read so far."""

    def __init__(self, policy: HFPolicy, *, seed: int, temperature: float, blocks: tuple[Block, ...]) -> None:
        self.dialogue = Dialogue(seed, temperature, TurnEnds.of(policy.tokenizer, blocks, policy.end_ids))
        self._policy = policy

    def append(self, token_ids: list[int]) -> None:
        self.dialogue.pending += token_ids

    async def sample(self, *, max_tokens: int) -> SampledTurn:
        dialogue = self.dialogue
        if dialogue.failed:
            raise PolicyError("an earlier turn of this dialogue failed: close it and open another.")
        if not dialogue.pending:
            raise PolicyError("nothing to continue from: append the prompt or an observation before sampling a turn.")
        loop = asyncio.get_running_loop()
        draws = np.random.default_rng((dialogue.seed, dialogue.turn)).random(max_tokens)
        dialogue.turn += 1
        future: asyncio.Future[SampledTurn] = loop.create_future()
        row = TurnRow(dialogue, max_tokens, draws, partial(_tell, loop, future))
        self._policy.refuse_long(row.before)
        self._policy._enqueue(row)
        return await future

    def close(self) -> None:
        self._policy._close(self.dialogue)


def _tell(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[SampledTurn], outcome: SampledTurn | BaseException
) -> None:
    def settle() -> None:
        if future.done():
            return
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:
        if not loop.is_closed():  # nobody waits on a closed loop
            raise
