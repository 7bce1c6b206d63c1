"""Rules for five seeds: the t interval of the mean paired difference at one percentage of the data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bayescore_lab.engine import Judgement, Records, Rule, judge_interval, mean_interval
from bayescore_lab.engine.rules import pairs
from bayescore_lab.engine.statistics import differences
from bayescore_lab.engine.verdicts import NOT_REPRODUCED, PARTLY, REPRODUCED
from bayescore_lab.engine.wording import interval_text

__all__ = ["at_most", "lower_mean", "not_worse", "similar"]


def lower_mean(metric: str, arm: str, than: str, percent: float) -> Rule:
    """`arm` has lower values than `than` on average over seeds."""
    words = (
        f"At {percent:g} %, take {metric} of {arm} minus that of {than}, seed by seed. Reproduced if the "
        "95 % t interval of the mean lies below 0, not reproduced here if above, partly otherwise."
    )

    def judge(records: Records) -> Judgement:
        ours, theirs = pairs(records.where(percent=percent), metric, arm, than)
        if len(ours) < 2:
            return Judgement(None, f"Fewer than two pairs of {arm} and {than} at {percent:g} %.")
        interval = mean_interval(differences(ours, theirs))
        verdict = REPRODUCED if interval.high < 0 else NOT_REPRODUCED if interval.low > 0 else PARTLY
        sentence = f"At {percent:g} %: mean difference {interval_text(interval, 3)} over {interval.n}."
        return Judgement(verdict, sentence, dict(vars(interval)))

    return Rule(words, judge)


def similar(metric: str, arm: str, than: str, percent: float, tolerance: float) -> Rule:
    """`arm` and `than` differ by at most a share `tolerance`."""
    words = (
        f"At {percent:g} %, take {metric} of {arm} divided by that of {than}, seed by seed. Reproduced if "
        f"the 95 % t interval of the mean lies within 1 ± {tolerance:g}, not reproduced here if outside, "
        "partly otherwise."
    )

    def judge(records: Records) -> Judgement:
        ours, theirs = pairs(records.where(percent=percent), metric, arm, than)
        if len(ours) < 2:
            return Judgement(None, f"Fewer than two pairs of {arm} and {than} at {percent:g} %.")
        if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
            return Judgement(NOT_REPRODUCED, f"At {percent:g} %, runs of {arm} or {than} diverged.")
        interval = mean_interval(ours / theirs)
        sentence = f"At {percent:g} %: mean ratio {interval_text(interval, 3)} over {interval.n}."
        verdict = judge_interval(interval, 1 - tolerance, 1 + tolerance)
        return Judgement(verdict, sentence, dict(vars(interval)))

    return Rule(words, judge)


def not_worse(
    metric: str, arm: str, others: Sequence[str], percentages: Sequence[float], guess: float
) -> Rule:
    """`arm` is beyond doubt higher than none of `others`, whatever the percentage.

    A value above `guess`, which is what a uniform guess has, is that of a run that diverged.
    """
    words = (
        f"At each of {_listed(percentages)} %, take {metric} of {arm} minus that of {', '.join(others)}, "
        "seed by seed. It is worse where the 95 % t interval of the mean lies above 0 (uncorrected for the "
        "number of comparisons), or where only it has runs that diverged, or are worse than a uniform guess "
        f"({guess:.3g}). Reproduced if it is worse than none at any percentage, not reproduced here if it is "
        "worse than some at each, partly otherwise."
    )

    def judge(records: Records) -> Judgement:
        worse: dict[float, list[str]] = {percent: [] for percent in percentages}
        for percent in percentages:
            chosen = records.where(percent=percent)
            for other in others:
                ours, theirs = pairs(chosen, metric, arm, other)
                if len(ours) < 2:
                    return Judgement(None, f"Fewer than two pairs of {arm} and {other} at {percent:g} %.")
                interval = mean_interval(differences(ours, theirs))
                diverged = (ours > guess).any() and not (theirs > guess).any()
                if interval.low > 0 or diverged:
                    worse[percent].append(f"{other} by {interval_text(interval, 3)}")
        found = [f"at {percent:g} % than {', '.join(those)}" for percent, those in worse.items() if those]
        verdict = REPRODUCED if not found else PARTLY if len(found) < len(worse) else NOT_REPRODUCED
        comparisons = f"{len(others) * len(percentages)} comparisons"
        numbers = {"worse": {f"{percent:g}": those for percent, those in worse.items()}}
        return Judgement(verdict, f"Of {comparisons}, worse {'; '.join(found) or 'in none'}.", numbers)

    return Rule(words, judge)


def at_most(metric: str, arm: str, percent: float, bound: float) -> Rule:
    """`arm` has at most `bound`, for every seed."""
    words = (
        f"At {percent:g} %, reproduced if {metric} of {arm} is at most {bound:g} for every seed, not "
        "reproduced here if for none, partly otherwise."
    )

    def judge(records: Records) -> Judgement:
        values = [r.metrics.get(metric, np.inf) for r in records.where(percent=percent) if r.method == arm]
        if not values:
            return Judgement(None, f"No run of {arm} at {percent:g} %.")
        good = sum(value <= bound for value in values)
        verdict = REPRODUCED if good == len(values) else PARTLY if good else NOT_REPRODUCED
        sentence = f"At {percent:g} %: {', '.join(f'{value:.4g}' for value in values)}."
        return Judgement(verdict, sentence, {"values": values})

    return Rule(words, judge)


def _listed(percentages: Sequence[float]) -> str:
    return ", ".join(f"{percent:g}" for percent in percentages)
