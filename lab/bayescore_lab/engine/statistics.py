"""Intervals and tests over seeds or targets, with every degenerate case defined.

    (1) mean          m +- t_{n-1} s / sqrt(n), Student
    (2) median        [x_(k), x_(n+1-k)], k the largest with 2 P(Bin(n, 1/2) < k) <= 1 - level, exact
    (3) fraction      Clopper-Pearson
    (4) signed ranks  2 P(sum of the ranks, each counted by a fair coin, <= observed), exact with ties too
    (5) Holm          p_(1) <= ... <= p_(m) become max_{j <= i} min(1, (m - j + 1) p_(j))

If the data do not determine an interval (too few values, or infinite ones in a mean), it is (-inf, inf): it
excludes nothing, so too few data never lead to "reproduced" or "not reproduced here".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Interval",
    "Test",
    "bootstrap_interval",
    "differences",
    "fraction_interval",
    "geometric_mean_interval",
    "holm",
    "mean_interval",
    "median_interval",
    "median_range",
    "paired_t",
    "wilcoxon",
]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """An estimate from n values, with a confidence interval."""

    estimate: float
    low: float
    high: float
    n: int
    level: float = 0.95

    @property
    def known(self) -> bool:
        """Whether the data determine the interval."""
        return self.low > -math.inf or self.high < math.inf


@dataclass(frozen=True)
class Test:
    """A test's statistic and two-sided p-value; NaN if the data do not define them."""

    __test__ = False  # not a test case

    statistic: float
    p: float
    n: int


def mean_interval(values: ArrayLike, level: float = 0.95) -> Interval:
    """The mean with Student's interval (1)."""
    x = _values(values)
    mean = float(np.mean(x)) if np.isfinite(x).all() else _infinite_mean(x)
    if x.size < 2 or not np.isfinite(x).all():
        return Interval(mean, -math.inf, math.inf, x.size, level)
    stats = _stats()
    half = float(stats.t.ppf(0.5 + level / 2, x.size - 1) * np.std(x, ddof=1) / math.sqrt(x.size))
    return Interval(mean, mean - half, mean + half, x.size, level)


def geometric_mean_interval(values: ArrayLike, level: float = 0.95) -> Interval:
    """The geometric mean of positive values with Student's interval (1) on the logarithms."""
    x = _values(values)
    if (x < 0).any():
        raise ValueError(f"a geometric mean needs values that are not negative; the smallest is {x.min():g}")
    with np.errstate(divide="ignore"):
        log = mean_interval(np.log(x), level)
    if not log.known:
        return Interval(_exp(log.estimate), -math.inf, math.inf, log.n, level)
    return Interval(_exp(log.estimate), _exp(log.low), _exp(log.high), log.n, level)


def median_interval(values: ArrayLike, level: float = 0.95) -> Interval:
    """The median with its exact interval (2); infinite values are allowed."""
    x = np.sort(_values(values))
    n = x.size
    middle = (x[(n - 1) // 2], x[n // 2])
    # the mean of the two middle values, without inf - inf
    estimate = float(middle[0]) if middle[0] == middle[1] else float(sum(middle) / 2)
    stats = _stats()
    tails = 2 * stats.binom.cdf(np.arange(n), n, 0.5)  # tails[k - 1] = 2 P(Bin < k)
    k = int(np.sum(tails <= 1 - level))
    if k == 0:
        return Interval(estimate, -math.inf, math.inf, n, level)
    return Interval(estimate, float(x[k - 1]), float(x[n - k]), n, level)


def median_range(values: ArrayLike) -> Interval:
    """The median with the smallest and the largest value; level 0, since no confidence is claimed."""
    x = _values(values)
    return Interval(float(np.median(x)), float(x.min()), float(x.max()), x.size, level=0.0)


def bootstrap_interval(
    values: ArrayLike,
    statistic: Callable[[Floats], float],
    level: float = 0.95,
    seed: int = 0,
    resamples: int = 2000,
) -> Interval:
    """Any statistic of one sample, with the percentile interval over resamples drawn from `seed`."""
    x = _values(values)
    estimate = float(statistic(x))
    if x.size < 2:
        return Interval(estimate, -math.inf, math.inf, x.size, level)
    index = np.random.default_rng(seed).integers(0, x.size, size=(resamples, x.size))
    draws = np.array([statistic(x[row]) for row in index], dtype=np.float64)
    low, high = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2])
    return Interval(estimate, float(low), float(high), x.size, level)


