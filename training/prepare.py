"""From graded rollouts to experience: reference and proximal log-probs, values, KL as reward, advantages.

And what is logged of them.

Everything here is a constant of the update: it is read once, before the first optimizer step on these rollouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from medagent.errors import ConfigError
from medagent.types import Rollout, StopReason
from training.advantages import GAE, AdvantageEstimator, Reduce
from training.critic_evidence import evidence_of
from training.execution import split_by_tokens
from training.experience import Experience, split_by_length, tensorize
from training.module import AgentModule

ImportanceMode = Literal["behaviour", "decoupled"]
TruncatedMode = Literal["terminal", "bootstrap", "mask"]


@dataclass(frozen=True)
class OffPolicy:
    """What importance weights are taken against, and how old rollouts may be.

    `staleness` s: iteration i trains on rollouts of the policy of iteration i - s (the first s + 1 on those of the
    start), as asynchronous systems do. With `overlap` the rollouts of iteration i + s are sampled while iteration i
    updates (the same rollouts: the weights are those before that update). `importance` "behaviour": w = pi_theta /
    pi_rollout, with the sampler's own log-probs. "decoupled": w = pi_theta / pi_prox, recomputed before the update,
    and every policy term times min(pi_prox / pi_rollout, `cap`) (truncated importance sampling).
    """

    staleness: int = 0
    importance: ImportanceMode = "behaviour"
    cap: float = 2.0
    overlap: bool = False

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.staleness < 0:
            raise ConfigError(f"OffPolicy.staleness: found {self.staleness}, wanted 0 or more iterations.")
        if self.overlap and not self.staleness:
            raise ConfigError(
                "OffPolicy.overlap: true found with staleness 0; what is sampled during an update is one iteration "
                "old when it is used. Set staleness to 1."
            )
        if self.cap < 1:
            raise ConfigError(
                f"OffPolicy.cap: found {self.cap}, wanted 1 or more (below it, on-policy terms shrink too)."
            )


@torch.no_grad()
def prepare(
    module: AgentModule,
    rollouts: Sequence[Rollout],
    *,
    estimator: AdvantageEstimator,
    reduce: Reduce,
    num_samples: int = 1,
    off_policy: OffPolicy = OffPolicy(),
    truncated: TruncatedMode = "terminal",
) -> Experience:
    """Tensors of the rollouts, ready for the update; `reduce` sums over ranks.

    `truncated` says what a rollout that a limit cut counts as: "terminal", an end like any other; "bootstrap", its
    last reward plus gamma times the critic's value of where it was cut; "mask", nothing (no loss, though its reward
    counts in its group).
    """
    batch = tensorize(rollouts, pad_id=module.pad_id, num_samples=num_samples)
    if module.critic_sees != "context":
        in_groups = module.critic_sees == "evidence_and_group"
        batch.evidence_BKF = evidence_of(rollouts, batch.groups_B if in_groups else None)
    cut_B = torch.tensor([rollout.stop_reason.truncated for rollout in rollouts])
    if truncated == "mask":
        batch.mask_BT = batch.mask_BT & ~cut_B[:, None]
        batch.turn_ids_BT = batch.turn_ids_BT.masked_fill(cut_B[:, None], -1)
        batch.ratio_segments_BT = batch.ratio_segments_BT.masked_fill(cut_B[:, None], -1)
    read_BT = estimator.value_mask(batch)
    proximal_BT = torch.zeros_like(batch.rollout_logprobs_BT)
    ends_B = torch.zeros(len(rollouts))
    lengths = batch.attention_BT.sum(dim=1).tolist()
    budget = module.execution
    groups = (
        split_by_tokens(lengths, max_tokens=budget.max_tokens, packed=budget.packed)
        if budget.max_tokens
        else split_by_length(range(len(rollouts)), lengths, parts=max(1, len(rollouts) // 32))
    )
    shortest = min(range(len(lengths)), key=lambda row: lengths[row])
    groups += [[shortest]] * (module.most_passes(len(groups)) - len(groups))  # read again, to the same end
    for rows in groups:
        part = batch.rows(rows).to(module.device)
        inputs = (part.token_ids_BT, part.attention_BT, part.mask_BT)
        width = part.token_ids_BT.shape[1]
        reference_BT = module.roles.reference_logprobs(*inputs, temperature=module.temperature)
        batch.reference_logprobs_BT[rows, :width] = reference_BT.cpu()
        if off_policy.importance == "decoupled":
            scores = module.roles.policy_scores(*inputs, temperature=module.temperature)
            proximal_BT[rows, :width] = scores.logprobs_BT.cpu()
        if estimator.needs_critic:
            values_BT, ends = _values(module, part, read_BT[rows, :width].to(module.device))
            batch.values_BT[rows, :width], ends_B[rows] = values_BT.cpu(), ends.cpu()
    if off_policy.importance == "decoupled":
        batch.old_logprobs_BT = proximal_BT
        gap_BT = torch.where(batch.mask_BT, proximal_BT - batch.rollout_logprobs_BT, 0.0)
        batch.truncation_BT = gap_BT.exp().clamp(max=off_policy.cap) * batch.mask_BT
    if module.kl_mode == "reward":
        k1_BT = batch.rollout_logprobs_BT - batch.reference_logprobs_BT
        batch.rewards_BT = batch.rewards_BT - module.kl_coef * torch.where(batch.mask_BT, k1_BT, 0.0)
    if truncated == "bootstrap":
        assert isinstance(estimator, GAE)  # see training.compatibility
        last_BT = batch.mask_BT & (batch.mask_BT.long().cumsum(1) == batch.mask_BT.long().sum(1, keepdim=True))
        batch.rewards_BT = batch.rewards_BT + last_BT * (estimator.gamma * ends_B * cut_B)[:, None]
    estimator.estimate(batch, reduce)
    return batch


def _values(module: AgentModule, part: Experience, read_BT: Tensor) -> tuple[Tensor, Tensor]:
    """The critic's values where it is read, [B, T], and of the state after each row's last token, [B]."""
    rows = torch.arange(part.token_ids_BT.shape[0], device=read_BT.device)
    lengths_B = part.attention_BT.sum(dim=1)
    # A column more, so that the state after the last token predicts something that can be read.
    ids = torch.cat([part.token_ids_BT, part.token_ids_BT.new_full((len(rows), 1), module.pad_id)], dim=1)
    read = torch.cat([read_BT, torch.zeros_like(read_BT[:, :1])], dim=1)
    read[rows, lengths_B] = True
    attention = torch.cat([part.attention_BT, torch.zeros_like(part.attention_BT[:, :1])], dim=1)
    values = module.roles.values(ids, attention, read, part.evidence_at(read, after_last=True))
    return torch.where(read_BT, values[:, :-1], 0.0), values[rows, lengths_B]


def explained_variance(batch: Experience, read_BT: Tensor) -> float:
    """1 - Var(return - value) / Var(return) where the critic is read.

    The values precede any update on these rollouts.
    """
    returns = batch.returns_BT[read_BT]
    errors = returns - batch.values_BT[read_BT]
    variance = returns.var(correction=0)
    return float(1 - errors.var(correction=0) / variance) if variance > 0 else 0.0


def logprob_gap(batch: Experience, *, off_policy: OffPolicy) -> dict[str, float]:
    """How far the sampler's log-probs lie from the trainer's of the same moment, mean and largest.

    Only where those are known (decoupled).

    On rollouts of the present policy it is arithmetic alone; on stale ones, the policy's way since then too.
    """
    if off_policy.importance != "decoupled" or not bool(batch.mask_BT.any()):
        return {}
    gaps = (batch.old_logprobs_BT - batch.rollout_logprobs_BT)[batch.mask_BT].abs()
    return {"rollout/logprob_gap": float(gaps.mean()), "rollout/logprob_gap_max": float(gaps.max())}


def rollout_metrics(rollouts: Sequence[Rollout], *, iteration: int) -> dict[str, float]:
    """Means over rollouts, under the fixed names."""
    count = max(1, len(rollouts))

    def mean(values: list[float]) -> float:
        return sum(values) / count

    return {
        "reward/mean": mean([rollout.total_reward for rollout in rollouts]),
        "reward/success": mean([float(rollout.success) for rollout in rollouts]),
        "rollout/turns": mean([float(len(rollout.turns)) for rollout in rollouts]),
        "rollout/searches": mean([float(rollout.num_searches) for rollout in rollouts]),
        "rollout/tokens": mean([float(len(rollout.token_ids)) for rollout in rollouts]),
        "rollout/valid_answer": mean([float(rollout.stop_reason is StopReason.ANSWERED) for rollout in rollouts]),
        "rollout/truncated": mean([float(rollout.stop_reason.truncated) for rollout in rollouts]),
        "rollout/staleness": mean([float(iteration - rollout.iteration) for rollout in rollouts]),
    }
