"""Metrics of a set of rollouts, with uncertainty."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evaluation.grading import Verdict, grade
from medagent.records import Rollout

Z95 = 1.959963984540054


def wilson_interval(successes: int, n: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval of a proportion (JASA 1927); (0, 1) for n = 0.

    >>> [round(x, 3) for x in wilson_interval(8, 10)]
    [0.49, 0.943]
    """
    if n == 0:
        return 0.0, 1.0
    share = successes / n
    centre = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low, high = (centre - half) / (1 + z * z / n), (centre + half) / (1 + z * z / n)
    return max(0.0, low), min(1.0, high)


@dataclass(frozen=True)
class Accuracy:
    """A share of right answers with its 95% Wilson interval."""

    accuracy: float
    ci_low: float
    ci_high: float
    n: int

    @staticmethod
    def of(successes: int, n: int) -> Accuracy:
        """The accuracy of `successes` out of `n`."""
        low, high = wilson_interval(successes, n)
        return Accuracy(successes / n if n else 0.0, low, high, n)


@dataclass(frozen=True)
class Summary:
    """What a report says of a set of rollouts; `hit_rate` counts rollouts that were shown all their gold passages."""

    overall: Accuracy
    by_type: dict[str, Accuracy]
    unparsed: int
    no_answer: int
    searches_per_question: float
    answered_with_search: float
    cited_share: float
    hit_rate: float | None
    stop_reasons: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary with the overall accuracy's fields at the top."""
        row = asdict(self)
        return {**row.pop("overall"), **row}


def summarize(rollouts: Sequence[Rollout]) -> Summary:
    """Grade and count."""
    grades = [grade(rollout) for rollout in rollouts]
    count = max(1, len(rollouts))
    kinds = sorted({rollout.question.kind for rollout in rollouts})
    by_type = {}
    for kind in kinds:
        marks = [g.correct for r, g in zip(rollouts, grades, strict=True) if r.question.kind == kind]
        by_type[kind] = Accuracy.of(sum(marks), len(marks))
    known = [rollout for rollout in rollouts if rollout.question.gold_passage_ids]
    found = [set(rollout.question.gold_passage_ids) <= {hit.passage.id for hit in rollout.hits} for rollout in known]
    return Summary(
        overall=Accuracy.of(sum(g.correct for g in grades), len(grades)),
        by_type=by_type,
        unparsed=sum(g.verdict is Verdict.UNPARSED for g in grades),
        no_answer=sum(g.verdict is Verdict.NO_ANSWER for g in grades),
        searches_per_question=sum(rollout.num_searches for rollout in rollouts) / count,
        answered_with_search=sum(rollout.num_searches > 0 for rollout in rollouts) / count,
        cited_share=sum(bool(g.cited) for g in grades) / count,
        hit_rate=sum(found) / len(found) if found else None,
        stop_reasons=dict(Counter(rollout.stop_reason.value for rollout in rollouts)),
    )
