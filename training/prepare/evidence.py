"""Features for the critic alone: how near a rollout is to its evidence, and how its group ended.

This is an asymmetric actor-critic (arXiv 1710.06542). A baseline may depend on anything that a turn's tokens do not
decide, such as gold passages, or the outcomes of the question's other rollouts (RLOO, arXiv 2402.14740). If values
are targets too, with `lam` below 1 or bootstrap, the critic's errors enter the gradient, as with any critic.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from medagent.evaluation.grading.citations import states_gold
from medagent.retrieval.passages import names_found
from medagent.training.advantages import group_means
from medagent.training.heads import TURNS
from medagent.types import Rollout


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
