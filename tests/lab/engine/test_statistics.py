"""Intervals and tests against scipy, against counting, and in their degenerate cases."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bayescore_lab.engine import (
    bootstrap_interval,
    fraction_interval,
    geometric_mean_interval,
    holm,
    mean_interval,
    median_interval,
    paired_t,
    wilcoxon,
)

RNG = np.random.default_rng(0)
A, B = RNG.standard_normal(17), RNG.standard_normal(17) + 0.3


def test_mean_interval_is_students():
    ours = mean_interval(A, 0.9)
    low, high = stats.t.interval(0.9, len(A) - 1, loc=A.mean(), scale=stats.sem(A))
    assert (ours.estimate, ours.low, ours.high) == pytest.approx((A.mean(), low, high))


def test_geometric_mean_interval_is_the_mean_of_logarithms():
    ours, logs = geometric_mean_interval(np.exp(A)), mean_interval(A)
    expected = [math.exp(v) for v in (logs.estimate, logs.low, logs.high)]
    assert [ours.estimate, ours.low, ours.high] == pytest.approx(expected)


@pytest.mark.parametrize(("n", "k"), [(6, 1), (9, 2), (20, 6), (30, 10)])
def test_median_interval_takes_the_tabulated_order_statistics(n, k):
    ours = median_interval(RNG.permutation(n) + 1.0)
    assert (ours.low, ours.high) == (k, n + 1 - k)


def test_median_interval_covers_as_promised():
    samples = np.random.default_rng(1).exponential(size=(800, 20))
    intervals = [median_interval(row) for row in samples]
    covered = np.mean([i.low <= math.log(2) <= i.high for i in intervals])
    exact = 1 - 2 * stats.binom.cdf(5, 20, 0.5)
    assert covered == pytest.approx(exact, abs=0.03)
    assert exact >= 0.95


def test_median_takes_infinities_in_its_stride():
    ours = median_interval([1.0, 2.0, math.inf, math.inf, math.inf, math.inf, math.inf])
    assert (ours.estimate, ours.low, ours.high) == (math.inf, 1.0, math.inf)
    assert median_interval([-math.inf, 1.0, math.inf]).estimate == 1.0


@pytest.mark.parametrize("values", [[3.0], [1.0, math.inf]])
def test_an_interval_the_data_cannot_give_excludes_nothing(values):
    for interval in (mean_interval(values), median_interval(values), geometric_mean_interval(values)):
        assert (interval.low, interval.high, interval.known) == (-math.inf, math.inf, False)


def test_nan_is_refused_with_advice():
    with pytest.raises(ValueError, match=r"1 of 2 values are NaN; say what a broken run counts as"):
        median_interval([1.0, math.nan])


def test_bootstrap_is_reproducible_and_agrees_with_the_t_interval():
    first, second = (bootstrap_interval(A, lambda x: float(np.mean(x))) for _ in range(2))
    assert first == second
    student = mean_interval(A)
    assert (first.low, first.high) == pytest.approx((student.low, student.high), abs=0.15)


def test_fraction_interval_is_clopper_pearson():
    ours = fraction_interval(3, 10)
    assert ours.low == pytest.approx(stats.beta.ppf(0.025, 3, 8))
    assert ours.high == pytest.approx(stats.beta.ppf(0.975, 4, 7))
    assert fraction_interval(0, 5).low == 0.0
    assert fraction_interval(5, 5).high == 1.0


def test_paired_t_is_scipys():
    ours, theirs = paired_t(A, B), stats.ttest_rel(A, B)
    assert (ours.statistic, ours.p) == pytest.approx((theirs.statistic, theirs.pvalue))


def test_wilcoxon_is_scipys_where_nothing_is_tied():
    ours, theirs = wilcoxon(A, B), stats.wilcoxon(A, B, method="exact")
    assert (ours.statistic, ours.p) == pytest.approx((theirs.statistic, theirs.pvalue))


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=8))
def test_wilcoxon_with_ties_counts_every_assignment_of_signs(values):
    d = np.array([v for v in values if v], dtype=float)
    ours = wilcoxon(values, np.zeros(len(values)))
    if not d.size:
        assert ours.p == 1.0
        return
    ranks = stats.rankdata(np.abs(d))
    low = min(ranks[d > 0].sum(), ranks[d < 0].sum())
    sums = [np.dot(signs, ranks) for signs in itertools.product((0, 1), repeat=d.size)]
    assert ours.p == pytest.approx(min(1.0, 2 * np.mean(np.array(sums) <= low + 1e-9)))


def test_degenerate_pairs_have_the_p_value_they_deserve():
    same, one, two = [0.1, 0.2, 0.3], [1.0], [2.0]
    assert paired_t(same, same).p == wilcoxon(same, same).p == 1.0
    assert paired_t(same, [v + 1 for v in same]).p == 0.0
    assert math.isnan(paired_t(one, two).p)
    assert wilcoxon(one, two).p == 1.0
    assert math.isnan(paired_t([], []).p)
    assert math.isnan(wilcoxon([], []).p)


def test_an_infinite_pair_ranks_last_and_leaves_the_t_test_undefined():
    a, b = [1.0, 2.0, math.inf, math.inf], [2.0, 4.0, 5.0, math.inf]
    assert wilcoxon(a, b) == wilcoxon([1.0, 2.0, 99.0, 0.0], [2.0, 4.0, 5.0, 0.0])
    assert math.isnan(paired_t(a, b).p)


def test_pairs_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match=r"two lists of one length; got shapes \(2,\) and \(1,\)"):
        paired_t([1.0, 2.0], [1.0])


def test_holm_by_hand():
    # sorted: .005 * 4 = .02, .01 * 3 = .03, .03 * 2 = .06, .04 * 1 -> raised to .06
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_holm_does_not_count_a_test_without_a_result():
    adjusted = holm([0.01, math.nan, 0.04])
    assert adjusted[::2] == pytest.approx([0.02, 0.04])
    assert math.isnan(adjusted[1])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=10))
def test_holm_never_lowers_a_p_value_and_keeps_their_order(p):
    adjusted = holm(p)
    assert all(after >= before for before, after in zip(p, adjusted, strict=True))
    assert sorted(adjusted) == [adjusted[i] for i in np.argsort(p, kind="stable")]
