"""The exact proximal step for network weights: one ridge regression per weight, in one elementwise pass.

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

__all__ = ["ExactOptions", "exact_single", "exact_step"]

MEMORY = 0.99  # of the running moments of the slope
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


def measured(moments: Tensor, t: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean slope, its mean square V, and the relative variance of (7), from the moments after t steps."""
    weight = 1 - MEMORY**t
    level, V = (moments / weight).unbind()
    error = (V * (1 - MEMORY) / (weight * size)).sqrt()  # of the mean slope
    sure = (level - 2 * error).clamp_min(0)
    return level, V, (V - sure.square()).clamp_min(0) / (1 + sure).square()


def exact_step(
    mean: Tensor,
    sd: Tensor,
    momentum: Tensor,
    moments: Tensor,
    prior_mean: Tensor,
    G: Tensor,
    X: Tensor,
    e1: Tensor,
    e2: Tensor,
    o: ExactOptions,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """New mean, sd, momentum and running moments (mean slope, mean squared slope) of one tensor."""
    variance = sd * sd
    tight = variance * o.prior_precision
    known = moments[0] / (1 - MEMORY ** (o.t - 1)).clamp_min(1e-12)
    share = torch.maximum((1 + known - tight).clamp(0, 1), o.trust)
    slope = sd / o.c * X + tight - 1 - share * (e2 - 1)  # (2)
    moments = MEMORY * moments + (1 - MEMORY) * torch.stack([slope.mean(), slope.square().mean()])
    _, V, noise = measured(moments, o.t, slope.numel())
    rho = torch.maximum(o.t / (o.t + PATIENCE * noise), o.trust)  # (7)
    pull = G + o.c * o.prior_precision * (mean - prior_mean)
    one = torch.maximum(rho * share, o.trust) * e1 - sd / o.c * pull  # (1)
    memory = 1 - o.momentum**o.t
    velocity = momentum / (1 - o.momentum ** (o.t - 1)).clamp_min(1e-12)
    other = variance / o.c * o.fisher * (G - velocity).square() + tight - 1  # (11)
    slope = rho * slope + (1 - rho) * other * (o.fisher > 0)  # (8)
    a = o.damping + o.t / 2 * (1 - o.trust) + 10 * rho * V.sqrt() * (1 - o.trust)  # (9)
    centre = rho * e1
    determinant = (a + e2) / o.lr - centre.square()
    u = ((a + e2) * one + centre * slope) / determinant  # (3)
    w = (slope / o.lr + centre * one) / determinant
    w = w.clamp(-1, 1)
    growth = 1 + w + 0.5 * w.square()  # (4)
    momentum = o.momentum * momentum - (1 - o.momentum) * (o.c / sd) * u / o.lr  # (5)
    mean = mean - o.lr * variance / o.c * momentum / memory / growth  # (6)
    return mean, torch.minimum(sd * growth.rsqrt(), o.prior_sd), momentum, moments


def exact_single(
    mean: Tensor,
    sd: Tensor,
    momentum: Tensor,
    moments: Tensor,
    prior_mean: Tensor,
    g: Tensor,
    eps: Tensor,
    o: ExactOptions,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`exact_step` from one draw: the statistics are not stored."""
    return exact_step(mean, sd, momentum, moments, prior_mean, g, eps * g, eps, eps * eps, o)
