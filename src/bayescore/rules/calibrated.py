"""The default rule for networks: the proximal problem in closed form, with its curvature used only as far as
it can be trusted.

A mini-batch represents kappa = N/(batch tau) times as many data as it has, and the curvature estimate of one
draw, eps times score, has a variance of about kappa. The rule is therefore the ridge step (rules/ridge.py)
with three numbers per tensor that limit how far this estimate is trusted, and with momentum for the mean.

Per-datum units (optim/base.py): c = tau/N, delta = c/s0^2, G and X averages of gradients of the mean loss.
The prior N(m0, s0^2) enters by its expectation.
    resid  = -(sigma/c) (G + delta (m - m0)) + rho k e1        whitened mean residual of the score       (1)
    slope  = (sigma/c) X + sigma^2/s0^2 - 1 - k (e2 - 1)       whitened curvature minus 1, by eps*score  (2)
    [ 1/eta     -rho e1 ] [u]   [ resid ]
    [ -rho e1   a + e2  ] [w] = [ slope ]                      rules/ridge.py, with b + 1 = 1/eta        (3)
    sigma <- sigma (1 - w/2 + w^2/8),  |w| <= 1                P (1 + w) to first order                  (4)
    momentum <- beta momentum - (1 - beta) (c/sigma) u/eta                                               (5)
    m <- m - (reach/c) momentum/(1 - beta^t),  reach = eta v,  v = 1/P_new                               (6)
With beta = 0 and rho = k = 1 this is the ridge step. After (6), sigma is limited to the prior's s0. At the
initial variance v0, lr is the learning rate of SGD: eta = min(1, lr c/v0). If a Newton step with the initial
precision is shorter than that, because q starts narrower than the posterior,
    reach = max(v, over min(v, v0)),  over = max(1, lr c/v0)                                             (6a)
which is SGD's step at v0, and Newton's step once v has grown to its final value.

The noise of (2) decides how much weight it gets. Its variance V is about kappa for one draw (times
1 - batch/N without replacement), and of order 1 for antithetic pairs on the same data. V and the mean slope
are tracked per tensor (rules/curvature.py). A step uses their values from the steps before it, so that it
needs only one pass over memory. With L = 1 + mean slope,
    rho   = t / (t + 100 noise)                                0: not trusted, 1: fully trusted          (7)
    slope <- rho slope + (1 - rho) slope_F                                                               (8)
    a     = damping + t/2 + 10 rho sqrt(V)                                                               (9)
    k     = L - sigma^2/s0^2, clamped to [0, 1]                from the steps before                     (10)
k subtracts the noise of the draw itself: all of it once the precision is right (k = 1 gives the residual of
the proximal problem, which vanishes at the optimum), little while q is much narrower than the likelihood, and
none of the prior's part, which is exact. If the batch size B is known and a step makes one draw, slope_F
comes from squared gradients,
    slope_F = (sigma^2/c) F + sigma^2/s0^2 - 1,   F = B/(1 - B/N) (1 + beta)/2 (G - momentum)^2          (11)
whose relative noise is 2 for every kappa. At the mean, E F = Var_i(grad l_i), the Fisher information of one
datum. It equals the Hessian H if the model is right for the data (at any temperature) and differs from H by
the misfit otherwise. Three things make F too large, and sds too small: the draw itself, which adds
B/(1 - B/N) sum_j H_ij^2 v_j (negligible at low temperature; as much as F itself for many weights at tau = 1);
the gradient of the prior, B delta^2 (m - m0)^2, because momentum contains it and G does not; and the mean
gradient, in the first steps or with beta = 0, where F = B/(1 - B/N) G^2. Without B, slope_F = 0: the
precision keeps its value until (2) can be trusted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayescore.rules.curvature import measured
from bayescore.rules.draws import Draws
from bayescore.rules.ridge import shrink, solve

__all__ = ["TRUST_STEPS", "CalibratedOptions", "calibrated_step", "step_options", "trust"]

TRUST_STEPS = 100.0  # (7): eps*score gets half the weight once it knows the precision to a tenth
SMALLEST = 1e-20  # least eta: stands for a learning rate of 0, moves nothing and can be divided by


class CalibratedOptions(NamedTuple):
    """Numbers of one step; the last three belong to a tensor, the others to a parameter group."""

    per_c: Any  # 1/c
    delta: Any
    prior_precision: Any  # 1/s0^2
    prior_sd: Any
    inverse_eta: Any  # 1/eta
    momentum: Any  # beta
    correction: (
        Any  # bias correction of the momentum before the step, 1/(1 - beta^(t-1)); 0 in the first step
    )
    initial_variance: Any  # v0, of (6a)
    over: Any  # of (6a)
    gain: Any  # -(1 - beta) c/eta, of (5)
    rate: Any  # eta/(c (1 - beta^t)), of (6)
    fisher: Any  # B (1 + beta)/2 / (1 - B/N) of (11); None where squared gradients are not used
    ceiling: Any  # L of (10)
    rho: Any  # (7)
    a: Any  # (9)


def step_options(
    t: int,
    lr: float,
    initial_variance: Any,
    c: float,
    prior_sd: float,
    beta: float,
    fraction: tuple[int, int] | None,
) -> tuple[Any, ...]:
    """All of `CalibratedOptions` but the last three, for update number t (from 1).

    Arguments:
        initial_variance: v0, a number or one per weight.
        fraction: batch size B and data size N if squared gradients are used, else None.
    """
    share = lr * c / initial_variance  # of a Newton step with the initial precision
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
        initial_variance,
        over,
        -(1 - beta) * c / eta,
        eta / (c * (1 - beta**t)),
        fisher,
    )


def trust(statistics: Tensor, sizes: Tensor, damping: float, squares: bool) -> Tensor:
    """L of (10), rho (7) and a (9) of the next step: three rows, one column per tensor.

    Adds to `statistics` the share of the initial precision that this step will forget.

    Arguments:
        statistics: slope statistics of the steps before (rules/curvature.py).
        squares: whether squared gradients (11) move the precision as far as eps*score does not.
    """
    first = statistics.new_tensor([1.0, 0.0, damping + 0.5])[:, None].expand(3, len(statistics))
    t = statistics[:, 3].double() + 1
    level, V, noise = measured(statistics, sizes)
    rho = 1 / (1 + (TRUST_STEPS / t).to(noise) * noise)
    later = torch.stack([1 + level, rho, 10 * rho * V.sqrt() + (damping + t / 2).to(V)])
    table = torch.where(t > 1, later, first)
    statistics[:, 2] += (1.0 if squares else table[1]) / (table[2] + 1)
    return table


def calibrated_step(
    mean: Tensor,
    sd: Tensor,
    momentum: Tensor | None,
    prior_mean: Tensor | float,
    draws: Draws,
    o: CalibratedOptions,
) -> tuple[tuple[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]:
    """The new mean, sd and momentum (None if there is none), and the slope (2) with its square."""
    G, X, e1, e2 = draws
    sd_per_c, prior_curvature = sd * o.per_c, sd * sd * o.prior_precision
    k = (o.ceiling - prior_curvature).clamp(0, 1)  # (10)
    rho_e1 = o.rho * e1
    measured_slope = torch.addcmul(prior_curvature + k, sd_per_c, X) - (1 + k * e2)  # (2)
    gradient = G + o.delta * (mean - prior_mean)
    residual = torch.addcmul(rho_e1 * k, sd_per_c, gradient, value=-1)  # (1)
    if o.fisher is None:
        slope = o.rho * measured_slope  # (8)
    else:
        deviation = G if momentum is None else G - momentum * o.correction
        slope_F = torch.addcmul(prior_curvature - 1, sd * sd_per_c * o.fisher, deviation.square())  # (11)
        slope = slope_F + o.rho * (measured_slope - slope_F)  # (8)
    u, w = solve(residual, slope, rho_e1, o.a + e2, o.inverse_eta)  # (3)
    new_sd = sd * shrink(w)  # (4)
    direction = o.gain * u / sd
    if momentum is not None:
        direction = momentum = o.momentum * momentum + direction  # (5)
    v = new_sd * new_sd
    reach = torch.maximum(v, o.over * torch.clamp(v, max=o.initial_variance))  # (6a)
    new_mean = mean - o.rate * direction * reach  # (6)
    return (new_mean, torch.clamp(new_sd, max=o.prior_sd), momentum), (
        measured_slope,
        measured_slope * measured_slope,
    )
