"""The proximal problem of the diagonal Gaussian in closed form: one ridge regression per coordinate.

In the natural parameters (P m, P), P = 1/sigma^2, the score of q is linear in the parameters, so the proximal
problem is least squares. Take the proximal term in expectation over q_t, write eps = (theta - m)/sigma,
r = s + eps/sigma for the residual s - g_t, and u, w for the whitened change of intercept and slope:
    minimise  b u^2 + a w^2 + (1/S) sum_i (u - w eps_i - sigma r_i)^2                                  (1)
    [ b + 1       -mean eps      ] [u]   [  mean(sigma r)     ]
    [ -mean eps   a + mean eps^2 ] [w] = [ -mean(eps sigma r) ]                                        (2)
    P_new = P (1 + w),   m_new = m + sigma u / (1 + w)                                                 (3)
Since 1 + w may be negative, w is clamped to [-1, 1] and (3) is replaced by
    sigma_new = sigma (1 - w/2 + w^2/8),   m_new = m + u sigma_new^2/sigma                             (4)
which agrees with (3) to first order, stays positive, and needs no square root.

With b = a this is the proximal problem; the mean may be damped less than the precision (b < a). As S grows,
the step tends to the natural-gradient step of rate 1/(1 + a): P_new = P + (Lambda - P)/(1 + a), Lambda the
target's precision. It has no learning rate and does not depend on the units of a coordinate.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayescore.rules.draws import Draws

__all__ = ["ridge_step", "shrink", "solve"]


def solve(
    residual: Tensor, slope: Tensor, m12: Tensor, m22: Tensor, m11: Tensor | float
) -> tuple[Tensor, Tensor]:
    """u and w of (2), w clamped to [-1, 1].

    Arguments:
        residual, slope: the right-hand side.
        m12, m22, m11: the matrix [[m11, -m12], [-m12, m22]].
    """
    inverse = torch.addcmul(m22 * m11, m12, m12, value=-1).reciprocal()
    u = torch.addcmul(m22 * residual, m12, slope) * inverse
    w = torch.addcmul(slope * m11, m12, residual) * inverse
    return u, w.clamp(-1, 1)


def shrink(w: Tensor) -> Tensor:
    """sigma_new/sigma of (4)."""
    return torch.addcmul(1 - 0.5 * w, w, w, value=0.125)


def ridge_step(
    mean: Tensor, sd: Tensor, draws: Draws, a: Tensor | float, b: Tensor | float
) -> tuple[Tensor, Tensor]:
    """One exact proximal step, (2) and (4), from `Draws.of_scores`: the new mean and sd."""
    residual = draws.e1 - sd * draws.G  # mean(sigma r)
    slope = sd * draws.X - draws.e2  # -mean(eps sigma r)
    u, w = solve(residual, slope, draws.e1, a + draws.e2, b + 1)
    factor = shrink(w)
    return mean + sd * u * factor.square(), sd * factor
