"""Metrics of an iteration's rollouts: figures of all ranks together, which `reduce` sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from medagent.training.advantages import Reduce
from medagent.training.experience import Experience
from medagent.training.prepare import OffPolicy
from medagent.types import Rollout, StopReason

METRICS: dict[str, str] = {
    "reward/mean": "Mean reward per rollout, rewards of turns included.",
    "reward/success": "Share of sampled rollouts whose answer is right.",
    "reward/zero_std_groups": "Share of questions whose rollouts all earned the same. With a group's advantage only.",
    "rollout/resampled_groups": "Questions drawn in place of groups that all earned the same. Mode resample only.",
    "rollout/turns": "Turns per rollout.",
    "rollout/searches": "Searches per rollout.",
    "rollout/tokens": "Tokens per rollout: prompt, turns and passages.",
    "rollout/valid_answer": "Share of rollouts that ended with an answer of the required form.",
    "rollout/truncated": "Share of rollouts that a limit of turns or tokens cut.",
    "rollout/staleness": "Mean age of the rollouts, in iterations of the policy; 0 is on-policy.",
    "rollout/search_retries": "Searches that failed and were tried again.",
    "rollout/logprob_gap": "Mean gap of sampler's and trainer's log-probs, in nats per token. Decoupled weights only.",
    "rollout/logprob_gap_max": "The largest of these differences, in nats.",
    "policy/loss": "Policy loss of an optimizer step: the negative clipped surrogate, without KL and entropy.",
    "policy/clip_fraction": "Share of action tokens whose term is clipped, so that it carries no gradient.",
    "policy/token_clip_fraction": "Share of action tokens that a weight per token with a range of 0.2 would clip.",
    "policy/ratio_outside": "Share of action tokens whose importance weight is outside the clip range.",
    "policy/ratio_max": "Largest importance weight of an optimizer step.",
    "policy/approx_kl": "Estimate of KL(sampling policy || present policy), in nats per action token.",
    "policy/entropy": "Entropy of the policy, in nats per action token.",
    "policy/grad_norm": "L2 norm of the policy's gradient before gradient clipping.",
    "policy/clip_bias_norm": "L2 norm of the gradient that clipping removes. Needs `ClippingBiasCorrection`.",
    "policy/clip_bias_scale": (
        "Factor that `ClippingBiasCorrection` puts on the policy's learning rate in this step, or on its gradient; "
        "1 changes nothing. Formula: [algorithms](../algorithms.md#clipping-bias-correction)."
    ),
    "update/skipped": "Optimizer steps skipped in an iteration, as a number was not finite; in no other figure.",
    "update/max_tokens": "Most tokens of a pass, where `execution.max_tokens` is null and the free memory limits it.",
    "critic/loss": "Squared error of the critic's values against the returns, halved.",
    "critic/explained_variance": "1 - Var(return - value) / Var(return), on rollouts not trained on yet.",
    "critic/grad_norm": "L2 norm of the critic's gradient before gradient clipping.",
    "kl/reference": "k3 estimate of KL(policy || reference), in nats per action token. Not with `kl_coef` 0.",
    "preference/loss": "Loss of an optimizer step's pairs, per pair. `medagent preference` only, as all of these.",
    "preference/accuracy": "Share of pairs whose margin is above 0: the policy prefers the right rollout.",
    "preference/margin": "Mean margin of the pairs, whose loss is -log sigmoid(margin).",
    "preference/chosen_logratio": "log pi - log pi_ref, summed over a right rollout's action tokens, in nats.",
    "preference/rejected_logratio": "The same of wrong rollouts.",
    "preference/chosen_kl": "KL(pi_ref || pi), summed over a right rollout's action tokens, in nats. Not with DPO.",
    "preference/rejected_kl": "The same of wrong rollouts. Not with DPO.",
    "preference/pairs": "Pairs that are trained on, over all ranks.",
    "preference/held_out": "Pairs that are held out.",
    "preference/held_out_loss": "Loss on held-out pairs, per pair.",
    "preference/held_out_accuracy": "Share of held-out pairs whose margin is above 0.",
    "sft/loss": "Negative log-likelihood of the demonstrations, in nats per action token. `medagent sft` only.",
    "sft/demonstrations": "Dialogues that are imitated, over all ranks. `medagent sft` only.",
    "sft/left_out_REASON": (
        "Questions or dialogues left out for a reason, over all ranks: no_gold, not_found, wrong, few_searches, "
        "surplus, repeated, no_answer, after_answer, unreadable, max_turns, max_turn_tokens, max_total_tokens, "
        "citation or control_token. `medagent sft` only."
    ),
    "sft/part_NUMBER": "Dialogues drawn from a part of `MixedDemonstrations`, counted from 1. `medagent sft` only.",
    "sft/held_out": "Dialogues held out, over all ranks. `medagent sft` only.",
    "sft/held_out_loss": "Negative log-likelihood of held-out dialogues, in nats per token. Needs `HeldOutLoss`.",
    "sft/held_out_turns": "Share of held-out turns that greedy decoding would write exactly. Needs `HeldOutLoss`.",
    "validation/accuracy": "Accuracy of greedy answers to the held-out questions. Needs `data.val_benchmark`.",
    "validation/KIND": "The same for each kind of question.",
    "validation/exact_match": "Share of open answers that equal a right one by SQuAD's normalisation.",
    "validation/f1": "Mean token F1 of open answers with the best right one, by SQuAD's normalisation.",
    "validation/contains_answer": "Share of open answers that hold a right one, with at most five words more.",
    "validation/factoid_strict": "Factoid questions: share whose first answer is right.",
    "validation/factoid_lenient": "Factoid questions: share with a right one among the first five answers.",
    "validation/factoid_mrr": "Factoid questions: mean reciprocal rank of the first right answer among five.",
    "validation/list_precision": "List questions: mean precision of the entries.",
    "validation/list_recall": "List questions: mean recall of the entries.",
    "validation/list_f1": "List questions: mean F1 of the entries.",
    "validation/yes_no_accuracy": "Yes/no questions: share of right decisions.",
    "validation/yes_no_macro_f1": "Yes/no questions: mean of the F1 of yes and the F1 of no.",
    "monitor/signs": "Signs of collapse seen in this iteration. Needs `CollapseMonitor`.",
    "monitor/alarm": "1 where the signs amount to a collapse, else 0.",
    "sampler/probe_gap": ("Mean difference between sampler and trainer on the probe after a sync, in nats per token."),
    "sampler/probe_moved": "Root mean square of the trainer's change on the probe since the last sync, in nats.",
    "sampler/measurable": "1 where that change is large enough for the probe to judge, else 0.",
    "sampler/arrived": "Share of the trainer's change that the sampler followed; 1 is well. Only where measurable.",
    "sampler/merge_lost": "Share of the policy's LoRA that rounding took from the merge. Merged syncs only.",
    "sampler/replicas": "Servers that sample.",
    "compute/forward_tokens": "Tokens read forward since the run began, over all ranks, without padding and measuring.",
    "compute/backward_tokens": "Tokens that a backward pass has gone through since the run began, over all ranks.",
    "time/rollout": "Seconds per iteration that the trainer waited for rollouts.",
    "time/reward": "Seconds per iteration that rewards took once sampling had ended.",
    "time/update": "Seconds per iteration from its start to its last update, rollouts left out.",
    "time/search": "Mean seconds from asking for a search to its result.",
    "time/search_p95": "The 95th percentile of these seconds.",
    "throughput/action_tokens_per_s": "Sampled tokens per second of sampling, wherever it ran.",
    "throughput/queries_per_search": "Queries that share one call of the retriever, on average.",
}

Largest = Callable[[Tensor], Tensor]


def explained_variance(batch: Experience, value_mask_BT: Tensor, reduce: Reduce) -> float:
    """1 - Var(return - value) / Var(return) where the critic is read, before any update on these rollouts."""
    returns = batch.returns_BT[value_mask_BT]
    variance, left = (
        variance_over_ranks(returns, reduce),
        variance_over_ranks(returns - batch.values_BT[value_mask_BT], reduce),
    )
    return float(1 - left / variance) if variance > 0 else 0.0


def variance_over_ranks(values: Tensor, reduce: Reduce) -> Tensor:
    """[] the variance over all ranks, from each rank's own variance and mean (Chan et al., 1979)."""
    own = values if len(values) else values.new_zeros(1)
    count, mean, variance = float(len(values)), float(own.mean()), float(own.var(correction=0))
    first = reduce(torch.tensor([count, count * mean], dtype=torch.float64))
    total = float(first[0].clamp(min=1))
    apart = mean - float(first[1]) / total
    second = reduce(torch.tensor([count * variance, count * apart**2], dtype=torch.float64))
    return (second.sum() / total).to(values.dtype)


