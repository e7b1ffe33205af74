"""Wilson intervals, paired tests, pass@k, calibration and selective accuracy, as pure functions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from scipy.stats import binomtest


def wilson_interval(successes: int, n: int) -> tuple[float, float]:
    """Wilson's score interval of a proportion at 95% (JASA 1927); (0, 1) for n = 0."""
    if n == 0:
        return 0.0, 1.0
    low, high = binomtest(successes, n).proportion_ci(method="wilson")
    return float(low), float(high)


@dataclass(frozen=True)
class Accuracy:
    """A share of right answers with its 95% Wilson interval."""

    accuracy: float
    ci_low: float
    ci_high: float
    n: int

    @staticmethod
    def of(successes: int, n: int) -> "Accuracy":
        """The accuracy of `successes` out of `n`."""
        low, high = wilson_interval(successes, n)
        return Accuracy(successes / n if n else 0.0, low, high, n)


@dataclass(frozen=True)
class Estimate:
    """A measure with its 95% interval, over `n` questions."""

    value: float
    ci_low: float
    ci_high: float
    n: int

    @staticmethod
    def share(marks: Sequence[bool]) -> "Estimate":
        """The share of true marks, with Wilson's interval."""
        part = Accuracy.of(sum(marks), len(marks))
        return Estimate(part.accuracy, part.ci_low, part.ci_high, part.n)

    @staticmethod
    def mean(values: Sequence[float]) -> "Estimate":
        """The mean of a value per question, with its bootstrap interval."""
        return Estimate(sum(values) / len(values), *bootstrap_mean(values), len(values))


def mcnemar_exact(only_a: int, only_b: int) -> float:
    """Two-sided p of McNemar's exact test (Psychometrika 1947) over the pairs that only A or only B got right."""
    n = only_a + only_b
    return float(binomtest(min(only_a, only_b), n, 0.5).pvalue) if n else 1.0


