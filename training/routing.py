"""Routing replay of a mixture of experts (arXiv 2512.01374): the policy's passes choose the experts of a record.

`r2` replays the trainer's choice before the update, `r3` the sampler's. Tokens without a record choose live.

Shapes: B rollouts, T tokens, N tokens of a pass, L routers, K experts per token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from medagent.errors import PolicyError
from medagent.routing import Routers, no_record
from medagent.types import Rollout

RoutingReplay = Literal["none", "r2", "r3"]
SHIFTED = 0.05  # by how much more of the experts must agree one place further on


@dataclass
class Routing:
    """The routing of one pass: what it replays, and what it chose where `records` is true."""

    routers: Routers
    experts_BTLK: Tensor | None = None
    """[B, T, L, K] what is replayed."""
    records: bool = False
    chosen_BTLK: Tensor | None = None
    """[B, T, L, K] what the pass chose, once it was made."""

    def keys(self, token_ids_BT: Tensor) -> Tensor:
        """See `distinct`."""
        return distinct(token_ids_BT, self.experts_BTLK)

    @contextmanager
    def reading(self, places_N: Tensor, nodes_BT: Tensor, read_BT: Tensor) -> Iterator[None]:
        """Replay and record at `places_N` of [B * T]; `nodes_BT` numbers the tokens that `read_BT` marks."""
        replayed = None if self.experts_BTLK is None else self.experts_BTLK.flatten(0, 1)[places_N]
        with self.routers.replayed(replayed):
            if not self.records:
                yield
                return
            with self.routers.recorded() as recording:
                yield
        chosen_NLK = recording.experts
        none = no_record(chosen_NLK.dtype)
        self.chosen_BTLK = chosen_NLK.new_full((*read_BT.shape, *chosen_NLK.shape[1:]), none)
        self.chosen_BTLK[read_BT] = chosen_NLK[nodes_BT[read_BT]]


def distinct(token_ids_BT: Tensor, experts_BTLK: Tensor | None) -> Tensor:
    """[B, T] integer: equal where the tokens are, and their records (two others collide once in 2^64)."""
    if experts_BTLK is None:
        return token_ids_BT
    generator = torch.Generator().manual_seed(0)
    limits = torch.iinfo(torch.long)
    factors = torch.randint(limits.min, limits.max, (experts_BTLK[0, 0].numel(),), generator=generator)
    factors = factors.to(experts_BTLK.device)
    rows = [((1 + experts_TLK.flatten(1).long()) * factors).sum(dim=1) for experts_TLK in experts_BTLK]
    return torch.stack(rows) + token_ids_BT


def experts_of(rollouts: Sequence[Rollout], width: int) -> Tensor | None:
    """[B, T, L, K] the sampler's experts; None without records; PolicyError if one fits other tokens."""
    records = [rollout.routing for rollout in rollouts]
    first = next((record for record in records if record is not None), None)
    if first is None:
        return None
    dtype: torch.dtype = getattr(torch, first.dtype)
    experts_BTLK = torch.full((len(rollouts), width, first.layers, first.top_k), no_record(dtype), dtype=dtype)
    for row, (rollout, record) in enumerate(zip(rollouts, records, strict=True)):
        mask = rollout.loss_mask
        read = max((place for place, acts in enumerate(mask) if acts), default=0)
        found = 0 if record is None else len(record)
        if any(mask) and found != read:
            raise PolicyError(
                f"rollout of {rollout.question.id}: found experts of {found} tokens, wanted those of the {read} before "
                "its last sampled one. The sampler's record and its tokens do not belong together."
            )
        if record is not None and found:
            experts_BTLK[row, :found] = torch.from_numpy(record.experts.copy())
    return experts_BTLK


def placed(whole_BTLK: Tensor | None, part_BTLK: Tensor, rows: Sequence[int], shape: Sequence[int]) -> Tensor:
    """The experts of all rollouts, [B, T] in shape, with those of some rows put in; made where there were none yet."""
    if whole_BTLK is None:
        none = no_record(part_BTLK.dtype)
        whole_BTLK = torch.full((*shape, *part_BTLK.shape[2:]), none, dtype=part_BTLK.dtype)
    whole_BTLK[list(rows), : part_BTLK.shape[1]] = part_BTLK.cpu()
    return whole_BTLK


def same_share(one_BTLK: Tensor, other_BTLK: Tensor, marked_BT: Tensor) -> Tensor:
    """[A] the share of each marked token's experts that both chose, over all layers."""
    one, other = one_BTLK[marked_BT], other_BTLK[marked_BT]
    return (one[..., :, None] == other[..., None, :]).any(dim=-1).float().mean(dim=(1, 2))


def refuse_shifted(sampler_BTLK: Tensor, trainer_BTLK: Tensor, both_BT: Tensor) -> None:
    """Raise PolicyError if records fit the tokens beside theirs better than their own."""
    pair_BT = both_BT[:, 1:] & both_BT[:, :-1]
    if not bool(pair_BT.any()):
        return
    here = same_share(sampler_BTLK[:, 1:], trainer_BTLK[:, 1:], pair_BT).mean()
    for name, one, other in (
        ("earlier", sampler_BTLK[:, 1:], trainer_BTLK[:, :-1]),
        ("later", sampler_BTLK[:, :-1], trainer_BTLK[:, 1:]),
    ):
        there = same_share(one, other, pair_BT).mean()
        if float(there - here) > SHIFTED:
            raise PolicyError(
                f"routing replay: {float(here):.0%} of the sampler's experts are the trainer's, and {float(there):.0%} "
                f"are those of one token {name}. The records are shifted: take another version of the sampler, or set "
                "model.routing_replay to none."
            )
