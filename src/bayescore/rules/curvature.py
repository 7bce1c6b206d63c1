"""Slope statistics: per-tensor running statistics of the curvature estimates of a diagonal Gaussian.

In every step a rule measures the whitened slope of every weight: curvature times variance, minus 1. Its mean
is zero once the precision is learned. Four numbers are kept per tensor, the columns of a table:
    0   running mean of the slope                                        (memory 0.99)
    1   running mean of its square, V
    2   how much of the initial precision has been forgotten: the sum of the rates at which the precision
        moves towards its estimate
    3   the number of steps in which the tensor had a gradient
The mean slope has the standard error sqrt(noise (1 - 0.99)/size), where noise is the relative variance of one
step's curvature,
    noise = (V - l^2)/(1 + l)^2,   l the part of the mean slope that exceeds twice its own error        (1)
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["ARRIVED", "MEMORY", "follow", "forget", "measured", "standard_error", "weight_of"]

MEMORY = 0.99  # of the running means
ARRIVED = 0.1  # largest mean slope at which the precision counts as learned: 5 % in the sd


def follow(statistics: Tensor, totals: Tensor, sizes: Tensor) -> None:
    """Update the running means with one step's sums of slope and squared slope, a row per tensor."""
    statistics[:, :2].mul_(MEMORY).add_(totals[:, :2] / sizes[:, None], alpha=1 - MEMORY)
    statistics[:, 3] += 1


def weight_of(statistics: Tensor) -> Tensor:
    """The total weight in the running means so far, in float64: dividing by it removes their bias."""
    return 1 - MEMORY ** statistics[..., 3].double()


def forget(statistics: Tensor, totals: Tensor, sizes: Tensor, rate: float) -> None:
    """`follow`, and count what has been forgotten, for rules in which every weight has its own rate (Adam).

    The slowest weight decides: the third of `totals` is the number of steps it takes. The count starts over
    whenever the mean slope is away from zero: while the mean travels Adam drives the precisions off, and they
    have to come back from there.
    """
    follow(statistics, totals, sizes)
    level, _, noise = measured(statistics, sizes)
    error = standard_error(noise, sizes)
    arrived = level.abs() <= torch.maximum(ARRIVED + 2 * error, 4 * error)  # noise must not reset the count
    statistics[:, 2].add_(rate / totals[:, 2]).mul_(arrived)


def measured(statistics: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean slope, its mean square V, and the noise (1)."""
    weight = weight_of(statistics)
    level, V = (statistics[..., :2] / weight.to(statistics).unsqueeze(-1)).unbind(-1)
    error = (V / sizes * ((1 - MEMORY) / weight).to(V)).sqrt()  # of the mean slope
    significant = (level - 2 * error).clamp_min(0)  # l of (1)
    return level, V, (V - significant.square()).clamp_min(0) / (1 + significant).square()


def standard_error(noise: Tensor, sizes: Tensor) -> Tensor:
    """The standard error of the mean slope."""
    return (noise * (1 - MEMORY) / sizes).sqrt()
