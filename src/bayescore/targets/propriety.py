"""A sign that a density cannot be normalised: its logarithm is linear in a coordinate.

    d log Phi / d x_i = c for all x   =>   Phi(x) = exp(c x_i) h(the others), whose integral diverges     (1)
c = 0: a parameter that enters neither prior nor likelihood; c = 1: such a parameter that is positive, of
which only the log-Jacobian is left.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayescore.targets.base import Target

__all__ = ["REMEDY", "coordinate_names", "improper_coordinates"]

REMEDY = "give every parameter a prior"


def coordinate_names(target: Target) -> list[str]:
    """The names of the coordinates; theta[1] and so on if the target has none."""
    return getattr(target, "names", None) or [f"theta[{i + 1}]" for i in range(target.dim)]


def improper_coordinates(target: Target, draws: Tensor) -> list[str]:
    """The coordinates whose score is the same at all draws (n, D), by name; non-finite scores do not count.

    >>> from bayescore.targets.functions import LogDensity
    >>> half = LogDensity(lambda x: -x[:, 0].square() + 0 * x[:, 1], dim=2)
    >>> improper_coordinates(half, torch.randn(20, 2, dtype=torch.float64))
    ['theta[2]']
    """
    if target.stochastic:
        raise TypeError("a random score cannot tell whether the density is proper; give the exact target")
    points = draws.reshape(-1, target.dim)
    score = target.score(points)
    usable = score.isfinite().all(-1)
    if int(usable.sum()) < 2 or bool((points[usable][0] == points[usable]).all()):
        return []
    score = score[usable]
    spread = score.amax(0) - score.amin(0)
    scale = score.abs().amax(0).clamp_min(1.0)
    same = (spread <= 16 * torch.finfo(score.dtype).eps * scale).tolist()
    return [name for name, constant in zip(coordinate_names(target), same, strict=True) if constant]