def bootstrap_mean(values: Sequence[float], *, repeats: int = 10_000, seed: int = 0) -> tuple[float, float]:
    """95% percentile bootstrap interval of a mean (Efron 1979). Give one value, difference or mean per question."""
    data = np.asarray(values, dtype=np.float64)
    if data.size == 0:
        return float("nan"), float("nan")
    rng = np.random.default_rng(seed)
    portion = max(1, min(repeats, 12_000_000 // data.size))  # so that index arrays stay below some 100 MB
    parts = [min(portion, repeats - start) for start in range(0, repeats, portion)]
    means = np.concatenate([data[rng.integers(0, data.size, (part, data.size))].mean(axis=1) for part in parts])
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def macro_average(groups: Sequence[Sequence[bool]], *, repeats: int = 10_000, seed: int = 0) -> Estimate:
    """The mean of the groups' shares of true marks, with a 95% bootstrap that resamples questions within each group.

    No group may be empty. A resample of n marks has Binomial(n, share) true ones.
    """
    sizes = np.array([len(marks) for marks in groups])
    shares = np.array([sum(marks) for marks in groups]) / sizes
    drawn = np.random.default_rng(seed).binomial(sizes, shares, (repeats, len(groups))) / sizes
    low, high = np.percentile(drawn.mean(axis=1), [2.5, 97.5])
    return Estimate(float(shares.mean()), float(low), float(high), int(sizes.sum()))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment of p-values, in their order (Scandinavian Journal of Statistics 1979)."""
    adjusted, least = list(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = least
    return adjusted


def pass_at_k(correct: int, samples: int, k: int) -> float:
    """The unbiased chance that one of `k` samples is right, where `correct` of `samples` were (arXiv 2107.03374)."""
    if not 1 <= k <= samples:
        raise ValueError(f"k {k} found, wanted 1 to {samples}")
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


@dataclass(frozen=True)
class Calibration:
    """Expected calibration error and the bins of its reliability diagram: (mean confidence, accuracy, count)."""

    ece: float
    bins: tuple[tuple[float, float, int], ...]
    n: int


def calibration(confidence: Sequence[float], correct: Sequence[bool], *, bins: int = 10) -> Calibration:
    """Expected calibration error with equal-width bins (arXiv 1706.04599, equation 3)."""
    p, right = np.asarray(confidence, dtype=np.float64), np.asarray(correct, dtype=np.float64)
    place = np.minimum((p * bins).astype(int), bins - 1)
    inside = [place == index for index in np.unique(place)]
    rows = tuple((float(p[held].mean()), float(right[held].mean()), int(held.sum())) for held in inside)
    error = sum(count / p.size * abs(share - mean) for mean, share, count in rows)
    return Calibration(error, rows, int(p.size))


def selective_accuracy(
    confidence: Sequence[float], correct: Sequence[bool], *, asked: int | None = None
) -> list[tuple[float, float]]:
    """(coverage of `asked`, accuracy) by threshold, if only the most confident are answered (arXiv 1705.08500)."""
    asked = asked or len(confidence)
    order = sorted(zip(confidence, correct, strict=True), key=lambda pair: -pair[0])
    points, right = [], 0
    for number, (value, is_right) in enumerate(order, start=1):
        right += is_right
        if number == len(order) or order[number][0] < value:
            points.append((number / asked, right / number))
    return points


@dataclass(frozen=True)
class _Difference:
    """Two kinds of runs on the same questions: B minus A."""

    n: int
    accuracy_a: float
    accuracy_b: float
    difference: float
    ci_low: float
    ci_high: float
    only_a: int
    only_b: int


@dataclass(frozen=True)
class PairedComparison(_Difference):
    """Two runs on the same questions: B minus A. Where A is compared with several, `p_holm` is adjusted for that."""

    p_mcnemar: float
    p_holm: float
    mode_a: str = ""
    mode_b: str = ""


@dataclass(frozen=True)
class SeedsComparison(_Difference):
    """Runs of two kinds with several seeds each, on the same questions: B minus A, and each seed's own comparison.

    `only_a` and `only_b` count questions over all seeds. The interval and `p` take questions as the units, since seeds
    that answer one question are no independent draws. They take the runs as given: how much other seeds would differ
    enters neither.
    """

    p: float
    seeds: tuple[PairedComparison, ...]


def compare_paired(a: Mapping[str, bool], b: Mapping[str, bool], *, seed: int = 0) -> PairedComparison:
    """Compare by question id; both must hold the same ids."""
    found, _ = _differences([a], [b], seed)
    p = mcnemar_exact(found.only_a, found.only_b)
    return PairedComparison(**asdict(found), p_mcnemar=p, p_holm=p)


def compare_seeds(
    a: Sequence[Mapping[str, bool]], b: Sequence[Mapping[str, bool]], *, seed: int = 0
) -> SeedsComparison:
    """Compare by question id over seeds: `a[i]` and `b[i]` are of one seed, and all hold the same ids."""
    found, gained = _differences(a, b, seed)
    seeds = tuple(compare_paired(one, other, seed=seed) for one, other in zip(a, b, strict=True))
    return SeedsComparison(**asdict(found), p=sign_flip_exact(gained), seeds=seeds)


def _differences(
    a: Sequence[Mapping[str, bool]], b: Sequence[Mapping[str, bool]], seed: int
) -> tuple[_Difference, list[int]]:
    """The difference over all seeds, and how many seeds each question gained."""
    if not a or not a[0] or len(a) != len(b) or any(marks.keys() != a[0].keys() for marks in [*a, *b]):
        raise ValueError("wanted as many seeds of A as of B, and the same questions in each, at least one of both")
    steps = [[int(other[name]) - one[name] for one, other in zip(a, b, strict=True)] for name in a[0]]
    gained, answers = [sum(each) for each in steps], len(a) * len(a[0])
    low, high = bootstrap_mean([each / len(a) for each in gained], seed=seed)
    right_a, right_b = (sum(sum(marks.values()) for marks in kind) for kind in (a, b))
    only_a, only_b = (sum(each.count(step) for each in steps) for step in (-1, 1))
    shares = (right_a / answers, right_b / answers, sum(gained) / answers)
    return _Difference(len(gained), *shares, low, high, only_a, only_b), gained


def sign_flip_exact(differences: Sequence[int]) -> float:
    """Two-sided exact p of a sum of paired differences, each of which would have either sign alike (Fisher 1935).

    With differences of -1, 0 and 1 it is McNemar's exact test.
    """
    sizes = [abs(each) for each in differences if each]
    share = np.ones(1)  # of the 2^n choices of signs: entry i has the sum i less all sizes
    for size in sizes:
        share = (np.pad(share, (0, 2 * size)) + np.pad(share, (2 * size, 0))) / 2
    sums = np.arange(share.size) - sum(sizes)
    return min(1.0, float(share[np.abs(sums) >= abs(sum(differences))].sum()))
