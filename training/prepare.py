"""From graded rollouts to experience: the constants of the update, read once before its first optimizer step."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from medagent.errors import ConfigError, require
from medagent.evaluation.grading.citations import states_gold
from medagent.retrieval.passages import names_found
from medagent.training.advantages import EQUAL, GAE, AdvantageEstimator, Reduce, group_means
from medagent.training.batching import pack_rows, split_by_length
from medagent.training.experience import Experience, RolloutTensors, evidence_at, rollout_name, step_weights, tensorize
from medagent.training.finite_steps import in_words, rows_not_finite
from medagent.training.forward import TURNS
from medagent.training.memory.estimate import PREPARED_ROWS
from medagent.training.module import AgentModule
from medagent.training.objectives import ratio_segments
from medagent.types import Rollout, StopReason


def evidence(rollout: Rollout) -> list[list[float]]:
    """[turns + 1][EVIDENCE] numbers: what is known before each turn, and after the last.

    In this order:

    - which turn it is, one of TURNS;
    - whether a passage read so far states a right answer (`medagent.evaluation.grading.citations.states_gold`);
    - the share of the gold passages read, and whether that is all of them;
    - the number of gold passages, at most 4, halved;
    - one over the rank at which the last search gave a gold passage, 0 where it gave none;
    - the highest such number so far.

    Without gold passages their numbers are 0. Without a gold answer its own is 0. So it is for yes, no and maybe, which
    no words could support.
    """
    question = rollout.question
    wanted = set(question.gold_passage_ids)
    rows, supported, found, last, highest = [], False, set[str](), 0.0, 0.0
    for number in range(len(rollout.turns) + 1):
        which = [0.0] * TURNS
        which[min(number, TURNS - 1)] = 1.0
        share = len(found) / len(wanted) if wanted else 0.0
        rows.append([*which, float(supported), share, float(share == 1), min(len(wanted), 4) / 2, last, highest])
        hits = rollout.turns[number].hits if number < len(rollout.turns) else ()
        supported = supported or states_gold(hits, question)
        found |= names_found(wanted, (hit.passage for hit in hits))
        last = max((1 / rank for rank, hit in enumerate(hits, 1) if names_found(wanted, [hit.passage])), default=0.0)
        highest = max(highest, last)
    return rows


def evidence_of(rollouts: Sequence[Rollout], groups_B: Tensor | None = None) -> Tensor:
    """[B, K, F] evidence, with K the most turns + 1; 0 beyond a rollout's own.

    F is EVIDENCE. With `groups_B`, the numbers of the rollouts' groups, F is one more. The last number is then the mean
    return of the group's other rollouts, 0 where there are none.
    """
    rows = [evidence(rollout) for rollout in rollouts]
    if groups_B is not None:
        returns_B = torch.tensor([rollout.total_reward for rollout in rollouts])
        counts_B, means_B = group_means(returns_B, groups_B)
        others_B = (counts_B * means_B - returns_B) / (counts_B - 1).clamp(min=1)
        rows = [[[*row, other] for row in own] for own, other in zip(rows, others_B.tolist(), strict=True)]
    most, width = max(len(row) for row in rows), len(rows[0][0])
    return torch.tensor([row + [[0.0] * width] * (most - len(row)) for row in rows])


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
        require(self.staleness >= 0, "OffPolicy.staleness", self.staleness, "0 or more iterations")
        old = self.staleness > 0 or not self.overlap
        require(old, "OffPolicy.overlap", "true with staleness 0", "staleness 1 or more, as such rollouts are old")
        require(self.cap >= 1, "OffPolicy.cap", self.cap, "1 or more (below it, on-policy terms shrink too)")


def check_bootstrap(module: AgentModule, estimator: AdvantageEstimator) -> None:
    """Raise ConfigError if no critic is taught inside turns, where most rollouts are truncated."""
    if not isinstance(estimator, GAE):
        raise ConfigError(
            f"data.truncated is bootstrap, and data.advantage ({type(estimator).__name__}) has no value to bootstrap "
            "from. Use GAE."
        )
    if estimator.level == "turn" and module.critic_inputs == "context":
        raise ConfigError(
            "data.truncated is bootstrap with data.advantage GAE of level turn, whose critic knows no value inside a "
            "turn. Set level: token, truncated: terminal or mask, or model.critic_inputs: evidence."
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
    zero_std_groups: ZeroStdMode = "keep",
) -> Experience:
    """The rollouts as experience, weighted for one optimizer step over all of them; `reduce` sums over ranks.

    `truncated`, `zero_std_groups`: see `RolloutData`. Raises ConfigError as `check_bootstrap` does.
    """
    if truncated == "bootstrap":
        check_bootstrap(module, estimator)
    tensors = tensorize(rollouts, pad_id=module.pad_id, num_samples=num_samples)
    truncated_B = torch.tensor([rollout.stop_reason.truncated for rollout in rollouts])
    if truncated == "mask":  # their rewards still count in their groups
        tensors = _without_loss(tensors, truncated_B)
    tensors, metrics = _without_failed(tensors, rollouts), dict[str, float]()
    if estimator.needs_groups:
        equal_B, metrics["reward/zero_std_groups"] = _equal_groups(tensors, reduce)
        tensors = tensors if zero_std_groups == "keep" else _without_loss(tensors, equal_B)
    if module.critic_inputs == "context":
        evidence_BKF = torch.zeros(len(rollouts), 1 + max(len(rollout.turns) for rollout in rollouts), 0)
    else:
        groups_B = tensors.groups_B if module.critic_inputs == "evidence_and_group" else None
        evidence_BKF = evidence_of(rollouts, groups_B)
    value_mask_BT = estimator.value_mask(tensors.mask_BT, tensors.turn_ids_BT)
    decoupled, bootstraps = off_policy.importance == "decoupled", truncated == "bootstrap"
    read = _read(
        module,
        tensors,
        proximal=decoupled,
        value_mask_BT=value_mask_BT if estimator.needs_critic else None,
        evidence_BKF=evidence_BKF,
        ends=bootstraps,
    )
    sampled_BT, mask_BT = tensors.rollout_logprobs_BT, tensors.mask_BT
    old_BT, truncation_BT = sampled_BT, mask_BT.float()
    if decoupled:
        gap_BT = torch.where(mask_BT, read.proximal_BT - sampled_BT, 0.0)
        old_BT, truncation_BT = read.proximal_BT, gap_BT.exp().clamp(max=off_policy.cap) * mask_BT
    rewards_BT, ends_B = tensors.rewards_BT, read.ends_B
    if module.kl_mode == "reward":
        k1_BT = torch.where(mask_BT, sampled_BT - read.reference_BT, 0.0)
        rewards_BT = rewards_BT - module.kl_coef * k1_BT
    if bootstraps:  # gamma V of where a rollout was cut; after the last turn's search V before it
        assert isinstance(estimator, GAE)
        last_BT = mask_BT & (mask_BT.long().cumsum(1) == mask_BT.long().sum(1, keepdim=True))
        if module.critic_inputs == "context":
            ended = StopReason.MAX_TURNS  # after the last turn allowed no action follows, unless passages were shown
            taught = (each.stop_reason is not ended or bool(each.turns[-1].observation_ids) for each in rollouts)
            taught_B = torch.tensor(list(taught))
            ends_B = torch.where(taught_B, ends_B, (read.values_BT * last_BT).sum(dim=1))
        rewards_BT = rewards_BT + last_BT * (estimator.gamma * ends_B * truncated_B)[:, None]
    tensors, names = replace(tensors, rewards_BT=rewards_BT), tuple(map(rollout_name, rollouts))
    _warn_of_not_finite(
        names,
        {
            "the sampler's log-probs": sampled_BT,
            "the reference's log-probs": read.reference_BT,
            "the policy's log-probs": read.proximal_BT,
            "the critic's values": read.values_BT,
            "the critic's values after the last token": ends_B[:, None],
            "the rewards": rewards_BT,
        },
    )
    advantages_BT, returns_BT = estimator.estimate(tensors, read.values_BT, reduce)
    loss_weights_BT, value_weights_BT = (
        step_weights(each_BT, reduction="rollout-mean", reduce=reduce, factor=1.0)
        for each_BT in (mask_BT, value_mask_BT)
    )
    return Experience(
        **vars(tensors),
        ratio_segments_BT=ratio_segments("token", mask_BT, tensors.turn_ids_BT),
        evidence_BKF=evidence_BKF,
        old_logprobs_BT=old_BT,
        truncation_BT=truncation_BT,
        reference_logprobs_BT=read.reference_BT,
        values_BT=read.values_BT,
        advantages_BT=advantages_BT,
        returns_BT=returns_BT,
        loss_weights_BT=loss_weights_BT,
        value_weights_BT=value_weights_BT,
        metrics=metrics,
        names=names,
    )


class _Read(NamedTuple):
    """What the base tells of the rollouts before the update; 0 where it is not asked."""

    reference_BT: Tensor
    proximal_BT: Tensor
    values_BT: Tensor
    ends_B: Tensor
    """[B] the critic's values after the last tokens."""


