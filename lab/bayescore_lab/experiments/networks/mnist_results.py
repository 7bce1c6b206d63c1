"""The figures, the table of differences and the rules of the MNIST experiment.

With five seeds the rules judge by the t interval of the mean paired difference at one percentage of the data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bayescore_lab.engine import (
    Criterion,
    Figure,
    Judgement,
    Records,
    Table,
    figure_style,
    judge_interval,
    looks,
    mean_interval,
    paired_t,
    panels,
    shared_legend,
)
from bayescore_lab.engine.statistics import Floats, differences
from bayescore_lab.engine.tables import Cell
from bayescore_lab.engine.verdicts import NOT_REPRODUCED, PARTLY, REPRODUCED
from bayescore_lab.engine.wording import interval_text
from bayescore_lab.experiments.networks.mnist_arms import PLAIN

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "OURS",
    "Measure",
    "at_most",
    "differences_table",
    "lower_mean",
    "not_worse",
    "percent_figure",
    "similar",
]

OURS = ("Ours, exact", "Ours, gradient")
SHOWN = (PLAIN, "ADVI", "Ours, gradient", "Ours, exact", "MC-dropout", "SGLD", "Ensemble x5", "IVON")


class Measure(NamedTuple):
    """What one panel shows: a metric or, with `relative`, its ratio to the plain network's, seed by seed."""

    metric: str
    label: str
    relative: bool = False
    guess: float = math.inf  # what a uniform guess has: a mean above it does not set the scale


class Point(NamedTuple):
    """What a panel shows of an arm at a percentage."""

    percent: float
    row: Floats  # a number per seed
    raw: float  # the metric's mean over seeds

    @property
    def mean(self) -> float:
        return float(self.row.mean())


def percent_figure(records: Records, measures: Sequence[Measure], *, title: str, name: str = "") -> Figure:
    """Means over seeds against the percentage, bars from the smallest seed to the largest."""
    beyond: dict[str, float] = {}
    with figure_style():
        drawing, axes = panels(len(measures), width=3.6, height=3.2)
        for panel, measure in zip(axes, measures, strict=True):
            arms = {arm: _points(records, measure, arm) for arm in records.arms if arm in SHOWN}
            _show(panel, measure, arms)
            beyond |= {
                f"{arm} at {point.percent:g} %": point.raw
                for arm, points in arms.items()
                for point in points
                if point.raw > measure.guess
            }
        shared_legend(drawing)
    budget = "up to 100 epochs per run"
    note = "Means over seeds; bars reach from the smallest to the largest."
    if beyond:
        found = ", ".join(f"{where} ({value:.2g})" for where, value in beyond.items())
        note += f" Off the scale, with an NLL worse than a guess's: {found}."
    return Figure(title, drawing, len(records.seeds), budget, name, note)


def _points(records: Records, measure: Measure, arm: str) -> list[Point]:
    """An arm's points, but for those where a seed diverged: there is no mean."""
    found = []
    other = PLAIN if measure.relative else arm
    for percent in sorted({record.config["percent"] for record in records}):
        row, divisor = records.where(percent=percent).pairs(measure.metric, arm, other)
        if len(row) and np.isfinite([row, divisor]).all():
            found.append(Point(percent, row / divisor if measure.relative else row, float(row.mean())))
    return found


def _show(panel: Axes, measure: Measure, arms: Mapping[str, Sequence[Point]]) -> None:
    look = looks(arms)
    for shift, (arm, points) in enumerate(arms.items()):
        beside = 1.03 ** (shift - len(arms) / 2)  # each other, not on top
        style = look[arm]
        panel.errorbar(
            [point.percent * beside for point in points],
            [point.mean for point in points],
            yerr=np.array([(p.mean - p.row.min(), p.row.max() - p.mean) for p in points]).reshape(-1, 2).T,
            color=style.colour, linestyle=style.line, marker=style.marker,
            markersize=4, elinewidth=0.8, label=arm,
        )  # fmt: skip
    shown = [point for points in arms.values() for point in points]
    percents = sorted({point.percent for point in shown})
    panel.set_xscale("log")
    panel.set_xticks(percents, [f"{percent:g}" for percent in percents])
    if "auroc" not in measure.metric:
        panel.set_yscale("log")
    if measure.relative:
        panel.set_yticks([0.5, 1, 2], ["0.5", "1", "2"])
    panel.minorticks_off()
    usual = [point.mean for point in shown if point.raw <= measure.guess]
    if usual and len(usual) < len(shown):
        panel.set_ylim(top=1.2 * max(usual))
    panel.set(xlabel="training images, % of 60,000", ylabel=measure.label)


