"""HealthBench's scores, and how far a judge agrees with people. Pure functions."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from medagent.evaluation.rubrics.rows import Case, Criterion, Labelled
from medagent.evaluation.statistics import Estimate


def score(criteria: Sequence[Criterion], met: Sequence[bool]) -> float | None:
    """Points met over all points above 0, None if there are none; negative points are faults (arXiv 2505.08775)."""
    possible = sum(criterion.points for criterion in criteria if criterion.points > 0)
    if possible <= 0:
        return None
    return sum(criterion.points for criterion, is_met in zip(criteria, met, strict=True) if is_met) / possible


def _mean(scores: Sequence[float]) -> Estimate:
    found = Estimate.mean(scores)
    value, low, high = (min(1.0, max(0.0, each)) for each in (found.value, found.ci_low, found.ci_high))
    return Estimate(value, low, high, found.n)


def rubric_scores(
    cases: Sequence[Case], met: Mapping[str, Sequence[bool]], replies: Mapping[str, str]
) -> dict[str, Estimate]:
    """The mean score of all cases, by their tags and by those of criteria, each clipped to 0 to 1 as by HealthBench.

    HealthBench Professional's cases also have a score that is adjusted for the reply's length (arXiv 2604.27470,
    section 4.1): 0.0147 less for each 500 characters above 2,000, and as much more for each below.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for case in cases:
        marks = met[case.id]
        whole = score(case.criteria, marks)
        assert whole is not None  # a case without points above 0 is refused when it is read
        for name in ("all", *dict.fromkeys(case.tags)):
            found[name].append(whole)
        if case.professional:
            found["all, adjusted for length"].append(whole - 0.0147 * (len(replies[case.id]) - 2_000) / 500)
        for tag in dict.fromkeys(tag for criterion in case.criteria for tag in criterion.tags):
            chosen = [(c, m) for c, m in zip(case.criteria, marks, strict=True) if tag in c.tags]
            part = score([c for c, _ in chosen], [m for _, m in chosen])
            if part is not None:
                found[tag].append(part)
    return {name: _mean(scores) for name, scores in sorted(found.items(), key=lambda item: (item[0] != "all", item))}


@dataclass(frozen=True)
class Agreement:
    """A judge beside people.

    `agreed` is the share of a row's people whose label the verdict is, and `people` the share of its pairs of people
    with equal labels. Both are means over rows, which are the units of the intervals.
    `macro_f1` is the mean of the F1 of "met" and of "not met" over all labels, as HealthBench's meta-evaluation has it.
    """

    agreed: Estimate | None
    macro_f1: float
    people: Estimate | None


def agreement(rows: Sequence[Labelled], met: Mapping[str, bool]) -> Agreement:
    """How far the judge's verdicts are those of people."""
    pairs = [(met[row.id], label) for row in rows for label in row.labels]
    between = [[first == second for first, second in combinations(row.labels, 2)] for row in rows]
    return Agreement(
        _by_row([[met[row.id] == label for label in row.labels] for row in rows]),
        (_f1(pairs, of=True) + _f1(pairs, of=False)) / 2,
        _by_row(between),
    )


def _by_row(marks: Sequence[Sequence[bool]]) -> Estimate | None:
    """The mean of the rows' shares. Rows without a mark are left out; None where all are."""
    shares = [sum(row) / len(row) for row in marks if row]
    return Estimate.mean(shares) if shares else None


def _f1(pairs: Sequence[tuple[bool, bool]], *, of: bool) -> float:
    both = sum(said == label == of for said, label in pairs)
    named = sum(said == of for said, _ in pairs) + sum(label == of for _, label in pairs)
    return 2 * both / named if named else 0.0
