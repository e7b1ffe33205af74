"""An iteration's rollouts while they are prepared: the settings, the draft, and the stages that fill it in.

A stage is one feature. Those named `read_...` are called once for each pass of the base.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from medagent.errors import ConfigError
from medagent.training.advantages import EQUAL, GAE, AdvantageEstimator, Reduce, group_means
from medagent.training.experience import RolloutTensors, evidence_at
from medagent.training.module import AgentModule
from medagent.training.prepare.evidence import evidence_of
from medagent.types import Rollout, StopReason

ImportanceMode = Literal["behaviour", "decoupled"]
TruncatedMode = Literal["terminal", "bootstrap", "mask"]
ZeroStdMode = Literal["keep", "mask", "resample"]


@dataclass(frozen=True)
class OffPolicy:
    """The policy that importance weights compare with, and the largest age of rollouts.

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
        if self.staleness < 0:
            raise ConfigError(f"OffPolicy.staleness: found {self.staleness}, wanted 0 or more iterations.")
        if self.overlap and not self.staleness:
            raise ConfigError(
                "OffPolicy.overlap: found true with staleness 0. Rollouts sampled during an update are one iteration "
                "old when it is used. Set staleness to 1."
            )
        if self.cap < 1:
            raise ConfigError(
                f"OffPolicy.cap: found {self.cap}, wanted 1 or more (below it, on-policy terms shrink too)."
            )


@dataclass
class ExperienceDraft:
    """Experience in the making: each stage of `medagent.training.prepare` fills in its part."""

    module: AgentModule
    estimator: AdvantageEstimator
    reduce: Reduce
    off_policy: OffPolicy
    truncated: TruncatedMode
    zero_std_groups: ZeroStdMode
    rollouts: Sequence[Rollout]
    tensors: RolloutTensors
    evidence_BKF: Tensor = field(default_factory=lambda: torch.zeros(0))
    """[B, K, F] what the critic is told; F is 0 where it reads the context alone."""
    metrics: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        logprobs_BT = self.tensors.rollout_logprobs_BT
        self.truncated_B = torch.tensor([rollout.stop_reason.truncated for rollout in self.rollouts])
        self.reference_BT, self.proximal_BT, self.values_BT = (torch.zeros_like(logprobs_BT) for _ in range(3))
        self.ends_B = torch.zeros(len(self.rollouts))  # the critic's values after the last tokens
        self.old_BT, self.truncation_BT = logprobs_BT, torch.zeros_like(logprobs_BT)

    def value_mask(self) -> Tensor:
        """[B, T] where the critic is read."""
        return self.estimator.value_mask(self.tensors.mask_BT, self.tensors.turn_ids_BT)


def mask_truncated(draft: ExperienceDraft) -> None:
    """Truncated rollouts have no loss with `truncated` "mask"; their rewards still count in their groups."""
    if draft.truncated == "mask":
        draft.tensors = _without_loss(draft.tensors, draft.truncated_B)


def mask_failed(draft: ExperienceDraft) -> None:
    """Rollouts whose environment failed have no loss. They count as the mean of their group's others."""
    failed_B = torch.tensor([rollout.stop_reason.failed for rollout in draft.rollouts])
    if not failed_B.any():
        return
    rewards_BT, groups_B = draft.tensors.rewards_BT.masked_fill(failed_B[:, None], 0.0), draft.tensors.groups_B
    earned_B, ended_B = (group_means(each, groups_B)[1] for each in (rewards_BT.sum(dim=1), (~failed_B).float()))
    rewards_BT[failed_B, 0] = (earned_B / ended_B.clamp(min=EQUAL))[failed_B]
    draft.tensors = replace(_without_loss(draft.tensors, failed_B), rewards_BT=rewards_BT)


def mask_zero_std(draft: ExperienceDraft) -> None:
    """Count the groups whose rollouts all earned the same; they have no loss unless `zero_std_groups` is "keep"."""
    if not draft.estimator.needs_groups:
        return
    tensors = draft.tensors
    outcomes_B = tensors.rewards_BT.double().sum(dim=1)
    counts_B, means_B = group_means(outcomes_B, tensors.groups_B)
    _, spread_B = group_means((outcomes_B - means_B).abs(), tensors.groups_B)
    equal_B = spread_B < EQUAL
    equal, groups = draft.reduce(torch.stack([(equal_B / counts_B).sum(), (1 / counts_B).sum()])).tolist()
    draft.metrics["reward/zero_std_groups"] = equal / groups
    if draft.zero_std_groups != "keep":
        draft.tensors = _without_loss(tensors, equal_B)


def _without_loss(tensors: RolloutTensors, left_out_B: Tensor) -> RolloutTensors:
    left_out_B1 = left_out_B[:, None]
    mask_BT, turn_ids_BT = tensors.mask_BT & ~left_out_B1, tensors.turn_ids_BT.masked_fill(left_out_B1, -1)
    return replace(tensors, mask_BT=mask_BT, turn_ids_BT=turn_ids_BT)


