"""What an elementwise rule needs to know of S draws theta_i = m + sigma eps_i: four averages.

With g_i the gradient of the loss at draw i (the score is s_i = -g_i/c, c = 1 where the loss is -log density):
    G = mean g_i,   X = mean eps_i g_i,   e1 = mean eps_i,   e2 = mean eps_i^2                          (1)
E[G] is the expected gradient, and E[X] = sigma E[curvature] by Stein's identity. A diagonal Gaussian needs
nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

__all__ = ["Draws"]


class Draws(NamedTuple):
    """The averages (1)."""

    G: Tensor
    X: Tensor
    e1: Tensor
    e2: Tensor

    @classmethod
    def of_one(cls, g: Tensor, eps: Tensor) -> Draws:
        """The averages of a single draw, from its gradient and noise."""
        return cls(g, eps * g, eps, eps * eps)

    @classmethod
    def of_scores(cls, eps: Tensor, score: Tensor) -> Draws:
        """The averages of S draws, from their noise and scores (..., S, D)."""
        return cls(-score.mean(-2), -(eps * score).mean(-2), eps.mean(-2), eps.square().mean(-2))
