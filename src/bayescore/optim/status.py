"""Whether the standard deviations have been learned, in one sentence, from the slope statistics.

The precision counts as learned if, by the slope statistics of its tensors (rules/curvature.py),
    - little of the initial value is left:            exp(-forgotten) below 0.1, and (1) for few weights only
    - the estimate is not mostly noise:               sd known to better than 5 %, at best sqrt(V/t)/2
    - it has converged:                               the mean slope is below 0.1, or within its error
The stated error is a lower bound: it counts all steps as equally informative.

A mean over a tensor does not show a few weights that lag far behind. If the precision P, or its power k,
moves linearly towards its estimate (CalibratedScore, k = 1; PairedBaM, k = 2), the part of P that still comes
from the initial P0 is known for every weight. A weight lags behind if that part is more than a fifth of P:
    ((P0/P)^k - 1)/k > (exp(forgotten) - 1)/5                                                          (1)
unless its sd has reached the prior's, which limits it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from bayescore.rules.curvature import ARRIVED, measured, standard_error

__all__ = ["Slope", "lagging", "precision_sentence", "slope_of"]

KNOWN = 0.05  # largest relative error of a learned sd
LEFT = 0.1  # share of the initial precision that may be left
LATE = 0.2  # share of P that may still come from P0 (1); 0.1 in the sd
LAGGING = 0.01  # share of the weights that may lag behind


class Slope(NamedTuple):
    """The slope statistics of one tensor."""

    size: int
    steps: int
    level: float  # mean slope
    away: float  # by how much |level| exceeds twice its standard error
    noise: float  # relative variance of one step's curvature
    forgotten: float  # sum of the rates at which the precision has moved
    lagging: float = 0.0  # share of the weights that lag behind (1)


def lagging(sd: Tensor, init_sd: float, prior_sd: float, forgotten: float, power: int) -> float:
    """The share of weights that lag behind (1)."""
    added = ((sd / init_sd) ** (2 * power) - 1) / power
    return float(((added > LATE * math.expm1(forgotten)) & (sd < 0.999 * prior_sd)).float().mean())


def slope_of(statistics: Tensor, size: int) -> Slope:
    """The slope statistics of a tensor of `size` weights, from its row of four numbers."""
    weights = statistics.new_tensor(float(size))
    level, _, noise = measured(statistics, weights)
    away = (level.abs() - 2 * standard_error(noise, weights)).clamp_min(0)
    return Slope(size, int(statistics[3]), *(float(v) for v in (level, away, noise, statistics[2])))


def precision_sentence(rows: list[Slope], draws: int, how: str, rho: float = 1.0) -> str:
    """One sentence: whether the precision has been learned.

    Arguments:
        rows: slope statistics of the tensors that have had a gradient.
        draws: per step.
        how: what replaces eps*score while it is too noisy: "squares" (squared gradients), "initial" (the
            precision keeps its initial value) or "score" (nothing: it is used all the same).
        rho: share of eps*score in the precision.
    """
    size = sum(row.size for row in rows)
    if not size:
        return "precision not learned: no update yet"

    def mean(values: list[float]) -> float:
        return sum(row.size * value for row, value in zip(rows, values, strict=True)) / size

    noise = mean([row.noise for row in rows])
    away = mean([row.away for row in rows])
    left = mean([math.exp(-row.forgotten) for row in rows])
    if not math.isfinite(noise + away + left):
        return "precision not learned: its estimate is not finite"
    error = 0.5 * math.sqrt(mean([row.noise / row.steps for row in rows]))
    if error > KNOWN:
        return _too_noisy(how, draws, rho, math.ceil(noise / (2 * KNOWN) ** 2))
    if left > LEFT:
        return f"precision not learned yet: {left:.0%} of its initial value is left; train longer"
    behind = mean([row.lagging for row in rows])
    if behind > LAGGING:
        return (
            f"precision not learned yet: {behind:.0%} of the sds are still more than a tenth too small; "
            "train longer, or give a larger init_sd"
        )
    if away > ARRIVED:
        side = "above" if mean([row.level for row in rows]) > 0 else "below"
        return f"precision not learned yet: on average the curvature is {away:.0%} {side} it"
    share = f", {rho:.0%} of it by eps*score" if how == "squares" and rho < 0.95 else ""
    return f"precision learned, at best to {100 * error:.1g} %{share}"


def _too_noisy(how: str, draws: int, rho: float, need: int) -> str:
    if draws > 1:
        return f"precision not learned yet: it takes about {need} steps, if a step's draws share their batch"
    if how == "squares":
        return (
            f"precision not learned from eps*score (it would take about {need} steps): {1 - rho:.0%} of it "
            "comes from squared gradients, which equal the curvature where the model fits; "
            "two draws per step on the same batch learn it exactly"
        )
    kept = "it stays near its initial value" if how == "initial" else "it is mostly noise"
    return (
        f"precision not learned (it would take about {need} steps): {kept}; "
        "make two draws per step on the same batch, or give CalibratedScore the batch_size= of mini-batches"
    )
