"""Traces of many seeds as quantiles on one grid.

A trace is a step function: at x it has the value recorded last at or before x, and after its end it keeps its
last value. The grid of an arm is the union of the recorded points from where all runs have begun, thinned to
at most 200 log-spaced ones. A value that is NaN counts as +inf: a run that broke down is worse than any
other, and leaving it out would make the arm look better than it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayescore_lab.engine.records import Records

__all__ = ["QUANTILES", "QuantileTrace", "log_spaced", "quantile_trace", "quantiles"]

Floats = NDArray[np.float64]

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True)
class QuantileTrace:
    """Quantiles over n runs: `values[i, j]` is quantile `levels[i]` at `x[j]`."""

    x: Floats  # (P,)
    values: Floats  # (Q, P)
    levels: tuple[float, ...]
    n: int

    def level(self, wanted: float) -> Floats:
        """One of the quantiles, (P,)."""
        row: Floats = self.values[self.levels.index(wanted)]
        return row


def quantile_trace(
    records: Records, metric: str, axis: str = "score_calls", points: int = 200
) -> QuantileTrace | None:
    """The quantiles of one entry of the records' traces; None if no record has it."""
    curves = [
        (np.asarray(r.trace[axis], dtype=np.float64), np.asarray(r.trace[metric], dtype=np.float64))
        for r in records
        if r.trace.get(axis) and metric in r.trace
    ]
    if not curves:
        return None
    begin = max(x[0] for x, _ in curves)
    known = np.unique(np.concatenate([x for x, _ in curves]))
    grid = log_spaced(known[known >= begin], points)
    table = np.stack([_step_function(x, y, grid) for x, y in curves])  # (n, P)
    return QuantileTrace(grid, quantiles(table, QUANTILES), QUANTILES, len(curves))


def log_spaced(x: Floats, points: int) -> Floats:
    """At most `points` of the sorted values x, evenly spread on a logarithmic scale, including both ends."""
    if x.size <= points:
        return x
    positive = x[x > 0]
    wanted = np.geomspace(positive[0], positive[-1], points - (x.size > positive.size))
    chosen = np.searchsorted(positive, wanted * (1 - 1e-9))
    return np.unique(np.concatenate([x[:1], positive[np.minimum(chosen, positive.size - 1)], x[-1:]]))


def quantiles(table: Floats, levels: tuple[float, ...]) -> Floats:
    """Quantiles over the first dimension, (Q, P): linear between values, infinities allowed."""
    ranked = np.sort(np.where(np.isnan(table), math.inf, table), axis=0)
    rows = []
    for level in levels:
        place = level * (len(ranked) - 1)
        below, above = ranked[math.floor(place)], ranked[math.ceil(place)]
        share = place - math.floor(place)
        with np.errstate(invalid="ignore"):
            between = below + share * (above - below)
        rows.append(np.where((below == above) | (share == 0), below, between))
    return np.stack(rows)


def _step_function(x: Floats, y: Floats, grid: Floats) -> Floats:
    return y[np.searchsorted(x, grid, side="right") - 1]
