"""Verdicts on claims, computed from confidence intervals by rules that are stated beforehand.

A rule states in words how it judges before it sees data. Its verdict is "reproduced", "partly" or "not
reproduced here"; if the records lack an arm that the rule compares, there is no verdict.

Arms are compared by pairs, seed by seed: equal seeds share a target. A metric that is missing or NaN counts
as +inf: a run that broke down is worse than any other. Intervals of medians are exact for any distribution,
so heavy tails over targets need no transformation; below six pairs they exclude nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bayescore_lab.engine.records import Metric, Record, Records
from bayescore_lab.engine.statistics import (
    Interval,
    differences,
    fraction_interval,
    geometric_mean_interval,
    mean_interval,
    median_interval,
    paired_t,
    wilcoxon,
)
from bayescore_lab.engine.wording import interval_text, number

__all__ = [
    "NOT_REPRODUCED",
    "PARTLY",
    "REPRODUCED",
    "Criterion",
    "Judgement",
    "Verdict",
    "agrees",
    "all_of",
    "below",
    "judge_interval",
    "medians",
    "mostly",
    "ratio_within",
]

Verdict = Literal["reproduced", "partly", "not reproduced here"]

REPRODUCED: Verdict = "reproduced"
PARTLY: Verdict = "partly"
NOT_REPRODUCED: Verdict = "not reproduced here"


@dataclass(frozen=True)
class Judgement:
    """A verdict, None if data are missing.

    Arguments:
        sentence: what was found, in full.
        numbers: the same for programs.
        ours: what was found in a few words, for a cell of a table beside the paper's number.
    """

    verdict: Verdict | None
    sentence: str
    numbers: dict[str, Any] = field(default_factory=dict)
    ours: str = ""


@dataclass(frozen=True)
class Criterion:
    """How a claim is judged: in words, and as a function of the records."""

    words: str
    judge: Callable[[Records], Judgement]


def judge_interval(interval: Interval, low: float, high: float) -> Verdict:
    """Reproduced if the interval lies inside [low, high], not reproduced if it lies outside, else partly."""
    if low <= interval.low and interval.high <= high:
        return REPRODUCED
    if interval.high < low or interval.low > high:
        return NOT_REPRODUCED
    return PARTLY


def all_of(*rules: Criterion) -> Criterion:
    """Several rules for one claim: their verdict if they agree, else partly."""
    words = (
        "Reproduced if each of these is, not reproduced here if each is not, partly otherwise. "
        + " ".join(f"({i}) {rule.words}" for i, rule in enumerate(rules, 1))
    )

    def judge(records: Records) -> Judgement:
        parts = [rule.judge(records) for rule in rules]
        verdicts = {part.verdict for part in parts}
        sentence = " ".join(
            f"({i}) {part.verdict or 'no verdict'}: {part.sentence}" for i, part in enumerate(parts, 1)
        )
        numbers = {str(i): part.numbers for i, part in enumerate(parts, 1)}
        if None in verdicts:
            return Judgement(None, sentence, numbers)
        held = sum(part.verdict == REPRODUCED for part in parts)
        few = len(parts) <= 2 and all(part.ours for part in parts)
        ours = "; ".join(part.ours for part in parts) if few else f"{held} of {len(parts)} comparisons hold"
        return Judgement(parts[0].verdict if len(verdicts) == 1 else PARTLY, sentence, numbers, ours)

    return Criterion(words, judge)


Centre = Literal["median", "mean", "geometric mean"]
Floats = NDArray[np.float64]

_INTERVALS: dict[Centre, Callable[[Floats, float], Interval]] = {
    "median": median_interval,
    "mean": mean_interval,
    "geometric mean": geometric_mean_interval,
}


def below(metric: Metric, arm: str, than: str, *, name: str = "", level: float = 0.95) -> Criterion:
    """`arm` has lower values than `than`: the interval of the median paired difference lies below 0."""
    label = _label(metric, name)
    words = (
        f"Over the seeds that both arms ran, take {label} of {arm} minus {label} of {than}. "
        f"Reproduced if the {level:.0%} interval of the median difference lies below 0, "
        "not reproduced here if it lies above 0, partly otherwise."
    )

    def judge(records: Records) -> Judgement:
        ours, theirs = records.pairs(metric, arm, than)
        if not len(ours):
            return _nothing(arm, than)
        if np.isposinf(ours).all() and np.isposinf(theirs).all():
            return _neither(len(ours))
        change = differences(ours, theirs)
        interval = median_interval(change, level)
        wins = int(np.sum(change < 0))
        t, w = paired_t(ours, theirs), wilcoxon(ours, theirs)
        sentence = (
            f"{arm} is lower on {wins} of {len(change)}; median difference {_show(interval)}; "
            f"medians {number(float(np.median(ours)), 3)} and {number(float(np.median(theirs)), 3)}; "
            f"p = {number(t.p, 3)} (paired t), {number(w.p, 3)} (Wilcoxon)."
        )
        # an interval that ends at 0 excludes nothing
        verdict = REPRODUCED if interval.high < 0 else NOT_REPRODUCED if interval.low > 0 else PARTLY
        numbers = {**vars(interval), "wins": wins, "p_paired_t": t.p, "p_wilcoxon": w.p}
        return Judgement(verdict, sentence, numbers, f"lower on {wins} of {len(change)}")

    return Criterion(words, judge)


def ratio_within(
    metric: Metric,
    arm: str,
    over: str,
    low: float,
    high: float,
    *,
    name: str = "",
    level: float = 0.95,
) -> Criterion:
    """`arm` / `over` is from `low` to `high`: 0.8 to 1.25 for "the same", 5 to 20 for "about 10 times"."""
    label = _label(metric, name)
    words = (
        f"Over the seeds that both arms ran, take {label} of {arm} divided by {label} of {over}. "
        f"Reproduced if the {level:.0%} interval of the median ratio lies within [{low:g}, {high:g}], "
        "not reproduced here if it lies outside, partly otherwise."
    )

    def judge(records: Records) -> Judgement:
        ours, theirs = records.pairs(metric, arm, over)
        if not len(ours):
            return _nothing(arm, over)
        defined = ~(np.isposinf(ours) & np.isposinf(theirs))  # two infinite values have no ratio
        if not defined.any():
            return _neither(len(ours))
        interval = median_interval(_ratios(ours[defined], theirs[defined]), level)
        sentence = f"Median ratio {_show(interval)} over {interval.n} pairs."
        ours_shown = f"{interval_text(interval, 3)} times"
        return Judgement(judge_interval(interval, low, high), sentence, dict(vars(interval)), ours_shown)

    return Criterion(words, judge)


def agrees(
    metric: Metric,
    arm: str,
    value: float,
    *,
    factor: float = 2.0,
    centre: Centre = "median",
    name: str = "",
    level: float = 0.95,
) -> Criterion:
    """The paper's number holds up to a factor: our interval is within [value / factor, value * factor]."""
    if value <= 0 or factor <= 1:
        raise ValueError(f"agrees() needs a positive value and a factor above 1; got {value} and {factor}")
    low, high = value / factor, value * factor
    words = (
        f"Take the {centre} of {_label(metric, name)} of {arm}. Reproduced if its {level:.0%} interval lies "
        f"within a factor {factor:g} of the paper's {value:g}, that is [{low:.4g}, {high:.4g}]; "
        "not reproduced here if it lies outside, partly otherwise."
    )

    def judge(records: Records) -> Judgement:
        if arm not in records.arms:
            return _nothing(arm)
        interval = _INTERVALS[centre](records.arms[arm].values(metric, math.inf), level)
        sentence = f"{centre.capitalize()} {_show(interval)} over {interval.n}, the paper has {value:g}."
        numbers = {**vars(interval), "paper": value}
        return Judgement(judge_interval(interval, low, high), sentence, numbers, interval_text(interval, 3))

    return Criterion(words, judge)


