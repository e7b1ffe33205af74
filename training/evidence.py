"""What a critic may know and the policy may not: how near a rollout has come to its evidence (asymmetric actor-critic, arXiv 1710.06542).

A baseline may hang on anything that a turn's tokens do not decide, so as a baseline the gold answer and the gold passages of a training question bias no
gradient. Where values are targets too (`lam` below 1, truncated rollouts that are bootstrapped), what the critic gets wrong enters it, as with any critic.
The policy never sees any of it, in training or after.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evaluation.grounding import DECISIONS, gold_texts, supports
from medagent.records import Rollout

TURNS = 4  # told apart one by one; the last of them stands for all that follow
SIGHTS = TURNS + 6


def evidence(rollout: Rollout) -> list[list[float]]:
    """[turns + 1][SIGHTS] numbers: what is known before each turn, and after the last.

    Which turn it is (one of TURNS); whether a passage read so far supports the gold answer (`evaluation.grounding.supports`); the share of the gold passages
    read, and whether that is all; their number, up to 4, halved; one over the rank at which the last search gave a gold passage (0: it gave none), and
    the highest of that so far (an agent follows what stands first). Without a gold answer (yes, no
    and maybe are none that words could support), or gold passages, theirs are 0.
    """
    question = rollout.question
    texts = [text for text in gold_texts(question) if text.lower() not in DECISIONS] if question.answer else []
    wanted = set(question.gold_passage_ids)
    rows, supported, found, last, highest = [], False, set[str](), 0.0, 0.0
    for number in range(len(rollout.turns) + 1):
        which = [0.0] * TURNS
        which[min(number, TURNS - 1)] = 1.0
        share = len(found) / len(wanted) if wanted else 0.0
        rows.append([*which, float(supported), share, float(share == 1), min(len(wanted), 4) / 2, last, highest])
        hits = rollout.turns[number].hits if number < len(rollout.turns) else ()
        supported = supported or any(supports(hit, text) for hit in hits for text in texts)
        found |= {hit.passage.id for hit in hits} & wanted
        last = max((1 / rank for rank, hit in enumerate(hits, 1) if hit.passage.id in wanted), default=0.0)
        highest = max(highest, last)
    return rows


def evidence_of(rollouts: Sequence[Rollout]) -> Tensor:
    """[B, K, SIGHTS] for K the most turns + 1; 0 beyond a rollout's own."""
    rows = [evidence(rollout) for rollout in rollouts]
    most = max(len(row) for row in rows)
    return torch.tensor([row + [[0.0] * SIGHTS] * (most - len(row)) for row in rows])
