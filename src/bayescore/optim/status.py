"""Whether standard deviations have been learned, in a sentence, from what was measured on the way.

The precision counts as learned where, by the slope statistics of its tensors (rules/curvature.py),
    - little of the initial value is left:            exp(-forgotten) below a tenth; (1) for few weights
    - the estimate is not mostly noise:               sd known to better than 5 %, at best sqrt(V/t)/2
    - and it has arrived:                             the mean slope is below a tenth, or within its error
The error that is stated is a lower bound: it takes all steps for equally informative.

A mean over a tensor does not show a few weights that are far behind. Where the precision P, or its power k,
moves linearly towards what the data say (ProximalScore, k = 1; PairedBaM, k = 2), what the initial P0 still
adds to P is known for every weight, and a weight lags behind where that is more than a fifth of P:
    ((P0/P)^k - 1)/k > (exp(forgotten) - 1)/5                                                          (1)
unless its sd has reached the prior's, where it ends.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from bayescore.rules.curvature import ARRIVED, measured, standard_error

__all__ = ["Slope", "lagging", "precision_sentence", "slope_of"]

KNOWN = 0.05  # relative error of the sd up to which it counts as learned
LEFT = 0.1  # share of the initial precision that may be left
LATE = 0.2  # what the initial precision may still add, a tenth in the sd
LAGGING = 0.01  # share of the weights that may lag behind


class Slope(NamedTuple):
    """One tensor's measurements."""

    size: int
    steps: int
    level: float  # mean slope
    away: float  # how far from zero beyond twice its error
    noise: float  # relative variance of one step's curvature
    forgotten: float
    lagging: float = 0.0  # share of the weights that lag behind (1)


def lagging(sd: Tensor, init_sd: float, prior_sd: float, forgotten: float, power: int) -> float:
    """The share of weights that lag behind (1)."""
    added = ((sd / init_sd) ** (2 * power) - 1) / power
    return float(((added > LATE * math.expm1(forgotten)) & (sd < 0.999 * prior_sd)).float().mean())


def slope_of(statistics: Tensor, size: int) -> Slope:
    """The measurements that a tensor's four numbers hold."""
    many = statistics.new_tensor(float(size))
    level, _, noise = measured(statistics, many)
    away = (level.abs() - 2 * standard_error(noise, many)).clamp_min(0)
    return Slope(size, int(statistics[3]), *(float(v) for v in (level, away, noise, statistics[2])))


def precision_sentence(rows: list[Slope], draws: int, how: str, rho: float = 1.0) -> str:
    """The state of the precision.

    Arguments:
        rows: of the tensors that have been measured.
        draws: per step.
        how: what stands in while eps*score is too noisy: "squares" (squared gradients), "initial" (the
            precision is left as it was) or "score" (nothing does).
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
        "make two draws per step on the same batch, or give ProximalScore the batch_size= of mini-batches"
    )
