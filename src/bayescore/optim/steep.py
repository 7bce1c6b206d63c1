"""Losses that are steeper than a classification's: the default rate and the initial sd are lowered to fit.

A rate like SGD's and an initial sd of unit curvature fit a loss whose scale is that of a classification.
Where both were left to us, the first 200 updates are watched: with g the gradient and w all weights,
    k = lr |g| / (0.5 |w|),  |w|^2 = sum w_i^2 + (number of weights, at most 100)                     (1)
above 1 means that the loss is steeper (a noise level of 0.1, targets or inputs in the hundreds). This update
is then left out, the rate is divided by k and the sds by sqrt(k): both are those of k times the curvature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch.linalg import vector_norm as norm

from bayescore.optim.engine import Member

__all__ = ["WATCHED", "is_steep"]

WATCHED = 200  # updates
FARTHEST, FEW = 0.5, 100  # of (1)


def is_steep(
    groups: Iterable[dict[str, Any]],
    reached: Sequence[Member],
    members: Iterable[Member],
    divisor: float,
    stride: Callable[[dict[str, Any]], float],
) -> bool:
    """Whether this update would go too far (1); if so, later ones are shorter.

    Arguments:
        groups: those with `steep_watch` above 0 are watched for so many updates.
        reached: members with a gradient, which is that in the sums, or in `.grad`, over `divisor`.
        members: all of them.
        stride: by how much a gradient of 1 moves a weight of a group.
    """
    watched = [m for m in reached if m.group["updates"] < m.group["steep_watch"]]
    if not watched:
        return False
    gradients = [m.state.get("sum_g", m.weight.grad) for m in watched]
    rates = [stride(m.group) / divisor for m in watched]
    step = math.hypot(*(rate * float(norm(g)) for rate, g in zip(rates, gradients, strict=True)))
    least = math.sqrt(min(FEW, sum(m.weight.numel() for m in watched)))
    if step <= FARTHEST * least:  # without a look at the weights, as almost always
        return False
    k = step / (FARTHEST * math.hypot(least, *(float(norm(m.weight)) for m in watched)))
    if k <= 1:
        return False
    for group in (group for group in groups if group["steep_watch"]):
        group["lr_factor"] /= k
        group["init_sd"] /= math.sqrt(k)
    for sd in (m.state["sd"] for m in members if m.group["steep_watch"] and "sd" in m.state):
        sd.div_(math.sqrt(k))
    return True