def fraction_interval(successes: int, n: int, level: float = 0.95) -> Interval:
    """A fraction with its exact interval (3)."""
    if not 0 <= successes <= n or n < 1:
        raise ValueError(f"a fraction needs 0 <= successes <= n and n >= 1; got {successes} of {n}")
    stats = _stats()
    exact = stats.binomtest(successes, n).proportion_ci(level, method="exact")
    return Interval(successes / n, float(exact.low), float(exact.high), n, level)


def paired_t(a: ArrayLike, b: ArrayLike) -> Test:
    """The paired t-test of a against b; p = 1 for equal pairs, 0 for a constant shift, NaN for one pair."""
    d = differences(a, b)
    if d.size < 2 or not np.isfinite(d).all():
        return Test(math.nan, math.nan, d.size)
    if not d.any():
        return Test(0.0, 1.0, d.size)
    mean, error = float(np.mean(d)), float(np.std(d, ddof=1) / math.sqrt(d.size))
    if error <= 1e-12 * abs(mean):  # constant up to rounding
        return Test(math.copysign(math.inf, mean), 0.0, d.size)
    stats = _stats()
    t = mean / error
    return Test(t, float(2 * stats.t.sf(abs(t), d.size - 1)), d.size)


def wilcoxon(a: ArrayLike, b: ArrayLike) -> Test:
    """The signed-rank test (4) of a against b; equal pairs are left out, infinite differences rank last."""
    d = differences(a, b)
    if d.size == 0 or np.isnan(d).any():
        return Test(math.nan, math.nan, d.size)
    finite = np.abs(d[np.isfinite(d)])
    beyond = 2 * float(finite.max(initial=0.0)) + 1
    d = np.clip(d[d != 0], -beyond, beyond)
    if d.size == 0:
        return Test(0.0, 1.0, np.size(a))
    stats = _stats()
    # twice the ranks are whole numbers, ties included; each sign is a fair coin
    ranks = np.rint(2 * stats.rankdata(np.abs(d))).astype(int)
    chances = np.ones(1)
    for rank in ranks:
        chances = (np.pad(chances, (0, rank)) + np.pad(chances, (rank, 0))) / 2
    low = int(min(ranks[d > 0].sum(), ranks[d < 0].sum()))
    return Test(low / 2, min(1.0, 2 * float(chances[: low + 1].sum())), np.size(a))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction (5) for several tests; a NaN stays NaN and does not count as a test."""
    p = np.asarray(p_values, dtype=np.float64)
    order = [i for i in np.argsort(p, kind="stable") if not np.isnan(p[i])]
    adjusted, largest = p.copy(), 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - place) * float(p[index])))
        adjusted[index] = largest
    return [float(value) for value in adjusted]


def differences(a: ArrayLike, b: ArrayLike) -> Floats:
    """a - b by pairs; the difference of two equal infinities is 0."""
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(f"pairs need two lists of one length; got shapes {x.shape} and {y.shape}")
    with np.errstate(invalid="ignore"):
        return np.where(x == y, 0.0, x - y)


def _stats() -> Any:
    try:
        from scipy import stats
    except ImportError as missing:
        raise ImportError("intervals and tests need scipy: pip install ./lab") from missing
    return stats


def _values(values: ArrayLike) -> Floats:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or x.size == 0:
        raise ValueError(f"expected a list with at least one number; got the shape {x.shape}")
    if np.isnan(x).any():
        raise ValueError(
            f"{int(np.isnan(x).sum())} of {x.size} values are NaN; say what a broken run counts as, "
            "for example inf"
        )
    return x


def _infinite_mean(x: Floats) -> float:
    return math.nan if np.isposinf(x).any() and np.isneginf(x).any() else float(np.max(x) + np.min(x))


def _exp(value: float) -> float:
    return math.inf if value > 709 else math.exp(value)
