"""From graded rollouts to experience: the constants of the update, read once before its first optimizer step."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from medagent.training.advantages import AdvantageEstimator, Reduce
from medagent.training.batching import pack_rows, split_by_length
from medagent.training.experience import Experience, RolloutTensors, rollout_name, step_weights, tensorize
from medagent.training.finite_steps import in_words, rows_not_finite
from medagent.training.memory.estimate import PREPARED_ROWS
from medagent.training.module import AgentModule
from medagent.training.objectives import ratio_segments
from medagent.training.prepare import stages
from medagent.training.prepare.stages import ExperienceDraft, OffPolicy, TruncatedMode, ZeroStdMode, check_bootstrap
from medagent.types import Rollout

__all__ = ["OffPolicy", "TruncatedMode", "ZeroStdMode", "check_bootstrap", "prepare"]

BEFORE: tuple[Callable[[ExperienceDraft], None], ...] = (
    stages.mask_truncated,
    stages.mask_failed,
    stages.mask_zero_std,
    stages.tell_critic,
)
READS: tuple[Callable[[ExperienceDraft, RolloutTensors, Sequence[int]], None], ...] = (
    stages.read_reference,
    stages.read_policy,
    stages.read_values,
)
AFTER: tuple[Callable[[ExperienceDraft], None], ...] = (
    stages.decouple_weights,
    stages.penalise_kl,
    stages.bootstrap_truncated,
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
    draft = ExperienceDraft(module, estimator, reduce, off_policy, truncated, zero_std_groups, rollouts, tensors)
    for stage in BEFORE:
        stage(draft)
    draft.truncation_BT = draft.tensors.mask_BT.float()
    for rows in _passes(module, draft.tensors):
        part = draft.tensors.rows(rows).to(module.device)
        for read in READS:
            read(draft, part, rows)
    for stage in AFTER:
        stage(draft)
    names = tuple(map(rollout_name, rollouts))
    weights_of = partial(step_weights, reduction="rollout-mean", reduce=reduce, factor=1.0)
    _warn_of_not_finite(
        names,
        {
            "the sampler's log-probs": draft.tensors.rollout_logprobs_BT,
            "the reference's log-probs": draft.reference_BT,
            "the policy's log-probs": draft.proximal_BT,
            "the critic's values": draft.values_BT,
            "the critic's values after the last token": draft.ends_B[:, None],
            "the rewards": draft.tensors.rewards_BT,
        },
    )
    advantages_BT, returns_BT = estimator.estimate(draft.tensors, draft.values_BT, reduce)
    return Experience(
        **vars(draft.tensors),
        ratio_segments_BT=ratio_segments("token", draft.tensors.mask_BT, draft.tensors.turn_ids_BT),
        evidence_BKF=draft.evidence_BKF,
        old_logprobs_BT=draft.old_BT,
        truncation_BT=draft.truncation_BT,
        reference_logprobs_BT=draft.reference_BT,
        values_BT=draft.values_BT,
        advantages_BT=advantages_BT,
        returns_BT=returns_BT,
        loss_weights_BT=weights_of(draft.tensors.mask_BT),
        value_weights_BT=weights_of(draft.value_mask()),
        metrics=draft.metrics,
        names=names,
    )


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
