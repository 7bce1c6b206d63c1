"""The exact proximal step for network weights: one ridge regression per weight, elementwise and in place.

Per-datum units (optim/base.py): c = tau/N, delta = c/s0^2, g_i = mini-batch gradient of the mean loss at
draw i. The prior enters by its expectation. With G = mean g_i, X = mean eps_i g_i, e1 = mean eps_i, e2 =
mean eps_i^2:
    one    = -(sigma/c) (G + delta (m - m0)) + rho k e1        whitened mean score                       (1)
    slope  = (sigma/c) X + sigma^2/s0^2 - 1 - k (e2 - 1)       whitened curvature minus 1, by eps*score  (2)
    [ 1/eta   -e1    ] [u]   [ one   ]
    [ -e1     a + e2 ] [w] = [ slope ]                         methods/ridge.py, with b + 1 = 1/eta      (3)
    P <- P (1 + w + w^2/2),  |w| <= 1                                                                    (4)
    momentum <- beta momentum - (1 - beta) (c/sigma) u/eta                                               (5)
    m <- m - eta (sigma^2/c) momentum/(1 - beta^t) P_old/P_new                                            (6)
With beta = 0 and rho = k = 1 this is the ridge step. sigma is kept at or below the prior's s0.

How noisy (2) is decides what it may do. Its variance V is about kappa = N/(batch tau) for one draw, and of
order 1 for antithetic pairs on the same data. V and the mean slope are tracked per tensor; with L = 1 + mean
slope, and l the part of the mean slope that is above twice its own error,
    rho   = t / (t + 100 (V - l^2)/(1 + l)^2)                  0: not to be trusted yet, 1: trusted      (7)
    slope <- rho slope + (1 - rho) slope_F                                                               (8)
    a     = damping + t/2 + 10 rho sqrt(V)                                                               (9)
    k     = L - sigma^2/s0^2, within [0, 1]                    from the steps before                     (10)
k takes off what the draw itself adds: all of it once the precision is right (k = 1 is the residual of the
proximal problem, quiet at the optimum), little while q is much narrower than the likelihood, none of the
prior's part, which is exact. With the batch size B known and one draw per step, slope_F comes from squared
gradients,
    slope_F = (sigma^2/c) F + sigma^2/s0^2 - 1,   F = B/(1 - B/N) (1 + beta)/2 (G - momentum)^2          (11)
whose relative noise is 2 whatever kappa is. E F = Var_i(grad l_i), the Fisher information of one datum: it
is the Hessian where the likelihood is that of the data (at any temperature) and differs from it by the
misfit otherwise. Without B, slope_F = 0: the precision stays where it is until (2) can be trusted.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bayescore.optim.precision import MEMORY, measured

__all__ = ["ExactOptions", "exact_sums", "exact_sums_single", "exact_update", "settled"]

PATIENCE = 100.0  # (7): a tenth of relative error in the precision is where eps*score takes over


class ExactOptions(NamedTuple):
    """Numbers of one step, as zero-dimensional tensors."""

    c: Tensor
    prior_precision: Tensor  # 1/s0^2
    prior_sd: Tensor
    lr: Tensor
    momentum: Tensor  # beta
    damping: Tensor  # a before (9)
    t: Tensor  # number of this update, from 1
    trust: Tensor  # 1: the ridge step as it is, rho = k = 1 and a = damping
    fisher: Tensor  # B (1 + beta)/2 / (1 - B/N), or 0
    known: Tensor  # mean slope of the steps before, for (10)
    rho: Tensor  # (7)
    a: Tensor  # (9)


def _slope(sd: Tensor, X: Tensor, e2: Tensor, o: ExactOptions) -> tuple[Tensor, Tensor, Tensor]:
    """(2), the share k of (10), and sigma^2/s0^2."""
    tight = sd * sd * o.prior_precision
    share = torch.maximum((1 + o.known - tight).clamp(0, 1), o.trust)
    return sd / o.c * X + tight - 1 - share * (e2 - 1), share, tight


def exact_sums(sd: Tensor, X: Tensor, e2: Tensor, o: ExactOptions) -> Tensor:
    """Sums of the slope and its square, before the update."""
    slope = _slope(sd, X, e2, o)[0]
    return torch.stack([slope.sum(), slope.square().sum()])


def exact_sums_single(sd: Tensor, g: Tensor, eps: Tensor, o: ExactOptions) -> Tensor:
    """`exact_sums` of one draw."""
    return exact_sums(sd, eps * g, eps * eps, o)


def settled(o: ExactOptions, moments: Tensor, sums: Tensor, size: int) -> ExactOptions:
    """Take a tensor's sums into its running moments, and decide (7) and (9)."""
    moments[:2].mul_(MEMORY).add_(sums / size, alpha=1 - MEMORY)
    _, V, noise = measured(moments, o.t, size)
    rho = torch.maximum(o.t / (o.t + PATIENCE * noise), o.trust)
    a = o.damping + (o.t / 2 + 10 * rho * V.sqrt()) * (1 - o.trust)
    moments[2] += torch.where(o.fisher > 0, 1.0, rho) / (a + 1)
    return o._replace(rho=rho, a=a)


def exact_update(
    mean: Tensor,
    sd: Tensor,
    momentum: Tensor,
    prior_mean: Tensor,
    G: Tensor,
    X: Tensor,
    e1: Tensor,
    e2: Tensor,
    o: ExactOptions,
) -> None:
    """Move mean, sd and momentum."""
    slope, share, tight = _slope(sd, X, e2, o)
    variance = sd * sd
    pull = G + o.c * o.prior_precision * (mean - prior_mean)
    one = torch.maximum(o.rho * share, o.trust) * e1 - sd / o.c * pull  # (1)
    velocity = momentum / (1 - o.momentum ** (o.t - 1)).clamp_min(1e-12)
    other = variance / o.c * o.fisher * (G - velocity).square() + tight - 1  # (11)
    slope = o.rho * slope + (1 - o.rho) * (o.fisher > 0) * other  # (8)
    centre, weight = o.rho * e1, o.a + e2
    determinant = weight / o.lr - centre.square()
    u = (weight * one + centre * slope) / determinant  # (3)
    w = ((slope / o.lr + centre * one) / determinant).clamp(-1, 1)
    growth = 1 + w + 0.5 * w.square()  # (4)
    momentum.mul_(o.momentum).sub_((1 - o.momentum) * o.c / o.lr * u / sd)  # (5)
    rate = o.lr / (o.c * (1 - o.momentum**o.t))
    mean.sub_(rate * variance * momentum / growth)  # (6)
    sd.copy_(torch.minimum(sd * growth.rsqrt(), o.prior_sd))
