"""The default rule for networks: the proximal problem solved in closed form, its curvature used as far as it
can be trusted.

A mini-batch stands for kappa = N/(batch tau) times its own data, and the curvature that one draw shows,
eps times score, has a variance of about kappa. So the ridge step (rules/ridge.py) is made with three numbers
per tensor that say how far this curvature may be believed, and with momentum for the mean.

Per-datum units (optim/base.py): c = tau/N, delta = c/s0^2, G and X of the gradients of the mean loss. The
prior N(m0, s0^2) enters by its expectation.
    one    = -(sigma/c) (G + delta (m - m0)) + rho k e1        whitened mean score                       (1)
    slope  = (sigma/c) X + sigma^2/s0^2 - 1 - k (e2 - 1)       whitened curvature minus 1, by eps*score  (2)
    [ 1/eta     -rho e1 ] [u]   [ one   ]
    [ -rho e1   a + e2  ] [w] = [ slope ]                      rules/ridge.py, with b + 1 = 1/eta        (3)
    sigma <- sigma (1 - w/2 + w^2/8),  |w| <= 1                P (1 + w) to first order                  (4)
    momentum <- beta momentum - (1 - beta) (c/sigma) u/eta                                               (5)
    m <- m - (reach/c) momentum/(1 - beta^t),  reach = eta v,  v = 1/P_new                               (6)
With beta = 0 and rho = k = 1 this is the ridge step. sigma is kept at or below the prior's s0, after (6). The
rate lr is SGD's at the initial variance v0: eta = min(1, lr c/v0). Where a Newton step with the initial
precision is shorter than lr, because q starts narrower than the posterior,
    reach = max(v, over min(v, v0)),  over = max(1, lr c/v0)                                             (6a)
which is lr at v0, and Newton's step once v has grown to what the data say.

How noisy (2) is decides what it may do. Its variance V is about kappa for one draw (times 1 - batch/N without
replacement), and of order 1 for antithetic pairs on the same data. V and the mean slope are tracked per
tensor (rules/curvature.py), and a step uses those of the steps before it, so that one pass over memory makes
it; with L = 1 + mean slope,
    rho   = t / (t + 100 noise)                                0: not to be trusted yet, 1: trusted      (7)
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

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayescore.rules.curvature import measured
from bayescore.rules.draws import Draws
from bayescore.rules.ridge import shrink, solve

__all__ = ["PATIENCE", "ProximalOptions", "proximal_step", "step_options", "trust"]

PATIENCE = 100.0  # (7): a tenth of relative error in the precision is where eps*score takes over
SMALLEST = 1e-20  # share of a Newton step that moves nothing: what a rate of 0 becomes


class ProximalOptions(NamedTuple):
    """Numbers of one step; the last three are those of a tensor, the others of a parameter group."""

    per_c: Any  # 1/c
    delta: Any
    prior_precision: Any  # 1/s0^2
    prior_sd: Any
    free: Any  # 1/eta
    momentum: Any  # beta
    past: Any  # 1/(1 - beta^(t-1)), 0 in the first step
    start: Any  # v0, of (6a)
    over: Any  # of (6a)
    gain: Any  # -(1 - beta) c/eta, of (5)
    rate: Any  # eta/(c (1 - beta^t)), of (6)
    fisher: Any  # B (1 + beta)/2 / (1 - B/N) of (11); None where squared gradients are not used
    ceiling: Any  # L of (10)
    rho: Any  # (7)
    a: Any  # (9)


def step_options(
    t: int, lr: float, start: Any, c: float, prior_sd: float, beta: float, fraction: tuple[int, int] | None
) -> tuple[Any, ...]:
    """All of `ProximalOptions` but the last three, for update number t (from 1).

    Arguments:
        start: the initial variance v0, a number or one per weight.
        fraction: batch size and size of the data, where squared gradients are used.
    """
    share = lr * c / start  # of a Newton step with the initial precision
    if isinstance(share, Tensor):
        eta, over = share.clamp(SMALLEST, 1.0), share.clamp_min(1.0)
    else:
        eta, over = min(1.0, max(share, SMALLEST)), max(1.0, share)
    fisher = None
    if fraction is not None:
        B, N = fraction
        fisher = B * ((1 + beta) / 2 if beta else 1.0) / (1 - B / N)
    return (
        1 / c,
        c * prior_sd**-2.0,
        prior_sd**-2.0,
        prior_sd,
        1 / eta,
        beta,
        1 / (1 - beta ** (t - 1)) if t > 1 else 0.0,
        start,
        over,
        -(1 - beta) * c / eta,
        eta / (c * (1 - beta**t)),
        fisher,
    )


def trust(statistics: Tensor, sizes: Tensor, damping: float, squares: bool) -> Tensor:
    """L of (10), (7) and (9) of the next step, one column per tensor; counts what that step will forget.

    Arguments:
        statistics: of the steps before (rules/curvature.py).
        squares: the precision moves by squared gradients where it does not by eps*score.
    """
    first = statistics.new_tensor([1.0, 0.0, damping + 0.5])[:, None].expand(3, len(statistics))
    t = statistics[:, 3].double() + 1
    level, V, noise = measured(statistics, sizes)
    rho = 1 / (1 + (PATIENCE / t).to(noise) * noise)
    later = torch.stack([1 + level, rho, 10 * rho * V.sqrt() + (damping + t / 2).to(V)])
    table = torch.where(t > 1, later, first)
    statistics[:, 2] += (1.0 if squares else table[1]) / (table[2] + 1)
    return table


def proximal_step(
    mean: Tensor,
    sd: Tensor,
    momentum: Tensor | None,
    prior_mean: Tensor | float,
    draws: Draws,
    o: ProximalOptions,
) -> tuple[tuple[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]:
    """The new mean, sd and momentum (where there is one); and the slope (2) with its square."""
    G, X, e1, e2 = draws
    scaled, tight = sd * o.per_c, sd * sd * o.prior_precision
    k = (o.ceiling - tight).clamp(0, 1)  # (10)
    centre = o.rho * e1
    seen = torch.addcmul(tight + k, scaled, X) - (1 + k * e2)  # (2)
    pull = G + o.delta * (mean - prior_mean)
    one = torch.addcmul(centre * k, scaled, pull, value=-1)  # (1)
    if o.fisher is None:
        slope = o.rho * seen  # (8)
    else:
        apart = G if momentum is None else G - momentum * o.past
        squares = torch.addcmul(tight - 1, sd * scaled * o.fisher, apart.square())  # (11)
        slope = squares + o.rho * (seen - squares)  # (8)
    u, w = solve(one, slope, centre, o.a + e2, o.free)  # (3)
    narrow = sd * shrink(w)  # (4)
    force = o.gain * u / sd
    if momentum is not None:
        force = momentum = o.momentum * momentum + force  # (5)
    v = narrow * narrow
    reach = torch.maximum(v, o.over * torch.clamp(v, max=o.start))  # (6a)
    moved = mean - o.rate * force * reach  # (6)
    return (moved, torch.clamp(narrow, max=o.prior_sd), momentum), (seen, seen * seen)
