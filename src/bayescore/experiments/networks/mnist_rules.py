"""Rules for five seeds: the t interval of the mean paired difference at one percentage of the data."""

from __future__ import annotations

import numpy as np

from bayescore.experiments import Judgement, Records, Rule, judge_interval, mean_interval
from bayescore.experiments.rules import pairs
from bayescore.experiments.statistics import differences
from bayescore.experiments.verdicts import NOT_REPRODUCED, PARTLY, REPRODUCED
from bayescore.experiments.wording import interval_text

__all__ = ["lower_mean", "similar"]


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