def logprob_gap(batch: Experience, *, off_policy: OffPolicy, reduce: Reduce, largest: Largest) -> dict[str, float]:
    """Mean and largest gap of sampler and trainer before the update; empty unless importance is decoupled."""
    if off_policy.importance != "decoupled":
        return {}
    gaps = (batch.old_logprobs_BT - batch.rollout_logprobs_BT)[batch.mask_BT].abs()
    count, own = float(len(gaps)), gaps if len(gaps) else gaps.new_zeros(1)
    totals = reduce(torch.tensor([count, count * float(own.mean())], dtype=torch.float64))
    most = largest(own.max().double())
    return (
        {"rollout/logprob_gap": float(totals[1] / totals[0]), "rollout/logprob_gap_max": float(most)}
        if totals[0]
        else {}
    )


def rollout_metrics(rollouts: Sequence[Rollout], *, iteration: int, reduce: Reduce) -> dict[str, float]:
    """Means over rollouts, under the fixed names."""
    sums = {
        "reward/mean": sum(rollout.total_reward for rollout in rollouts),
        "reward/success": sum(rollout.success for rollout in rollouts),
        "rollout/turns": sum(len(rollout.turns) for rollout in rollouts),
        "rollout/searches": sum(rollout.num_searches for rollout in rollouts),
        "rollout/tokens": sum(len(rollout.token_ids) for rollout in rollouts),
        "rollout/valid_answer": sum(rollout.stop_reason is StopReason.ANSWERED for rollout in rollouts),
        "rollout/truncated": sum(rollout.stop_reason.truncated for rollout in rollouts),
        "rollout/staleness": sum(iteration - rollout.policy_version for rollout in rollouts),
    }
    *totals, count = reduce(torch.tensor([*sums.values(), len(rollouts)], dtype=torch.float64)).tolist()
    return {name: total / max(1.0, count) for name, total in zip(sums, totals, strict=True)}


# How the ranks' own figures of sampling become one: some add up, and of the rest the rank that is worst off counts.
ADD_UP = ("rollout/search_retries", "rollout/resampled_groups", "sampler/replicas")
LEAST = ("sampler/arrived", "throughput/queries_per_search")


def worst_of_ranks(own: Mapping[str, float], reduce: Reduce, largest: Largest) -> dict[str, float]:
    """Each figure over all ranks, which may have different ones: the sum, or the worst; unknown names stay."""
    signs = torch.tensor([-1.0 if name in LEAST else 1.0 for name in METRICS], dtype=torch.float64)
    values = torch.tensor([own.get(name, math.nan) for name in METRICS], dtype=torch.float64)
    there = ~values.isnan()
    summed = reduce(torch.where(there, values, 0.0))
    most = largest(torch.where(there, signs * values, -math.inf))
    found = {
        name: float(summed[at] if name in ADD_UP else signs[at] * most[at])
        for at, name in enumerate(METRICS)
        if float(most[at]) != -math.inf
    }
    return {**own, **found}
