"""The figures and the table of differences of the MNIST experiment."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bayescore_lab.engine import (
    Figure,
    Records,
    Table,
    figure_style,
    looks,
    mean_interval,
    paired_t,
    panels,
    shared_legend,
)
from bayescore_lab.engine.rules import pairs
from bayescore_lab.engine.statistics import Floats, differences
from bayescore_lab.engine.tables import Cell
from bayescore_lab.experiments.networks.mnist_arms import PLAIN

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["OURS", "Measure", "differences_table", "percent_figure"]

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
        row, divisor = pairs(records.where(percent=percent), measure.metric, arm, other)
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
    theirs, own = pairs(records, metric, arm, ours)
    if arm == ours or not len(own):
        return 0, None, None
    if len(own) == 1:
        return 1, float(theirs[0] - own[0]), None
    return len(own), mean_interval(differences(theirs, own)), paired_t(theirs, own).p
