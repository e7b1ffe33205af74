"""Two records of rollouts: `RolloutTensors` as sampled, and `Experience` ready for the loss. Position t is of token t.

Shapes: B rollouts, T tokens, K turns and the end of the last one, F numbers of evidence.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import FrozenInstanceError, dataclass, replace
from itertools import count, islice
from typing import Any, Literal, Self

import torch
from torch import Tensor

from medagent.types import Rollout

Reduction = Literal["rollout-mean", "token-mean", "rollout-sum"]


@dataclass
class RolloutTensors:
    """Rollouts as sampled, padded to the longest; floats are 0 off the mask. Fields are assigned to once."""

    token_ids_BT: Tensor
    """[B, T] integer: prompt, actions and observations, exactly as sampled. `NEW_CONTEXT` stands between contexts."""
    attention_BT: Tensor
    """[B, T] bool: True at tokens, False at padding."""
    mask_BT: Tensor
    """[B, T] bool: True at action tokens, those that the policy sampled."""
    turn_ids_BT: Tensor
    """[B, T] integer: the turn of an action token, -1 elsewhere."""
    groups_B: Tensor
    """[B] integer: rollouts with equal numbers are samples of one question, to be compared with each other."""
    rollout_logprobs_BT: Tensor
    """[B, T] float: the sampler's log-prob of each action token."""
    rewards_BT: Tensor
    """[B, T] float: what was earned at each action token; its row's sum is everything a rollout earned."""

    def __setattr__(self, name: str, value: object) -> None:
        """Set a field once; `ratio_segments_BT` again.

        Raises:
            FrozenInstanceError: any other field is there already.
        """
        if name in self.__dict__ and name != "ratio_segments_BT":
            raise FrozenInstanceError(
                f"{type(self).__name__}.{name}: found an assignment, wanted one to ratio_segments_BT alone. Make a "
                "changed copy with dataclasses.replace."
            )
        object.__setattr__(self, name, value)

    def to(self, device: torch.device | str, **kwargs: Any) -> Self:
        """A copy on the device (Lightning calls this)."""
        return self._with(lambda _, tensor: tensor.to(device, **kwargs))

    def rows(self, indices: Sequence[int]) -> Self:
        """The chosen rollouts, truncated to the longest of them."""
        index = torch.tensor(indices, dtype=torch.long)
        width = max(1, int(self.attention_BT[index].sum(dim=1).max()))
        tokens = "_BT"  # a tensor has a place per token by the shape in its name
        return self._with(lambda name, each: each[index, :width] if name.endswith(tokens) else each[index])

    def _with(self, change: Callable[[str, Tensor], Tensor]) -> Self:
        tensors = {name: each for name, each in vars(self).items() if isinstance(each, Tensor)}
        changed = {name: change(name, each) for name, each in tensors.items()}
        return replace(self, **changed)


@dataclass
class Experience(RolloutTensors):
    """The rollouts of an optimizer step, ready for the loss; only `ratio_segments_BT` may be assigned to again.

    `mask_BT` marks the action tokens that count. `rewards_BT` are as the advantage saw them, KL penalty and bootstrap
    included.
    """

    ratio_segments_BT: Tensor
    """[B, T] integer: action tokens of one segment share one importance weight; -1 elsewhere."""
    evidence_BKF: Tensor
    """[B, K, F] float: what the critic is told before each turn and after the last; F is 0 where it is told nothing."""
    old_logprobs_BT: Tensor
    """[B, T] float: log-probs of the policy that importance weights are taken against."""
    truncation_BT: Tensor
    """[B, T] float: a constant factor of every policy term; 1 at action tokens in mode `behaviour`."""
    reference_logprobs_BT: Tensor
    """[B, T] float: log-probs of the frozen start; 0 where `kl_coef` is 0."""
    values_BT: Tensor
    """[B, T] float: the critic's value before each token where it is read, 0 elsewhere."""
    advantages_BT: Tensor
    """[B, T] float: the advantage of each action token."""
    returns_BT: Tensor
    """[B, T] float: the critic's targets where it is read, 0 elsewhere."""
    loss_weights_BT: Tensor
    """[B, T] float: each action token's share of the optimizer step, times the number of ranks that DDP divides by."""
    value_weights_BT: Tensor
    """[B, T] float: the same for the tokens where the critic is read."""
    metrics: dict[str, float]
    """Means over the iteration's rollouts, which its first optimizer step logs; empty in the others."""
    critic_only: bool = False
    """Whether the optimizer step trains the critic alone."""
    names: tuple[str, ...] = ()
    """[B] question and sample of each rollout, for messages; none where they are not known."""
    micro_batches: tuple[tuple[int, ...], ...] = ()
    """The rows of each micro-batch of an optimizer step; none where all rows are one micro-batch."""

    def rows(self, indices: Sequence[int]) -> "Experience":
        """The chosen rollouts, truncated to the longest of them, without metrics and micro-batches."""
        names = tuple(self.names[index] for index in indices) if self.names else ()
        return replace(super().rows(indices), metrics={}, names=names, micro_batches=())

    def step(self, parts: Sequence[Sequence[int]]) -> "Experience":
        """The rows of one optimizer step, in these micro-batches."""
        rows = self.rows([row for part in parts for row in part])
        return replace(rows, micro_batches=consecutive(map(len, parts)))

    def split(self) -> "list[Experience]":
        """The micro-batches."""
        return [self.rows(rows) for rows in self.micro_batches] or [self]

    def evidence_at(self, value_mask_BT: Tensor) -> Tensor:
        """See the function of this name."""
        return evidence_at(self.evidence_BKF, self.turn_ids_BT, value_mask_BT)


