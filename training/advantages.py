"""Advantages over action tokens: the environment's tokens are skipped, never bootstrapped through.

Shapes: B rollouts, T tokens, A action tokens of the longest rollout. All inputs are constants; nothing here has a gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor


def pack_actions(values_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Move each row's action entries to the front: (values_BA, valid_BA, positions_BA in T)."""
    width = max(1, int(mask_BT.sum(dim=1).max()))
    order_BT = torch.argsort((~mask_BT).to(torch.int8), dim=1, stable=True)
    positions_BA = order_BT[:, :width]
    return values_BT.gather(1, positions_BA), mask_BT.gather(1, positions_BA), positions_BA


def unpack_actions(values_BA: Tensor, valid_BA: Tensor, positions_BA: Tensor, like_BT: Tensor) -> Tensor:
    """The inverse of `pack_actions`: zeros off the action tokens."""
    return torch.zeros_like(like_BT).scatter(1, positions_BA, torch.where(valid_BA, values_BA, 0.0))


def gae(rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, *, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al., arXiv 1506.02438, eq. 16) over action tokens.

    `values_BT[:, t]` is V before token t. The successor of a turn's last token is the first action token of the next turn;
    after the last action token the value is 0. Returns (advantages_BT, returns_BT), zero off the mask.

    Example: one rollout, mask [0, 1, 0, 1], reward 1 at the last token, V = 0, gamma = lam = 1: advantages [0, 1, 0, 1].
    """
    rewards_BA, valid_BA, positions_BA = pack_actions(rewards_BT, mask_BT)
    values_BA = torch.where(valid_BA, values_BT.gather(1, positions_BA), 0.0)
    rewards_BA = torch.where(valid_BA, rewards_BA, 0.0)
    advantages_BA = torch.zeros_like(values_BA)
    running_B = torch.zeros_like(values_BA[:, 0])
    next_value_B = torch.zeros_like(running_B)
    for step in reversed(range(values_BA.shape[1])):
        delta_B = rewards_BA[:, step] + gamma * next_value_B - values_BA[:, step]
        running_B = delta_B + gamma * lam * running_B
        # Behind a row's last action everything is zero, so the row starts there with nothing carried over.
        advantages_BA[:, step] = running_B
        next_value_B = values_BA[:, step]
    advantages_BT = unpack_actions(advantages_BA, valid_BA, positions_BA, values_BT)
    return advantages_BT, torch.where(mask_BT, advantages_BT + values_BT, 0.0)


def moments(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """[3] count, sum and sum of squares over the mask, in float64; those of several ranks add up."""
    chosen = values_BT[mask_BT].double()
    return torch.stack([torch.tensor(float(chosen.numel()), dtype=torch.float64), chosen.sum(), chosen.square().sum()])


def whiten(values_BT: Tensor, mask_BT: Tensor, totals: Tensor) -> Tensor:
    """Zero mean and unit variance over all entries that `totals` (see `moments`) counts; zero off the mask."""
    count = totals[0].clamp(min=1)
    mean = totals[1] / count
    scale = (totals[2] / count - mean.square()).clamp(min=0).sqrt().clamp(min=1e-8)
    return torch.where(mask_BT, (values_BT - mean) / scale, 0.0).to(values_BT.dtype)
