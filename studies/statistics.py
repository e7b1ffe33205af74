"""Means, intervals and tests over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, median, stdev

from scipy.stats import t as student_t
from scipy.stats import ttest_rel


def half_interval(values: Sequence[float]) -> float:
    """Half the 95% t-interval of the mean; 0 of one value."""
    if len(values) < 2:
        return 0.0
    return float(student_t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))


def interval(values: Sequence[float]) -> str:
    """Mean ± half the 95% t-interval over seeds, or nothing where a metric was not logged."""
    if any(map(math.isnan, values)):
        return ""
    return f"{mean(values):.3g}" + (f" ± {half_interval(values):.2g}" if len(values) > 1 else "")


def percent(values: Sequence[float]) -> str:
    """Mean ± half the 95% t-interval, in percent with one digit.

    >>> percent([0.5])
    '50.0'
    """
    return f"{100 * mean(values):.1f}" + (f" ± {100 * half_interval(values):.1f}" if len(values) > 1 else "")


def prediction_interval(values: Sequence[float]) -> str:
    """The 95% prediction interval of the accuracy of a run with another seed, or on another machine.

    Nothing for one run.
    """
    if len(values) < 2:
        return ""
    half = half_interval(values) * math.sqrt(len(values) + 1)
    return f"{max(0.0, mean(values) - half):.2f} to {min(1.0, mean(values) + half):.2f}"


def spread(values: Sequence[float]) -> str:
    """Median and range over seeds, for heavy-tailed metrics; nothing where a metric was not logged."""
    if any(map(math.isnan, values)):
        return ""
    return f"{median(values):.2g} ({min(values):.2g} to {max(values):.2g})"


def paired(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Two arms on the same seeds: mean difference, half its 95% t-interval, two-sided p of a paired t-test."""
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    return mean(differences), half_interval(differences), float(ttest_rel(ours, theirs).pvalue)


def holm(p: Sequence[float]) -> list[float]:
    """p-values corrected for their number (Holm 1979, step-down), in the order given."""
    corrected, least = [0.0] * len(p), 0.0
    for rank, place in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        least = max(least, min(1.0, p[place] * (len(p) - rank)))
        corrected[place] = least
    return corrected
