"""The exact proximal step for network weights: one ridge regression per weight, elementwise and in place.

Per-datum units (optim/base.py): c = tau/N, delta = c/s0^2, g_i = mini-batch gradient of the mean loss at
draw i. The prior enters by its expectation. With G = mean g_i, X = mean eps_i g_i, e1 = mean eps_i, e2 =
mean eps_i^2:
    one    = -(sigma/c) (G + delta (m - m0)) + rho k e1        whitened mean score                       (1)
    slope  = (sigma/c) X + sigma^2/s0^2 - 1 - k (e2 - 1)       whitened curvature minus 1, by eps*score  (2)
    [ 1/eta     -rho e1 ] [u]   [ one   ]
    [ -rho e1   a + e2  ] [w] = [ slope ]                      methods/ridge.py, with b + 1 = 1/eta      (3)
    sigma <- sigma (1 - w/2 + w^2/8),  |w| <= 1                P (1 + w) to first order                  (4)
    momentum <- beta momentum - (1 - beta) (c/sigma) u/eta                                               (5)
    m <- m - (reach/c) momentum/(1 - beta^t),  reach = eta v,  v = 1/P_new                               (6)
With beta = 0 and rho = k = 1 this is the ridge step. sigma is kept at or below the prior's s0, after (6). The
rate lr is SGD's at the initial variance v0: eta = min(1, lr c/v0). Where a Newton step with the initial
precision is shorter than lr, because q starts narrower than the posterior,
    reach = max(v, over min(v, v0)),  over = max(1, lr c/v0)                                              (6a)
which is lr at v0, and Newton's step once v has grown to what the data say.

How noisy (2) is decides what it may do. Its variance V is about kappa = N/(batch tau) for one draw (times 1 -
batch/N without replacement), and of order 1 for antithetic pairs on the same data. V and the mean slope are
tracked per tensor, and a step uses those of the steps before it, so that one pass over memory makes it; with
L = 1 + mean slope, and l the part of the mean slope that is above twice its own error,
    rho   = t / (t + 100 (V - l^2)/(1 + l)^2)                  0: not to be trusted yet, 1: trusted      (7)
    slope <- rho slope + (1 - rho) slope_F                                                               (8)
    a     = damping + t/2 + 10 rho sqrt(V)                                                               (9)
    k     = L - sigma^2/s0^2, within [0, 1]                    from the steps before                     (10)
k takes off what the draw itself adds: all of it once the precision is right (k = 1 is the residual of the
proximal problem, quiet at the optimum), little while q is much narrower than the likelihood, none of the
prior's part, which is exact. With the batch size B known and one draw per step, slope_F comes from squared
gradients,
    slope_F = (sigma^2/c) F + sigma^2/s0^2 - 1,   F = B/(1 - B/N) (1 + beta)/2 (G - momentum)^2          (11)
whose relative noise is 2 whatever kappa is. At the mean, E F = Var_i(grad l_i), the Fisher information of one
datum: it is the Hessian H where the likelihood is that of the data (at any temperature) and differs from it
by the misfit otherwise. Three things make F too large, and sds too small: the draw itself, which adds B/(1 -
B/N) sum_j H_ij^2 v_j (nothing when cold; with many weights at tau = 1 as much as F itself); the prior's pull,
B delta^2 (m - m0)^2, as momentum holds it and G does not; and in the first steps, or with beta = 0, where F =
B/(1 - B/N) G^2, the mean gradient. Without B, slope_F = 0: the precision stays where it is until (2) can be
trusted.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from bayescore.optim.precision import measured

__all__ = ["ExactOptions", "exact_update", "settled"]

PATIENCE = 100.0  # (7): a tenth of relative error in the precision is where eps*score takes over


class ExactOptions(NamedTuple):
    """Numbers of one step; the last three are those of a tensor, the others of a group."""

    per_c: Tensor  # 1/c
    delta: Tensor
    prior_precision: Tensor  # 1/s0^2
    prior_sd: Tensor
    one: Tensor  # 1
    free: Tensor  # 1/eta
    momentum: Tensor  # beta
    past: Tensor  # 1/(1 - beta^(t-1)), 0 in the first step
    start: Tensor  # v0, of (6a)
    over: Tensor  # of (6a)
    gain: Tensor  # -(1 - beta) c/eta, of (5)
    rate: Tensor  # eta/(c (1 - beta^t)), of (6)
    fisher: Tensor | None  # B (1 + beta)/2 / (1 - B/N) of (11) where squared gradients are used
    ceiling: Tensor  # L of (10)
    rho: Tensor  # (7)
    a: Tensor  # (9)


def settled(moments: Tensor, sizes: Tensor, damping: float, trust: bool, squares: bool) -> Tensor:
    """L of (10), (7) and (9) of the next update, one column per tensor, from the moments of those before.

    Arguments:
        trust: the ridge step as it is: rho = k = 1 and a = damping.
        squares: the precision moves by squared gradients where it does not by eps*score.
    """
    row = moments.new_tensor([math.inf, 1.0, damping] if trust else [1.0, 0.0, damping + 0.5])
    table = row[:, None].expand(3, len(moments))
    if not trust:
        t = moments[:, 3].double() + 1
        level, V, noise = measured(moments, sizes)
        rho = 1 / (1 + (PATIENCE / t).to(noise) * noise)
        later = torch.stack([1 + level, rho, 10 * rho * V.sqrt() + (damping + t / 2).to(V)])
        table = torch.where(t > 1, later, table)
    moments[:, 2] += (1.0 if squares else table[1]) / (table[2] + 1)
    return table


def exact_update(
    mean: Tensor,
    sd: Tensor,
    momentum: Tensor | None,
    prior_mean: Tensor,
    G: Tensor,
    X: Tensor,
    e1: Tensor,
    e2: Tensor,
    o: ExactOptions,
) -> tuple[Tensor, Tensor]:
    """Move mean, sd and momentum, where there is one; the terms are the slope (2) and its square."""
    scaled, tight = sd * o.per_c, sd * sd * o.prior_precision
    share = (o.ceiling - tight).clamp(0, 1)  # (10)
    centre, weight = o.rho * e1, o.a + e2
    seen = torch.addcmul(tight + share, scaled, X) - torch.addcmul(o.one, share, e2)  # (2)
    pull = torch.addcmul(G, o.delta, mean - prior_mean)
    one = torch.addcmul(centre * share, scaled, pull, value=-1)  # (1)
    if o.fisher is None:
        slope = o.rho * seen  # (8)
    else:
        apart = G if momentum is None else torch.addcmul(G, momentum, o.past, value=-1)
        squares = torch.addcmul(tight - o.one, sd * scaled * o.fisher, apart.square())  # (11)
        slope = torch.addcmul(squares, o.rho, seen - squares)  # (8)
    per = (sd * torch.addcmul(weight * o.free, centre, centre, value=-1)).reciprocal()  # 1/(sd determinant)
    u = torch.addcmul(weight * one, centre, slope) * per  # (3), u/sd
    w = (torch.addcmul(slope * o.free, centre, one) * per * sd).clamp(-1, 1)
    narrow = sd * torch.addcmul(o.one - 0.5 * w, w, w, value=0.125)  # (4)
    force = o.gain * u
    if momentum is not None:
        force = momentum.mul_(o.momentum).add_(force)  # (5)
    v = narrow * narrow
    mean.addcmul_(o.rate * force, torch.maximum(v, o.over * torch.minimum(v, o.start)), value=-1)  # (6), (6a)
    sd.copy_(torch.minimum(narrow, o.prior_sd))
    return seen, seen * seen
