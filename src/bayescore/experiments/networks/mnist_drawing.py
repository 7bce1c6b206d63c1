"""The figures and the table of differences of the MNIST experiment."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bayescore.experiments import (
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
from bayescore.experiments.rules import pairs
from bayescore.experiments.statistics import differences
from bayescore.experiments.tables import Cell

__all__ = ["OURS", "differences_table", "percent_figure"]

OURS = ("Ours, exact", "Ours, gradient")
SHOWN = ("Plain", "ADVI", "Ours, gradient", "Ours, exact", "MC-dropout", "SGLD", "Ensemble x5", "IVON")


def percent_figure(records: Records, metrics: Mapping[str, str], *, title: str, name: str = "") -> Figure:
    """Means over seeds against the percentage, bars from the smallest seed to the largest."""
    arms = {arm: chosen for arm, chosen in records.arms.items() if arm in SHOWN}
    look = looks(arms)
    with figure_style():
        drawing, axes = panels(len(metrics), width=3.6, height=3.2)
        for panel, (metric, label) in zip(axes, metrics.items(), strict=True):
            for shift, (arm, chosen) in enumerate(arms.items()):
                percents = sorted({record.config["percent"] for record in chosen})
                rows = [chosen.where(percent=p).values(metric) for p in percents]
                middle = [float(np.mean(row)) for row in rows]
                x = np.array(percents) * 1.03 ** (shift - len(arms) / 2)  # beside each other, not on top
                ends = np.array(
                    [[m - row.min(), row.max() - m] for m, row in zip(middle, rows, strict=True)]
                ).T
                style = look[arm]
                panel.errorbar(
                    x, middle, yerr=ends, color=style.colour, linestyle=style.line, marker=style.marker,
                    markersize=4, elinewidth=0.8, label=arm,
                )  # fmt: skip
            panel.set_xscale("log")
            if "auroc" not in metric:
                panel.set_yscale("log")
            panel.set(xlabel="training images, % of 60,000", ylabel=label)
        shared_legend(drawing)
    budget = "up to 100 epochs per run"
    note = "Means over seeds; bars reach from the smallest to the largest."
    return Figure(title, drawing, len(records.seeds), budget, name, note)


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
