"""The proximal problem of the diagonal Gaussian in closed form: one ridge regression per coordinate.

In the natural parameters (P m, P), P = 1/sigma^2, the score of q is linear in the parameters, so the proximal
problem is least squares. Take the proximal term in expectation over q_t, write eps = (theta - m)/sigma,
r = s + eps/sigma for the residual s - g_t, and u, w for the whitened change of intercept and slope:
    minimise  b u^2 + a w^2 + (1/S) sum_i (u - w eps_i - sigma r_i)^2                                  (1)
    [ b + 1       -mean eps      ] [u]   [  mean(sigma r)     ]
    [ -mean eps   a + mean eps^2 ] [w] = [ -mean(eps sigma r) ]                                        (2)
    P_new = P (1 + w),   m_new = m + sigma u / (1 + w)                                                 (3)
1 + w may be negative. Instead, with w kept within [-1, 1],
    sigma_new = sigma (1 - w/2 + w^2/8),   m_new = m + u sigma_new^2/sigma                             (4)
which agrees with (3) to first order, is positive, and needs no root.

With b = a this is the proximal problem; the mean may be damped less than the precision (b < a). As S grows
it is the natural-gradient step of rate 1/(1 + a): P_new = P + (Lambda - P)/(1 + a). It has no learning rate
and does not change when a coordinate is rescaled.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayescore.rules.draws import Draws

__all__ = ["ridge_step", "shrink", "solve"]


def solve(
    one: Tensor, slope: Tensor, centre: Tensor, weight: Tensor, free: Tensor | float
) -> tuple[Tensor, Tensor]:
    """u and w of (2), w kept within [-1, 1].

    Arguments:
        one, slope: the right-hand side.
        centre, weight, free: the matrix [[free, -centre], [-centre, weight]].
    """
    inverse = torch.addcmul(weight * free, centre, centre, value=-1).reciprocal()
    u = torch.addcmul(weight * one, centre, slope) * inverse
    w = torch.addcmul(slope * free, centre, one) * inverse
    return u, w.clamp(-1, 1)


def shrink(w: Tensor) -> Tensor:
    """The factor of sigma in (4)."""
    return torch.addcmul(1 - 0.5 * w, w, w, value=0.125)


def ridge_step(
    mean: Tensor, sd: Tensor, draws: Draws, a: Tensor | float, b: Tensor | float
) -> tuple[Tensor, Tensor]:
    """One exact proximal step (2), (4) at scores of the target (`Draws.of_scores`): the new mean and sd."""
    one = draws.e1 - sd * draws.G  # mean(sigma r)
    slope = sd * draws.X - draws.e2  # -mean(eps sigma r)
    u, w = solve(one, slope, draws.e1, a + draws.e2, b + 1)
    factor = shrink(w)
    return mean + sd * u * factor.square(), sd * factor