def _read(
    module: AgentModule,
    tensors: RolloutTensors,
    *,
    proximal: bool,
    value_mask_BT: Tensor | None,
    evidence_BKF: Tensor,
    ends: bool,
) -> _Read:
    """Read the frozen start where a KL term asks for it, the present policy, and the critic."""
    base, temperature, sampled_BT = module.shared_base, module.temperature, tensors.rollout_logprobs_BT
    none_BT = torch.zeros_like(sampled_BT)
    found = _Read(none_BT, none_BT.clone(), none_BT.clone(), torch.zeros(len(sampled_BT)))
    for rows in _passes(module, tensors):
        part = tensors.rows(rows).to(module.device)
        marked, width = (part.token_ids_BT, part.attention_BT, part.mask_BT), part.token_ids_BT.shape[1]
        if module.kl_coef:
            reference_BT = base.reference_logprobs(*marked, temperature=temperature)
            found.reference_BT[rows, :width] = reference_BT.cpu()
        if proximal:
            proximal_BT = base.policy_scores(*marked, temperature=temperature).logprobs_BT
            found.proximal_BT[rows, :width] = proximal_BT.cpu()
        if value_mask_BT is not None:
            own_BT = value_mask_BT[rows, :width].to(module.device)
            values_BT, ends_B = _values(module, part, evidence_BKF[rows].to(module.device), own_BT, ends=ends)
            found.values_BT[rows, :width], found.ends_B[rows] = values_BT.cpu(), ends_B.cpu()
    return found


