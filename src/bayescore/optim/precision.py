"""Whether standard deviations have been learned, in a sentence, from what was measured on the way.

Per tensor and step, a method measures the whitened slope of every weight: curvature times variance, minus 1,
zero in the mean when learned. Kept of it are four numbers: running means of the slope and of its square V,
how much of the initial precision has been forgotten, in units of its own memory (the sum of the rates at
which the precision moves towards its estimate), and the number of steps: a tensor may have had a gradient in
some of them only. Where weights answer at rates of their own, those of the
slowest count, and only since the mean slope was last away from zero: Adam drives precisions off while the
mean travels, and it is from there that they come back. The precision counts as learned where
    - little of the initial value is left:            exp(-forgotten) below a tenth; (1) for few weights
    - the estimate is not mostly noise:               sd known to better than 5 %, at best sqrt(V/t)/2
    - and it has arrived:                             the mean slope is below a tenth, or within its error
The error that is stated is a lower bound: it takes all steps for equally informative.

A mean over a tensor does not show a few weights that are far behind. Where the precision P, or its power k,
moves linearly towards what the data say (the exact solver, k = 1; BaM, k = 2), what the initial P0 still adds
to P is known for every weight, and a weight lags behind where that is more than a fifth of P:
    ((P0/P)^k - 1)/k > (exp(forgotten) - 1)/5                                                          (1)
unless its sd has reached the prior's, where it ends.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "MEMORY",
    "Slope",
    "follow",
    "lagging",
    "measured",
    "precision_sentence",
    "slope",
    "take",
    "weight_of",
]

MEMORY = 0.99  # of the running moments of the slope
KNOWN = 0.05  # relative error of the sd up to which it counts as learned
AWAY = 0.1  # mean slope up to which the precision counts as learned, a twentieth in the sd
LEFT = 0.1  # share of the initial precision that may be left
LATE = 0.2  # what the initial precision may still add, a tenth in the sd
LAGGING = 0.01  # share of the weights that may lag behind


def follow(moments: Tensor, totals: Tensor, sizes: Tensor) -> None:
    """Take one step's sums of slope and squared slope, a row per tensor, into the running means."""
    moments[:, :2].mul_(MEMORY).add_(totals[:, :2] / sizes[:, None], alpha=1 - MEMORY)
    moments[:, 3] += 1


def weight_of(moments: Tensor) -> Tensor:
    """What the weights of the running means have added up to, in float64."""
    return 1 - MEMORY ** moments[..., 3].double()


def take(moments: Tensor, totals: Tensor, sizes: Tensor, weight: float) -> None:
    """Also count what has been forgotten, given the longest time a weight needs, one over its rate.

    Nothing has while the mean slope is away from zero.
    """
    follow(moments, totals, sizes)
    level, _, noise = measured(moments, sizes)
    error = _error(noise, sizes)
    arrived = level.abs() <= torch.maximum(AWAY + 2 * error, 4 * error)  # noise must not start it all over
    moments[:, 2].add_(weight / totals[:, 2]).mul_(arrived)


def measured(moments: Tensor, size: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean slope, its mean square V, and the relative variance of one step's curvature.

    Relative to the curvature that the mean slope shows beyond twice its own error.
    """
    weight = weight_of(moments)
    level, V = (moments[..., :2] / weight.to(moments).unsqueeze(-1)).unbind(-1)
    error = (V / size * ((1 - MEMORY) / weight).to(V)).sqrt()  # of the mean slope
    sure = (level - 2 * error).clamp_min(0)
    return level, V, (V - sure.square()).clamp_min(0) / (1 + sure).square()


def _error(noise: Tensor, size: Tensor) -> Tensor:
    """Standard error of the mean slope."""
    return (noise * (1 - MEMORY) / size).sqrt()


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


def slope(moments: Tensor, size: int) -> Slope:
    """The measurements that a tensor's four numbers hold."""
    many = moments.new_tensor(float(size))
    level, _, noise = measured(moments, many)
    away = (level.abs() - 2 * _error(noise, many)).clamp_min(0)
    return Slope(size, int(moments[3]), *(float(v) for v in (level, away, noise, moments[2])))


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
    if away > AWAY:
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
