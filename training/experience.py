"""From graded rollouts to micro-batches of tensors; position t holds what belongs to token t, aligned once, here.

Shapes: B rollouts, T tokens. The same tensors serve every algorithm; only `ratio_segments_BT` may be overwritten.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

from medagent.types import Rollout
from training.objectives import ratio_segments

Reduction = Literal["rollout-mean", "token-mean"]


@dataclass
class Experience:
    """A micro-batch. Boolean `mask_BT` marks action tokens; off it every float is 0 and every id -1.

    `evidence_BKF` is what `training.critic_evidence` knows before turn k; F is 0 unless a critic sees it.
    `old_logprobs_BT` are those of the policy that importance weights are taken against, and `truncation_BT` the
    constant factor of every policy term (1 in mode `behaviour`). `groups_B` numbers the rollouts' questions.
    `loss_weights_BT` is the share of each action token in its optimizer step, already multiplied by the factors that
    Lightning (accumulation) and DDP (averaging) divide by; `value_weights_BT` the same for the tokens where the
    critic is read. A `critic_only` batch trains the critic alone. `metrics` ride along for logging with the
    iteration's first batch.
    """

    token_ids_BT: Tensor
    attention_BT: Tensor
    mask_BT: Tensor
    turn_ids_BT: Tensor
    ratio_segments_BT: Tensor
    groups_B: Tensor
    evidence_BKF: Tensor
    rollout_logprobs_BT: Tensor
    old_logprobs_BT: Tensor
    truncation_BT: Tensor
    reference_logprobs_BT: Tensor
    values_BT: Tensor
    rewards_BT: Tensor
    advantages_BT: Tensor
    returns_BT: Tensor
    loss_weights_BT: Tensor
    value_weights_BT: Tensor
    metrics: dict[str, float]
    critic_only: bool = False

    def to(self, device: torch.device | str, **kwargs: Any) -> Experience:
        """A copy on the device (Lightning calls this)."""
        moved = {
            item.name: getattr(self, item.name).to(device, **kwargs)
            for item in fields(self)
            if isinstance(getattr(self, item.name), Tensor)
        }
        return replace(self, **moved)

    def rows(self, indices: Sequence[int]) -> Experience:
        """The chosen rollouts, cut to the longest of them."""
        index = torch.tensor(indices, dtype=torch.long)
        width = max(1, int(self.attention_BT[index].sum(dim=1).max()))
        chosen: dict[str, Any] = {}
        for item in fields(self):
            tensor = getattr(self, item.name)
            if isinstance(tensor, Tensor):
                chosen[item.name] = tensor[index, :width] if tensor.ndim == 2 else tensor[index]
        return replace(self, **chosen, metrics={})

    def evidence_at(self, read_BT: Tensor, *, after_last: bool = False) -> Tensor:
        """[A, F] evidence before the turn of each token that is read.

        With `after_last` a token beyond a rollout's end is read too, with the evidence of its end.
        """
        turns_BT = self.turn_ids_BT
        if after_last:
            turns_BT = torch.cat([turns_BT, torch.full_like(turns_BT[:, :1], -1)], dim=1)
            ends_B = turns_BT.max(dim=1, keepdim=True).values + 1
            turns_BT = turns_BT.scatter(1, self.attention_BT.sum(dim=1, keepdim=True), ends_B)
        rows_BT = torch.arange(len(turns_BT), device=turns_BT.device)[:, None].expand_as(turns_BT)
        return self.evidence_BKF[rows_BT[read_BT], turns_BT[read_BT]]

    def idle(self) -> Experience:
        """The shortest row, acting nowhere: a pass over it adds nothing to any sum."""
        part = self.rows([int(self.attention_BT.sum(dim=1).argmin())])
        off, zero = torch.zeros_like(part.mask_BT), torch.zeros_like(part.loss_weights_BT)
        return replace(
            part,
            mask_BT=off,
            turn_ids_BT=torch.full_like(part.turn_ids_BT, -1),
            ratio_segments_BT=torch.full_like(part.ratio_segments_BT, -1),
            loss_weights_BT=zero,
            value_weights_BT=zero,
        )


def tensorize(rollouts: Sequence[Rollout], *, pad_id: int, num_samples: int = 1) -> Experience:
    """Pad rollouts to the longest; log-probs of the reference, values, evidence, advantages and weights are still zero.

    A group is `num_samples` rollouts of one question.
    """
    width = max(len(rollout.token_ids) for rollout in rollouts)
    shape = (len(rollouts), width)
    ids, turns = torch.full(shape, pad_id), torch.full(shape, -1)
    attention, mask = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
    logprobs, rewards = torch.zeros(shape), torch.zeros(shape)
    numbers: dict[tuple[str, int], int] = {}
    groups = torch.zeros(len(rollouts), dtype=torch.long)
    for row, rollout in enumerate(rollouts):
        length = len(rollout.token_ids)
        ids[row, :length] = torch.tensor(rollout.token_ids)
        attention[row, :length] = True
        mask[row, :length] = torch.tensor(rollout.loss_mask)
        turns[row, :length] = torch.tensor(rollout.turn_ids)
        logprobs[row, :length] = torch.tensor(rollout.rollout_logprobs)
        key = (rollout.question.id, rollout.sample // num_samples)
        groups[row] = numbers.setdefault(key, len(numbers))
        for position, reward in turn_rewards(rollout).items():
            rewards[row, position] += reward
    return Experience(
        token_ids_BT=ids,
        attention_BT=attention,
        mask_BT=mask,
        turn_ids_BT=turns,
        ratio_segments_BT=ratio_segments("token", mask, turns),
        groups_B=groups,
        evidence_BKF=torch.zeros(len(rollouts), 1 + max(len(r.turns) for r in rollouts), 0),
        rollout_logprobs_BT=logprobs,
        old_logprobs_BT=logprobs,
        truncation_BT=mask.float(),
        reference_logprobs_BT=torch.zeros(shape),
        values_BT=torch.zeros(shape),
        rewards_BT=rewards,
        advantages_BT=torch.zeros(shape),
        returns_BT=torch.zeros(shape),
        loss_weights_BT=torch.zeros(shape),
        value_weights_BT=torch.zeros(shape),
        metrics={},
    )


def turn_rewards(rollout: Rollout) -> dict[int, float]:
    """Position -> reward: a turn's own at its last action token, the outcome at the last action token of all."""
    rewards: dict[int, float] = {}
    position, last = len(rollout.prompt_ids), None
    for turn in rollout.turns:
        position += len(turn.token_ids)
        if len(turn.token_ids) > turn.forced_prefix:
            last = position - 1
            rewards[last] = rewards.get(last, 0.0) + turn.reward
        position += len(turn.observation_ids)
    if last is not None:
        rewards[last] += rollout.reward
    return rewards