def _without_loss(tensors: RolloutTensors, left_out_B: Tensor) -> RolloutTensors:
    left_out_B1 = left_out_B[:, None]
    mask_BT, turn_ids_BT = tensors.mask_BT & ~left_out_B1, tensors.turn_ids_BT.masked_fill(left_out_B1, -1)
    return replace(tensors, mask_BT=mask_BT, turn_ids_BT=turn_ids_BT)


def _without_failed(tensors: RolloutTensors, rollouts: Sequence[Rollout]) -> RolloutTensors:
    """Rollouts whose environment failed have no loss. They count as the mean of their group's others."""
    failed_B = torch.tensor([rollout.stop_reason.failed for rollout in rollouts])
    if not failed_B.any():
        return tensors
    rewards_BT, groups_B = tensors.rewards_BT.masked_fill(failed_B[:, None], 0.0), tensors.groups_B
    earned_B, ended_B = (group_means(each, groups_B)[1] for each in (rewards_BT.sum(dim=1), (~failed_B).float()))
    rewards_BT[failed_B, 0] = (earned_B / ended_B.clamp(min=EQUAL))[failed_B]
    return replace(_without_loss(tensors, failed_B), rewards_BT=rewards_BT)


def _equal_groups(tensors: RolloutTensors, reduce: Reduce) -> tuple[Tensor, float]:
    """[B] whether a rollout's whole group earned the same, and the share of such groups over ranks."""
    outcomes_B = tensors.rewards_BT.double().sum(dim=1)
    counts_B, means_B = group_means(outcomes_B, tensors.groups_B)
    _, spread_B = group_means((outcomes_B - means_B).abs(), tensors.groups_B)
    equal_B = spread_B < EQUAL
    equal, groups = reduce(torch.stack([(equal_B / counts_B).sum(), (1 / counts_B).sum()])).tolist()
    return equal_B, equal / groups


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


def _warn_of_not_finite(names: Sequence[str], tensors: Mapping[str, Tensor]) -> None:
    for what, values in tensors.items():
        if bad := [name for name, row in zip(names, rows_not_finite(values), strict=True) if row]:
            warnings.warn(
                f"rollouts: {what} are not finite in {in_words(bad)}. Steps with them are skipped. Check the base "
                "model and the sampler, or set model.dtype to float32.",
                stacklevel=3,
            )


def _passes(module: AgentModule, tensors: RolloutTensors) -> list[list[int]]:
    """The rows of each pass of the base, within the budget of tokens."""
    lengths = tensors.attention_BT.sum(dim=1).tolist()
    rows, budget = range(len(lengths)), module.execution
    if budget.token_limit:
        return pack_rows(budget, tensors.token_ids_BT, tensors.attention_BT)
    if budget.shared_prefixes:  # in their order: samples of a question follow each other
        return [list(rows[start : start + PREPARED_ROWS]) for start in rows[::PREPARED_ROWS]]
    return split_by_length(rows, lengths, parts=max(1, len(lengths) // PREPARED_ROWS))
