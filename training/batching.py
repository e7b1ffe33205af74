"""Which rollouts are read together: in a minibatch, in a micro-batch, and in one pass of the base."""

import random
from collections.abc import Sequence

from torch import Tensor

from medagent.training.execution import Execution
from medagent.training.prefixes import common_prefixes

# Cost of a token that another row has read, relative to reading it: its keys and values are kept again.
READ_AGAIN = 1 / 8


def split_minibatches(num_rollouts: int, *, num_minibatches: int, seed: int) -> list[list[int]]:
    """Rollout indices dealt at random into minibatches of (nearly) equal size."""
    order = list(range(num_rollouts))
    random.Random(seed).shuffle(order)
    return [order[start::num_minibatches] for start in range(num_minibatches)]


def split_by_length(indices: Sequence[int], lengths: Sequence[int], *, parts: int) -> list[list[int]]:
    """Indices sorted by length, in `parts` groups of nearly equal size; ValueError if some would be empty."""
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


def split_update(
    lengths: Sequence[int], *, groups: Sequence[int] | None, num_minibatches: int, num_micro_batches: int, seed: int
) -> list[list[list[int]]]:
    """Rollout indices of each micro-batch of each minibatch; with `groups`, none of them is divided.

    Rollouts (or groups) are dealt at random into minibatches, and those of like length share a micro-batch.

    >>> split_update([5, 5, 4, 6], groups=[0, 0, 1, 1], num_minibatches=2, num_micro_batches=1, seed=0)
    [[[0, 1]], [[2, 3]]]
    """
    members: dict[int, list[int]] = {}
    for row in range(len(lengths)):
        members.setdefault(row if groups is None else groups[row], []).append(row)
    rows = list(members.values())
    sizes = [sum(lengths[row] for row in each) for each in rows]
    return [
        [
            [row for index in part for row in rows[index]]
            for part in split_by_length(minibatch, sizes, parts=num_micro_batches)
        ]
        for minibatch in split_minibatches(len(rows), num_minibatches=num_minibatches, seed=seed)
    ]


def pack_rows(execution: Execution, token_ids_BT: Tensor, attention_BT: Tensor) -> list[list[int]]:
    """The rows of each pass within the limit of tokens."""
    if execution.shared_prefixes:
        return split_by_distinct_tokens(token_ids_BT, attention_BT, max_tokens=execution.token_limit)
    lengths = attention_BT.sum(dim=1).tolist()
    return split_by_tokens(lengths, max_tokens=execution.token_limit, packed=execution.packed)


def split_by_tokens(lengths: list[int], *, max_tokens: int, packed: bool) -> list[list[int]]:
    """Row numbers in groups of at most `max_tokens` tokens (padding counts unless packed).

    Rows of like length share a group. 0: one group.

    >>> split_by_tokens([4, 9, 5], max_tokens=10, packed=False)
    [[0, 2], [1]]
    """
    if not max_tokens:
        return [list(range(len(lengths)))]
    groups: list[list[int]] = []
    total = 0
    for row in sorted(range(len(lengths)), key=lambda row: (lengths[row], row)):
        size = total + lengths[row] if packed else (len(groups[-1]) + 1) * lengths[row] if groups else 0
        if not groups or size > max_tokens:
            groups.append([])
            total = 0
        groups[-1].append(row)
        total += lengths[row]
    return groups


def split_by_distinct_tokens(token_ids_BT: Tensor, attention_BT: Tensor, *, max_tokens: int) -> list[list[int]]:
    """Rows in order, in groups of `max_tokens` (0: any); a shared token counts `READ_AGAIN`."""
    ids, there = token_ids_BT.cpu(), attention_BT.cpu()
    if not max_tokens:
        return [list(range(len(ids)))]
    groups: list[list[int]] = []
    total = 0.0
    for row, length in enumerate(there.sum(dim=1).tolist()):
        group = slice(groups[-1][0], row) if groups else slice(0)
        shared = int(common_prefixes(ids, there, group, row).max()) if groups else 0
        total += length - (1 - READ_AGAIN) * shared
        if not groups or total > max_tokens:
            groups.append([])
            total = float(length)
        groups[-1].append(row)
    return groups
