"""The proximal problem of the diagonal Gaussian in closed form: one ridge regression per coordinate.

In the natural parameters (P m, P), P = 1/sigma^2, the score is linear in the parameters, so the proximal
problem is least squares. Take the proximal term in expectation over q_t, write eps = (theta - m)/sigma,
r = s + eps/sigma for the residual s - g_t, and u, w for the whitened change of intercept and slope:
    minimise  b u^2 + a w^2 + (1/S) sum_i (u - w eps_i - sigma r_i)^2                       (1)
    [ b + 1       -mean eps      ] [u]   [  mean(sigma r)     ]
    [ -mean eps   a + mean eps^2 ] [w] = [ -mean(eps sigma r) ]                              (2)
    P_new = P (1 + w),   m_new = m + sigma u / (1 + w)                                       (3)
1 + w may be negative. Instead, with w kept within [-1, 1],
    sigma_new = sigma (1 - w/2 + w^2/8),   m_new = m + u sigma_new^2/sigma                   (4)
which agrees with (3) to first order, is positive, and needs no root.

With b = a this is the proximal problem; the mean may be damped less than the precision (b < a). As S grows
it is the natural-gradient step of rate 1/(1 + a): P_new = P + (Lambda - P)/(1 + a). It has no learning rate
and does not change when a coordinate is rescaled.
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["proximal_ridge"]


def proximal_ridge(
    mean: Tensor,
    log_sd: Tensor,
    eps: Tensor,
    score: Tensor,
    damping: float | Tensor,
    mean_damping: float | Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One exact proximal step.

    Arguments:
        mean, log_sd: (*batch, D).
        eps: whitened draws (*batch, S, D).
        score: scores at the draws (*batch, S, D).
        damping: a >= 0, a number or (*batch, 1).
        mean_damping: b >= 0; a if not given.

    Returns:
        the new mean and log standard deviation.
    """
    sigma = log_sd.exp()
    residual = sigma.unsqueeze(-2) * score + eps  # sigma r
    one, slope = residual.mean(-2), -(eps * residual).mean(-2)
    centre, square = eps.mean(-2), eps.square().mean(-2)
    a, b = damping, damping if mean_damping is None else mean_damping
    determinant = (b + 1) * (a + square) - centre.square()
    u = ((a + square) * one + centre * slope) / determinant  # (2)
    w = ((b + 1) * slope + centre * one) / determinant
    w = w.clamp(-1, 1)
    shrink = 1 - w / 2 + w.square() / 8
    return mean + sigma * u * shrink.square(), log_sd + shrink.log()  # (4)