def first_of_turns(mask_BT: Tensor, turn_ids_BT: Tensor) -> Tensor:
    """[B, T] True at the first action token of each turn."""
    before_BT = torch.cat([torch.full_like(turn_ids_BT[:, :1], -1), turn_ids_BT[:, :-1]], dim=1)
    return mask_BT & (turn_ids_BT != before_BT)


def loss_weights(mask_BT: Tensor, *, reduction: Reduction, num_tokens: int, num_rollouts: int, factor: float) -> Tensor:
    """Each action token's weight in a step of `num_tokens` action tokens and `num_rollouts` rollouts over all ranks.

    token-mean: 1 / num_tokens. rollout-mean: 1 / (|y| num_rollouts). `factor`: what Lightning and DDP divide by later.
    """
    if reduction == "token-mean":
        return mask_BT * (factor / max(1, num_tokens))
    lengths_B1 = mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
    return mask_BT * (factor / max(1, num_rollouts)) / lengths_B1


def split_minibatches(num_rollouts: int, *, num_minibatches: int, seed: int) -> list[list[int]]:
    """Rollout indices dealt at random into minibatches of (nearly) equal size."""
    order = list(range(num_rollouts))
    random.Random(seed).shuffle(order)
    return [order[start::num_minibatches] for start in range(num_minibatches)]


def split_by_length(indices: Sequence[int], lengths: Sequence[int], *, parts: int) -> list[list[int]]:
    """Indices sorted by length and cut into `parts` non-empty groups of nearly equal padded size.

    Rows of like length share a group, so little is padding. Fewer indices than parts is an error: the caller pads.
    """
    if len(indices) < parts:
        raise ValueError(f"{len(indices)} rollouts cannot fill {parts} micro-batches; lower num_micro_batches.")
    ordered = sorted(indices, key=lambda index: (lengths[index], index))
    share = sum(lengths[index] for index in ordered) / parts
    groups: list[list[int]] = [[]]
    filled = 0.0
    for position, index in enumerate(ordered):
        remaining, missing = len(ordered) - position, parts - len(groups)
        if groups[-1] and missing and (filled >= share * len(groups) or remaining <= missing):
            groups.append([])
        groups[-1].append(index)
        filled += lengths[index]
    return groups
