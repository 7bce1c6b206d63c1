"""Losses that are steeper than in classification: the default learning rate and initial sd are lowered.

The default learning rate and initial sd suit a loss with the scale of a classification loss. If the user gave
neither, the first 200 updates are watched. With g the gradient and w all weights,
    k = lr |g| / (0.5 |w|),  |w|^2 = sum w_i^2 + (number of weights, at most 100)                     (1)
above 1 means that the loss is steeper (a noise level of 0.1, targets or inputs in the hundreds). The update
is then left out, the rate is divided by k and the sds by sqrt(k), which suits a curvature k times as large.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bayescore.optim.distributed import norms
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
    """Whether this update would be too long (1); if so, lowers the rate and the sds of watched groups.

    Arguments:
        groups: a group is watched for its first `steep_watch` updates.
        reached: members with a gradient, which is state "sum_g", or `.grad`, divided by `divisor`.
        members: all members.
        stride: how far a gradient of 1 moves a weight of a group.
    """
    watched = [m for m in reached if m.group["updates"] < m.group["steep_watch"]]
    if not watched:
        return False
    weights = [m.weight.detach() for m in watched]
    gradients: list[Any] = [m.state.get("sum_g", m.gradient) for m in watched]
    rates = [stride(m.group) / divisor for m in watched]
    step = math.hypot(*(rate * norm for rate, norm in zip(rates, norms(weights, gradients), strict=True)))
    least = math.sqrt(min(FEW, sum(m.weight.numel() for m in watched)))
    if step <= FARTHEST * least:  # almost always: the norms of the weights are not needed
        return False
    k = step / (FARTHEST * math.hypot(least, *norms(weights)))
    if k <= 1:
        return False
    for group in (group for group in groups if group["steep_watch"]):
        group["lr_factor"] /= k
        group["init_sd"] /= math.sqrt(k)
    for sd in (m.state["sd"] for m in members if m.group["steep_watch"] and "sd" in m.state):
        sd.div_(math.sqrt(k))
    return True
