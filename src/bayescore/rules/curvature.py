"""Slope statistics: what is known, tensor by tensor, of the curvature estimates of a diagonal Gaussian.

Per step, a rule measures the whitened slope of every weight: curvature times variance, minus 1, zero in the
mean when the precision is learned. Kept of it are four numbers per tensor (one row each):
    0   running mean of the slope                                        (memory 0.99)
    1   running mean of its square, V
    2   how much of the initial precision has been forgotten: the sum of the rates at which the precision
        moves towards its estimate
    3   the number of steps in which the tensor had a gradient
The mean slope has the standard error sqrt(noise (1 - 0.99)/size), noise being the relative variance of one
step's curvature,
    noise = (V - l^2)/(1 + l)^2,   l the part of the mean slope that is above twice its own error       (1)
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["ARRIVED", "MEMORY", "follow", "forget", "measured", "standard_error", "weight_of"]

MEMORY = 0.99  # of the running means
ARRIVED = 0.1  # mean slope up to which the precision counts as learned, a twentieth in the sd


def follow(statistics: Tensor, totals: Tensor, sizes: Tensor) -> None:
    """Take one step's sums of slope and squared slope, a row per tensor, into the running means."""
    statistics[:, :2].mul_(MEMORY).add_(totals[:, :2] / sizes[:, None], alpha=1 - MEMORY)
    statistics[:, 3] += 1


def weight_of(statistics: Tensor) -> Tensor:
    """What the weights of the running means have added up to, in float64."""
    return 1 - MEMORY ** statistics[..., 3].double()


def forget(statistics: Tensor, totals: Tensor, sizes: Tensor, rate: float) -> None:
    """`follow`, and count what has been forgotten where every weight has a rate of its own.

    The slowest weight counts, whose time is the third of the totals, and only since the mean slope was last
    away from zero: Adam drives precisions off while the mean travels, and it is from there that they come
    back.
    """
    follow(statistics, totals, sizes)
    level, _, noise = measured(statistics, sizes)
    error = standard_error(noise, sizes)
    arrived = level.abs() <= torch.maximum(ARRIVED + 2 * error, 4 * error)  # noise must not start it all over
    statistics[:, 2].add_(rate / totals[:, 2]).mul_(arrived)


def measured(statistics: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean slope, its mean square V, and the noise (1)."""
    weight = weight_of(statistics)
    level, V = (statistics[..., :2] / weight.to(statistics).unsqueeze(-1)).unbind(-1)
    error = (V / sizes * ((1 - MEMORY) / weight).to(V)).sqrt()  # of the mean slope
    sure = (level - 2 * error).clamp_min(0)
    return level, V, (V - sure.square()).clamp_min(0) / (1 + sure).square()


def standard_error(noise: Tensor, sizes: Tensor) -> Tensor:
    """Of the mean slope."""
    return (noise * (1 - MEMORY) / sizes).sqrt()