def differences_table(records: Records, metric: str, label: str) -> Table:
    """Every arm minus each of ours, paired by seed, with the t interval of the mean and its p-value."""
    rows: list[list[Cell]] = []
    for percent in sorted({record.config["percent"] for record in records}):
        chosen = records.where(percent=percent)
        for arm in chosen.arms:
            both = [_difference(chosen, metric, arm, ours) for ours in OURS]
            if any(pairs for pairs, *_ in both):
                count = max(pairs for pairs, *_ in both)
                rows.append([f"{percent:g} %", arm, count, *(cell for _, *cells in both for cell in cells)])
    return Table(
        title=f"{label}: arm minus ours, paired by seed",
        columns=["images", "arm", "pairs", *(name for ours in OURS for name in (f"minus {ours}", "p"))],
        rows=rows,
        name=f"differences-{metric.replace('_', '-')}",
        note="Above 0: ours is better. p of the paired t test, uncorrected for the number of comparisons.",
    )


def _difference(records: Records, metric: str, arm: str, ours: str) -> tuple[int, Cell, Cell]:
    """The number of pairs, the mean difference and its p-value."""
    theirs, own = records.pairs(metric, arm, ours)
    if arm == ours or not len(own):
        return 0, None, None
    if len(own) == 1:
        return 1, float(theirs[0] - own[0]), None
    return len(own), mean_interval(differences(theirs, own)), paired_t(theirs, own).p


def lower_mean(metric: str, arm: str, than: str, percent: float) -> Criterion:
    """`arm` has lower values than `than` on average over seeds."""
    words = (
        f"At {percent:g} %, take {metric} of {arm} minus that of {than}, seed by seed. Reproduced if the "
        "95 % t interval of the mean lies below 0, not reproduced here if above, partly otherwise."
    )

    def judge(records: Records) -> Judgement:
        ours, theirs = records.where(percent=percent).pairs(metric, arm, than)
        if len(ours) < 2:
            return Judgement(None, f"Fewer than two pairs of {arm} and {than} at {percent:g} %.")
        interval = mean_interval(differences(ours, theirs))
        verdict = REPRODUCED if interval.high < 0 else NOT_REPRODUCED if interval.low > 0 else PARTLY
        sentence = f"At {percent:g} %: mean difference {interval_text(interval, 3)} over {interval.n}."
        return Judgement(verdict, sentence, dict(vars(interval)), interval_text(interval, 3))

    return Criterion(words, judge)


def similar(metric: str, arm: str, than: str, percent: float, tolerance: float) -> Criterion:
    """`arm` and `than` differ by at most a share `tolerance`."""
    words = (
        f"At {percent:g} %, take {metric} of {arm} divided by that of {than}, seed by seed. Reproduced if "
        f"the 95 % t interval of the mean lies within 1 ± {tolerance:g}, not reproduced here if outside, "
        "partly otherwise."
    )

    def judge(records: Records) -> Judgement:
        ours, theirs = records.where(percent=percent).pairs(metric, arm, than)
        if len(ours) < 2:
            return Judgement(None, f"Fewer than two pairs of {arm} and {than} at {percent:g} %.")
        if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
            return Judgement(NOT_REPRODUCED, f"At {percent:g} %, runs of {arm} or {than} diverged.")
        interval = mean_interval(ours / theirs)
        sentence = f"At {percent:g} %: mean ratio {interval_text(interval, 3)} over {interval.n}."
        verdict = judge_interval(interval, 1 - tolerance, 1 + tolerance)
        return Judgement(verdict, sentence, dict(vars(interval)), f"{interval_text(interval, 3)} times")

    return Criterion(words, judge)


def not_worse(
    metric: str, arm: str, others: Sequence[str], percentages: Sequence[float], guess: float
) -> Criterion:
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
                ours, theirs = chosen.pairs(metric, arm, other)
                if len(ours) < 2:
                    return Judgement(None, f"Fewer than two pairs of {arm} and {other} at {percent:g} %.")
                interval = mean_interval(differences(ours, theirs))
                diverged = (ours > guess).any() and not (theirs > guess).any()
                if interval.low > 0 or diverged:
                    worse[percent].append(f"{other} by {interval_text(interval, 3)}")
        found = [f"at {percent:g} % than {', '.join(those)}" for percent, those in worse.items() if those]
        verdict = REPRODUCED if not found else PARTLY if len(found) < len(worse) else NOT_REPRODUCED
        count = len(others) * len(percentages)
        numbers = {"worse": {f"{percent:g}": those for percent, those in worse.items()}}
        sentence = f"Of {count} comparisons, worse {'; '.join(found) or 'in none'}."
        lost = sum(map(len, worse.values()))
        return Judgement(verdict, sentence, numbers, f"worse in {lost} of {count} comparisons")

    return Criterion(words, judge)


def at_most(metric: str, arm: str, percent: float, bound: float) -> Criterion:
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
        shown = ", ".join(f"{value:.4g}" for value in values)
        return Judgement(verdict, f"At {percent:g} %: {shown}.", {"values": values}, shown)

    return Criterion(words, judge)


def _listed(percentages: Sequence[float]) -> str:
    return ", ".join(f"{percent:g}" for percent in percentages)
