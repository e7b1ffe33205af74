"""From graded rollouts to experience, and what is logged of them.

Reference and proximal log-probs, values, rewards with their penalties and advantages are constants of the update.
They are read once, before the first optimizer step on these rollouts.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from medagent.errors import ConfigError
from medagent.training.advantages import GAE, AdvantageEstimator, Reduce
from medagent.training.batching import pack_rows, split_by_length
from medagent.training.experience import (
    Experience,
    Reduction,
    RolloutTensors,
    evidence_at,
    loss_weights,
    rollout_name,
    tensorize,
)
from medagent.training.finite_steps import in_words, rows_not_finite
from medagent.training.memory.estimate import PREPARED_ROWS
from medagent.training.module import AgentModule
from medagent.training.objectives import ratio_segments
from medagent.training.prepare.evidence import evidence_of
from medagent.training.prepare.routing import require_records, routing_metrics
from medagent.training.routing import placed
from medagent.types import Rollout, StopReason

ImportanceMode = Literal["behaviour", "decoupled"]
TruncatedMode = Literal["terminal", "bootstrap", "mask"]


@dataclass(frozen=True)
class OffPolicy:
    """What importance weights are taken against, and how old rollouts may be.

    `staleness` s: iteration i trains on rollouts of the policy of iteration i - s, as asynchronous systems do. The
    first s + 1 iterations train on those of the start. With `overlap` the rollouts of iteration i + s are sampled
    while iteration i updates, with the weights from before that update.

    `importance` "behaviour": w = pi_theta / pi_rollout, with the sampler's own log-probs. "decoupled": w = pi_theta /
    pi_prox, recomputed before the update. Every policy term then counts min(pi_prox / pi_rollout, `cap`) times, which
    is truncated importance sampling.
    """

    staleness: int = 0
    importance: ImportanceMode = "behaviour"
    cap: float = 2.0
    overlap: bool = False

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        if self.staleness < 0:
            raise ConfigError(f"OffPolicy.staleness: found {self.staleness}, wanted 0 or more iterations.")
        if self.overlap and not self.staleness:
            raise ConfigError(
                "OffPolicy.overlap: found true with staleness 0. What is sampled during an update is one iteration "
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
    reduction: Reduction = "rollout-mean",
) -> Experience:
    """The rollouts as experience, weighted for one optimizer step over all of them; `reduce` sums over ranks.

    `truncated` says what a rollout that a limit cut counts as. "terminal": an end like any other. "bootstrap": gamma
    times the critic's value of where it was cut is added to its last reward. After the search of the last turn allowed
    no action follows, so no critic is taught there; the value before its last token stands for it. "mask": it has no
    loss, though its reward counts in its group.

    Raises:
        ConfigError: see `check_bootstrap`.
    """
    if truncated == "bootstrap":
        check_bootstrap(module, estimator)
    tensors = tensorize(rollouts, pad_id=module.pad_id, num_samples=num_samples)
    cut_B = torch.tensor([rollout.stop_reason.truncated for rollout in rollouts])
    if truncated == "mask":
        tensors = replace(
            tensors,
            mask_BT=tensors.mask_BT & ~cut_B[:, None],
            turn_ids_BT=tensors.turn_ids_BT.masked_fill(cut_B[:, None], -1),
        )
    if module.routing_replay == "r3":
        require_records(tensors)
    else:
        tensors = replace(tensors, experts_BTLK=None)
    mask_BT = tensors.mask_BT
    evidence_BKF = _evidence(module, rollouts, tensors)
    value_mask_BT = estimator.value_mask(mask_BT, tensors.turn_ids_BT)
    reference_BT, proximal_BT, values_BT = (torch.zeros_like(tensors.rollout_logprobs_BT) for _ in range(3))
    ends_B = torch.zeros(len(rollouts))
    metrics: dict[str, float] = {}
    experts_BTLK, records = tensors.experts_BTLK, module.routing_replay == "r2"
    for number, rows in enumerate(_passes(module, tensors)):
        part = tensors.rows(rows).to(module.device)
        inputs = (part.token_ids_BT, part.attention_BT, part.mask_BT)
        width = part.token_ids_BT.shape[1]
        if module.kl_coef:
            found_BT = module.shared_base.reference_logprobs(*inputs, temperature=module.temperature)
            reference_BT[rows, :width] = found_BT.cpu()
        if module.routing_replay == "r3" and not number:
            metrics = routing_metrics(module, part, reduce)
        if off_policy.importance == "decoupled" or records:
            routing = module.shared_base.routing(part.experts_BTLK, records=records)
            scores = module.shared_base.policy_scores(*inputs, temperature=module.temperature, routing=routing)
            proximal_BT[rows, :width] = scores.logprobs_BT.cpu()
            if routing is not None and routing.chosen_BTLK is not None:
                experts_BTLK = placed(experts_BTLK, routing.chosen_BTLK, rows, mask_BT.shape)
        if estimator.needs_critic:
            seen_BKF, where_BT = evidence_BKF[rows].to(module.device), value_mask_BT[rows, :width].to(module.device)
            found_BT, ends = _values(module, part, seen_BKF, where_BT, ends=truncated == "bootstrap")
            values_BT[rows, :width], ends_B[rows] = found_BT.cpu(), ends.cpu()
    old_BT, truncation_BT = tensors.rollout_logprobs_BT, mask_BT.float()
    if off_policy.importance == "decoupled":
        gap_BT = torch.where(mask_BT, proximal_BT - tensors.rollout_logprobs_BT, 0.0)
        old_BT, truncation_BT = proximal_BT, gap_BT.exp().clamp(max=off_policy.cap) * mask_BT
    rewards_BT = tensors.rewards_BT
    if module.kl_mode == "reward":
        k1_BT = tensors.rollout_logprobs_BT - reference_BT
        rewards_BT = rewards_BT - module.kl_coef * torch.where(mask_BT, k1_BT, 0.0)
    if truncated == "bootstrap":
        assert isinstance(estimator, GAE)
        last_BT = mask_BT & (mask_BT.long().cumsum(1) == mask_BT.long().sum(1, keepdim=True))
        if module.critic_inputs == "context":
            taught_B = torch.tensor([_would_act_again(rollout) for rollout in rollouts])
            ends_B = torch.where(taught_B, ends_B, (values_BT * last_BT).sum(dim=1))
        rewards_BT = rewards_BT + last_BT * (estimator.gamma * ends_B * cut_B)[:, None]
    tensors = replace(tensors, rewards_BT=rewards_BT)
    names = tuple(map(rollout_name, rollouts))
    _warn_of_not_finite(
        names,
        {
            "the sampler's log-probs": tensors.rollout_logprobs_BT,
            "the reference's log-probs": reference_BT,
            "the policy's log-probs": proximal_BT,
            "the critic's values": values_BT,
            "the critic's values after the last token": ends_B[:, None],
            "the rewards": rewards_BT,
        },
    )
    advantages_BT, returns_BT = estimator.estimate(tensors, values_BT, reduce)
    return Experience(
        token_ids_BT=tensors.token_ids_BT,
        attention_BT=tensors.attention_BT,
        mask_BT=mask_BT,
        turn_ids_BT=tensors.turn_ids_BT,
        ratio_segments_BT=ratio_segments("token", mask_BT, tensors.turn_ids_BT),
        groups_B=tensors.groups_B,
        evidence_BKF=evidence_BKF,
        rollout_logprobs_BT=tensors.rollout_logprobs_BT,
        old_logprobs_BT=old_BT,
        truncation_BT=truncation_BT,
        reference_logprobs_BT=reference_BT,
        values_BT=values_BT,
        rewards_BT=rewards_BT,
        advantages_BT=advantages_BT,
        returns_BT=returns_BT,
        loss_weights_BT=_whole_step(mask_BT, reduction, reduce),
        value_weights_BT=_whole_step(value_mask_BT, reduction, reduce),
        metrics=metrics,
        names=names,
        experts_BTLK=experts_BTLK,
    )


def check_bootstrap(module: AgentModule, estimator: AdvantageEstimator) -> None:
    """Check that the critic is taught where a cut rollout is valued.

    Most cuts lie inside a turn. A critic that is read once per turn is taught at first tokens of turns alone. One that
    sees the evidence has the same value in all of a turn.

    Raises:
        ConfigError: it is not, or there is no critic.
    """
    if not isinstance(estimator, GAE):
        raise ConfigError(
            f"data.truncated is bootstrap, and data.advantage ({type(estimator).__name__}) has no value to bootstrap "
            "from. Use GAE."
        )
    if estimator.level == "turn" and module.critic_inputs == "context":
        raise ConfigError(
            "data.truncated is bootstrap with data.advantage GAE of level turn. Limits cut inside a turn, and this "
            "critic is taught before turns alone, so its value there means nothing. Set level: token, truncated: "
            "terminal or mask, or model.critic_inputs: evidence."
        )


def _would_act_again(rollout: Rollout) -> bool:
    """Whether an action follows the last token in other rollouts, so that a critic is taught there.

    After the search of the last turn allowed none does: nothing is searched, and no turn follows.
    """
    shown = bool(rollout.turns and rollout.turns[-1].observation_ids)
    return shown or rollout.stop_reason is not StopReason.MAX_TURNS


def _warn_of_not_finite(names: Sequence[str], tensors: Mapping[str, Tensor]) -> None:
    for what, values in tensors.items():
        if bad := [name for name, row in zip(names, rows_not_finite(values), strict=True) if row]:
            warnings.warn(
                f"rollouts: {what} are not finite in {in_words(bad)}. Steps with them are skipped. Check the base "
                "model and the sampler, or set model.dtype to float32.",
                stacklevel=3,
            )


def _whole_step(mask_BT: Tensor, reduction: Reduction, reduce: Reduce) -> Tensor:
    """[B, T] loss weights of one optimizer step over all rollouts of all ranks."""
    counts = reduce(torch.tensor([float(mask_BT.sum()), float(mask_BT.any(dim=1).sum())]))
    return loss_weights(
        mask_BT, reduction=reduction, num_tokens=int(counts[0]), num_rollouts=int(counts[1]), factor=1.0
    )


def _evidence(module: AgentModule, rollouts: Sequence[Rollout], tensors: RolloutTensors) -> Tensor:
    """[B, K, F] what the critic is told; F is 0 where it sees the context alone."""
    if module.critic_inputs == "context":
        return torch.zeros(len(rollouts), 1 + max(len(rollout.turns) for rollout in rollouts), 0)
    return evidence_of(rollouts, tensors.groups_B if module.critic_inputs == "evidence_and_group" else None)


def _passes(module: AgentModule, tensors: RolloutTensors) -> list[list[int]]:
    """The rows of each pass of the base, within the budget of tokens; all ranks have equally many passes."""
    lengths = tensors.attention_BT.sum(dim=1).tolist()
    budget = module.execution
    if budget.token_limit:
        groups = pack_rows(budget, tensors.sharing_keys, tensors.attention_BT)
    elif budget.shared_prefixes:  # in their order: samples of a question follow each other
        groups = [
            list(range(len(lengths)))[start : start + PREPARED_ROWS] for start in range(0, len(lengths), PREPARED_ROWS)
        ]
    else:
        groups = split_by_length(range(len(lengths)), lengths, parts=max(1, len(lengths) // PREPARED_ROWS))
    shortest = min(range(len(lengths)), key=lambda row: lengths[row])
    # Read again, to the same end.
    return groups + [[shortest]] * (module.max_passes_over_ranks(len(groups)) - len(groups))


def _values(
    module: AgentModule, part: RolloutTensors, evidence_BKF: Tensor, value_mask_BT: Tensor, *, ends: bool
) -> tuple[Tensor, Tensor]:
    """The critic's values where it is read, [B, T].

    With `ends` also those of the state after each row's last token, [B], and else zeros.
    """
    if not ends:
        evidence_AF = evidence_at(evidence_BKF, part.turn_ids_BT, value_mask_BT)
        values_BT = module.shared_base.values(part.token_ids_BT, part.attention_BT, value_mask_BT, evidence_AF)
        return values_BT, values_BT.new_zeros(len(values_BT))
    rows = torch.arange(part.token_ids_BT.shape[0], device=value_mask_BT.device)
    lengths_B = part.attention_BT.sum(dim=1)
    # A column more, so that the state after the last token predicts something that can be read.
    ids = torch.cat([part.token_ids_BT, part.token_ids_BT.new_full((len(rows), 1), module.pad_id)], dim=1)
    read = torch.cat([value_mask_BT, torch.zeros_like(value_mask_BT[:, :1])], dim=1)
    read[rows, lengths_B] = True
    attention = torch.cat([part.attention_BT, torch.zeros_like(part.attention_BT[:, :1])], dim=1)
    turns = torch.cat([part.turn_ids_BT, torch.full_like(part.turn_ids_BT[:, :1], -1)], dim=1)
    # Inside a turn what is known is what was known before it; after a turn's passages it is more.
    ended_B = ~part.mask_BT[rows, lengths_B - 1]
    turns[rows, lengths_B] = turns.max(dim=1).values + ended_B.long()
    values = module.shared_base.values(ids, attention, read, evidence_at(evidence_BKF, turns, read))
    return torch.where(value_mask_BT, values[:, :-1], 0.0), values[rows, lengths_B]
