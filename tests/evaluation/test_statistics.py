"""Against published worked examples, scipy and scikit-learn."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats
from sklearn.calibration import calibration_curve

from medagent.evaluation.open_measures import exact_match, f1
from medagent.evaluation.statistics import (
    Accuracy,
    bootstrap_mean,
    calibration,
    compare_paired,
    compare_seeds,
    mcnemar_exact,
    pass_at_k,
    selective_accuracy,
    sign_flip_exact,
    wilson_interval,
)


@pytest.mark.parametrize(("k", "n"), [(0, 10), (10, 10), (50, 100), (81, 263), (1, 1)])
def test_wilsons_bounds_lie_1_96_standard_errors_from_the_share(k: int, n: int) -> None:
    """Each bound p solves (k / n - p)^2 = 1.96^2 p (1 - p) / n: the standard error is that of the bound."""
    low, high = wilson_interval(k, n)
    assert low <= k / n <= high
    for bound in (low, high):
        assert (k / n - bound) ** 2 == pytest.approx(1.959964**2 * bound * (1 - bound) / n, abs=1e-6)


def test_nothing_counted_has_the_widest_interval() -> None:
    assert wilson_interval(0, 0) == (0, 1)
    assert Accuracy.of(3, 4).accuracy == 0.75


def test_mcnemar_is_the_exact_binomial() -> None:
    for a, b in itertools.product(range(6), repeat=2):
        tail = sum(stats.binom.pmf(k, a + b, 0.5) for k in range(min(a, b) + 1))
        assert mcnemar_exact(a, b) == pytest.approx(min(1.0, 2 * tail)) if a + b else mcnemar_exact(a, b) == 1.0
    assert mcnemar_exact(1, 8) == pytest.approx(2 * 10 / 512)


def test_bootstrap_agrees_with_scipy() -> None:
    values = np.random.default_rng(1).choice([-1.0, 0.0, 1.0], p=[0.1, 0.6, 0.3], size=400)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=10_000, random_state=2)
    ours = bootstrap_mean(values.tolist())
    assert ours == pytest.approx((theirs.confidence_interval.low, theirs.confidence_interval.high), abs=0.006)
    assert bootstrap_mean([0.5] * 7) == (0.5, 0.5)
    assert np.isnan(bootstrap_mean([])[0])


def test_a_paired_comparison_by_hand() -> None:
    a = {str(i): i < 60 for i in range(100)}
    b = {str(i): 5 <= i < 75 for i in range(100)}
    result = compare_paired(a, b)
    assert (result.only_a, result.only_b, result.n) == (5, 15, 100)
    assert (result.accuracy_a, result.accuracy_b) == (0.6, 0.7)
    assert result.difference == pytest.approx(0.1)
    assert result.ci_low < 0.1 < result.ci_high
    assert result.p_mcnemar == pytest.approx(stats.binomtest(5, 20).pvalue)
    with pytest.raises(ValueError, match="the same questions"):
        compare_paired(a, {"other": True})


def test_seeds_that_answer_alike_are_no_more_evidence_than_one() -> None:
    a = {str(i): i < 60 for i in range(100)}
    b = {str(i): 5 <= i < 75 for i in range(100)}
    one, three = compare_paired(a, b), compare_seeds([a] * 3, [b] * 3)
    assert three.p == pytest.approx(one.p_mcnemar)
    assert (three.difference, three.ci_low, three.ci_high) == pytest.approx((one.difference, one.ci_low, one.ci_high))
    assert (three.only_a, three.only_b, three.n) == (15, 45, 100)
    assert [own.p_mcnemar for own in three.seeds] == [one.p_mcnemar] * 3


def test_seeds_are_compared_by_question_in_whatever_order_they_stand() -> None:
    a = [{"x": False, "y": True, "z": False}, {"z": False, "y": True, "x": False}]
    b = [{"z": True, "x": True, "y": True}, {"x": True, "z": False, "y": False}]
    result = compare_seeds(a, b)
    assert (result.accuracy_a, result.accuracy_b) == pytest.approx((1 / 3, 2 / 3))
    assert result.difference == pytest.approx(1 / 3)  # x +2, y -1, z +1, of six answers
    assert result.p == 6 / 8, "of the eight choices of signs of 2, 1 and 1 six have a sum of 2 or more in size"
    for wrong in ([], [b[0]], [b[0], {"x": True}]):
        with pytest.raises(ValueError, match="as many seeds"):
            compare_seeds(a, wrong)


@pytest.mark.parametrize("differences", [[], [0, 0], [3], [1, 1, -1], [2, -1, 1, 3, 0], [-3, -2, 2, 1, -1]])
def test_the_sign_flip_test_is_that_of_all_choices_of_signs(differences: list[int]) -> None:
    sums = [
        sum(sign * each for sign, each in zip(signs, differences, strict=True))
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    wanted = sum(abs(each) >= abs(sum(differences)) for each in sums) / len(sums)
    assert sign_flip_exact(differences) == pytest.approx(wanted)


@pytest.mark.parametrize(("only_a", "only_b"), [(0, 0), (1, 0), (6, 17), (2, 13), (40, 41)])
def test_the_sign_flip_test_of_one_seed_is_mcnemars(only_a: int, only_b: int) -> None:
    assert sign_flip_exact([-1] * only_a + [1] * only_b + [0] * 5) == pytest.approx(mcnemar_exact(only_a, only_b))


def test_pass_at_k_counts_subsets() -> None:
    marks = [True, False, False, True, False]
    for k in range(1, 6):
        subsets = list(itertools.combinations(marks, k))
        assert pass_at_k(2, 5, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    with pytest.raises(ValueError, match="wanted 1 to 5"):
        pass_at_k(2, 5, 6)


def test_calibration_agrees_with_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    sure = rng.uniform(0.01, 0.99, 500)
    right = rng.random(500) < sure**2
    ours = calibration(sure.tolist(), right.tolist())
    shares, means = calibration_curve(right, sure, n_bins=10)
    assert [row[0] for row in ours.bins] == pytest.approx(means.tolist())
    assert [row[1] for row in ours.bins] == pytest.approx(shares.tolist())
    counts = np.histogram(sure, bins=np.linspace(0, 1, 11))[0]
    assert ours.ece == pytest.approx(float(np.sum(np.abs(shares - means) * counts) / 500))
    assert calibration([1.0, 1.0], [True, False]).ece == pytest.approx(0.5)


def test_selective_accuracy_by_hand() -> None:
    points = selective_accuracy([0.9, 0.8, 0.8, 0.1], [True, True, False, False])
    assert points == [(0.25, 1.0), (0.75, pytest.approx(2 / 3)), (1.0, 0.5)]


def test_open_answers_as_squad_scores_them() -> None:
    assert exact_match("The Left ventricle.", ["right ventricle", "left ventricle"])
    assert not exact_match("ventricle", ["left ventricle"])
    assert f1("left ventricle wall", ["left ventricle"]) == pytest.approx(0.8)
    assert f1("nothing", ["left ventricle"]) == 0
    assert f1("", ["left"]) == 0
    assert f1("x", ["y", "x"]) == 1