def consecutive(sizes: Iterable[int]) -> tuple[tuple[int, ...], ...]:
    """Row numbers from 0 on, in groups of these sizes.

    >>> consecutive([2, 1])
    ((0, 1), (2,))
    """
    numbers = count()
    return tuple(tuple(islice(numbers, size)) for size in sizes)


def evidence_at(evidence_BKF: Tensor, turn_ids_BT: Tensor, value_mask_BT: Tensor) -> Tensor:
    """[A, F] what the critic is told before the turn of each of the A tokens that `value_mask_BT` marks."""
    rows_BT = torch.arange(len(turn_ids_BT), device=turn_ids_BT.device)[:, None].expand_as(turn_ids_BT)
    return evidence_BKF[rows_BT[value_mask_BT], turn_ids_BT[value_mask_BT]]


def tensorize(rollouts: Sequence[Rollout], *, pad_id: int, num_samples: int = 1) -> RolloutTensors:
    """Pad rollouts to the longest. A group is `num_samples` rollouts of one question."""
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
    return RolloutTensors(
        token_ids_BT=ids,
        attention_BT=attention,
        mask_BT=mask,
        turn_ids_BT=turns,
        groups_B=groups,
        rollout_logprobs_BT=logprobs,
        rewards_BT=rewards,
    )


def rollout_name(rollout: Rollout) -> str:
    """Question and sample, for messages."""
    return f"{rollout.question.id} sample {rollout.sample}"


def turn_rewards(rollout: Rollout) -> dict[int, float]:
    """Position -> reward: a turn's own at its last action token, the outcome at the last action token of all."""
    rewards: dict[int, float] = {}
    position, last = len(rollout.prompt_ids), None
    for turn in rollout.turns:
        position += len(turn.before) + len(turn.token_ids)
        if len(turn.token_ids) > turn.forced_prefix:
            last = position - 1
            rewards[last] = rewards.get(last, 0.0) + turn.reward
        position += len(turn.observation_ids)
    if last is not None:
        rewards[last] += rollout.reward
    return rewards


def turn_starts(mask_BT: Tensor, turn_ids_BT: Tensor) -> Tensor:
    """[B, T] True at the first action token of each turn."""
    before_BT = torch.cat([torch.full_like(turn_ids_BT[:, :1], -1), turn_ids_BT[:, :-1]], dim=1)
    return mask_BT & (turn_ids_BT != before_BT)


def loss_weights(mask_BT: Tensor, *, reduction: Reduction, num_tokens: int, num_rollouts: int, factor: float) -> Tensor:
    """Each action token's weight: 1 / num_tokens, 1 / (|y| num_rollouts) or 1 / num_rollouts, times `factor`."""
    if reduction == "token-mean":
        return mask_BT * (factor / max(1, num_tokens))
    weights_BT = mask_BT * (factor / max(1, num_rollouts))
    lengths_B1 = mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
    return weights_BT if reduction == "rollout-sum" else weights_BT / lengths_B1


def step_weights(mask_BT: Tensor, *, reduction: Reduction, reduce: Callable[[Tensor], Tensor], factor: float) -> Tensor:
    """`loss_weights` in a step over all rows that `mask_BT` marks, on all ranks: `reduce` sums over them."""
    counts = reduce(torch.tensor([float(mask_BT.sum()), float(mask_BT.any(dim=1).sum())]))
    return loss_weights(
        mask_BT, reduction=reduction, num_tokens=int(counts[0]), num_rollouts=int(counts[1]), factor=factor
    )