def mostly(
    holds: Callable[[Record], bool], what: str, arm: str, *, at_least: float = 0.5, level: float = 0.95
) -> Criterion:
    """`holds` is true for more than a fraction `at_least` of the runs of an arm; `what` says it in words."""
    words = (
        f"Count the runs of {arm} in which {what}. Reproduced if the {level:.0%} interval of their fraction "
        f"lies above {at_least:g}, not reproduced here if it lies below, partly otherwise."
    )

    def judge(records: Records) -> Judgement:
        if arm not in records.arms:
            return _nothing(arm)
        chosen = records.arms[arm]
        hits = sum(bool(holds(record)) for record in chosen)
        interval = fraction_interval(hits, len(chosen), level)
        sentence = f"In {hits} of {len(chosen)} runs of {arm} {what}: fraction {_show(interval)}."
        verdict = judge_interval(interval, at_least, 1.0)
        return Judgement(verdict, sentence, dict(vars(interval)), f"{hits} of {len(chosen)} runs")

    return Criterion(words, judge)


def medians(metric: Metric, *arms: str) -> Callable[[Records], str]:
    """The medians of a metric over the seeds of some arms, in words that stand beside the paper's."""

    def show(records: Records) -> str:
        values = [records.arms[arm].values(metric, math.inf) for arm in arms if arm in records.arms]
        first, *rest = [number(float(np.median(value)), 3) for value in values]
        return f"{first} against {', '.join(rest)}"

    return show


def _ratios(ours: Floats, theirs: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = ours / theirs
    return np.where(ours == theirs, 1.0, ratio)


def _neither(count: int) -> Judgement:
    return Judgement(NOT_REPRODUCED, f"Neither arm arrives on any of {count} seeds.")


def _nothing(*arms: str) -> Judgement:
    return Judgement(None, f"These records do not have what the rule compares: {' and '.join(arms)}.")


def _label(metric: Metric, name: str) -> str:
    if name or isinstance(metric, str):
        return name or str(metric).replace("_", " ")
    raise ValueError("a metric that is a function needs a `name` for the words of the rule")


def _show(interval: Interval) -> str:
    return interval_text(interval, 3) + ("" if interval.known else " (too few for an interval)")