def tell_critic(draft: ExperienceDraft) -> None:
    """Collect what the critic is told besides the context."""
    rollouts, inputs = draft.rollouts, draft.module.critic_inputs
    if inputs == "context":
        draft.evidence_BKF = torch.zeros(len(rollouts), 1 + max(len(rollout.turns) for rollout in rollouts), 0)
    else:
        draft.evidence_BKF = evidence_of(rollouts, draft.tensors.groups_B if inputs == "evidence_and_group" else None)


def read_reference(draft: ExperienceDraft, part: RolloutTensors, rows: Sequence[int]) -> None:
    """Log-probs of the frozen start, where a KL term asks for them."""
    module = draft.module
    if module.kl_coef:
        found_BT = module.shared_base.reference_logprobs(
            part.token_ids_BT, part.attention_BT, part.mask_BT, temperature=module.temperature
        )
        _put(draft.reference_BT, rows, found_BT)


def read_policy(draft: ExperienceDraft, part: RolloutTensors, rows: Sequence[int]) -> None:
    """Log-probs of the proximal policy, for decoupled weights."""
    if draft.off_policy.importance == "decoupled":
        module = draft.module
        scores = module.shared_base.policy_scores(
            part.token_ids_BT, part.attention_BT, part.mask_BT, temperature=module.temperature
        )
        _put(draft.proximal_BT, rows, scores.logprobs_BT)


def read_values(draft: ExperienceDraft, part: RolloutTensors, rows: Sequence[int]) -> None:
    """Values of the critic, and with bootstrap those after the last tokens."""
    if not draft.estimator.needs_critic:
        return
    evidence_BKF = draft.evidence_BKF[rows].to(draft.module.device)
    value_mask_BT = draft.value_mask()[rows, : part.token_ids_BT.shape[1]].to(draft.module.device)
    bootstraps = draft.truncated == "bootstrap"
    values_BT, ends_B = _values(draft.module, part, evidence_BKF, value_mask_BT, ends=bootstraps)
    _put(draft.values_BT, rows, values_BT)
    draft.ends_B[rows] = ends_B.cpu()


def decouple_weights(draft: ExperienceDraft) -> None:
    """Take importance weights against the proximal policy, and truncate those of the sampler (`OffPolicy`)."""
    if draft.off_policy.importance == "decoupled":
        gap_BT = torch.where(draft.tensors.mask_BT, draft.proximal_BT - draft.tensors.rollout_logprobs_BT, 0.0)
        draft.old_BT = draft.proximal_BT
        draft.truncation_BT = gap_BT.exp().clamp(max=draft.off_policy.cap) * draft.tensors.mask_BT


def penalise_kl(draft: ExperienceDraft) -> None:
    """Take the log-ratio to the reference off each action token's reward, with `kl_mode` "reward"."""
    if draft.module.kl_mode == "reward":
        k1_BT = torch.where(draft.tensors.mask_BT, draft.tensors.rollout_logprobs_BT - draft.reference_BT, 0.0)
        rewards_BT = draft.tensors.rewards_BT - draft.module.kl_coef * k1_BT
        draft.tensors = replace(draft.tensors, rewards_BT=rewards_BT)


def bootstrap_truncated(draft: ExperienceDraft) -> None:
    """Add gamma V of where a rollout was truncated to its last reward; after the last turn's search V before it."""
    if draft.truncated != "bootstrap":
        return
    assert isinstance(draft.estimator, GAE)
    mask_BT, ends_B = draft.tensors.mask_BT, draft.ends_B
    last_BT = mask_BT & (mask_BT.long().cumsum(1) == mask_BT.long().sum(1, keepdim=True))
    if draft.module.critic_inputs == "context":
        taught_B = torch.tensor([_would_act_again(rollout) for rollout in draft.rollouts])
        draft.ends_B = ends_B = torch.where(taught_B, ends_B, (draft.values_BT * last_BT).sum(dim=1))
    added_BT = last_BT * (draft.estimator.gamma * ends_B * draft.truncated_B)[:, None]
    draft.tensors = replace(draft.tensors, rewards_BT=draft.tensors.rewards_BT + added_BT)


def check_bootstrap(module: AgentModule, estimator: AdvantageEstimator) -> None:
    """Raise ConfigError if no critic is taught inside turns, where most rollouts are truncated."""
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


def _put(whole_BT: Tensor, rows: Sequence[int], part_BT: Tensor) -> None:
    whole_BT[rows, : part_BT.shape[1]] = part_BT.cpu()


def _would_act_again(rollout: Rollout) -> bool:
    """Whether an action can follow the last token: after the last turn allowed none does."""
    shown = bool(rollout.turns and rollout.turns[-1].observation_ids)
    return shown or rollout.stop_reason is not StopReason.MAX_TURNS


def _values(
    module: AgentModule, part: RolloutTensors, evidence_BKF: Tensor, value_mask_BT: Tensor, *, ends: bool
) -> tuple[Tensor, Tensor]:
    """[B, T] values where the critic is read, and with `ends` [B] those after the last tokens, else zeros."""
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
