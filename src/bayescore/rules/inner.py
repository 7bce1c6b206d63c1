"""The inner loop of Algorithm 1 for a diagonal Gaussian: N descent steps on (m, log sigma) from fixed draws.

With g = (m - theta)/v, and theta, the score s and q_t's own score g_t held fixed, the loss is
    alpha |g - g_t|^2 + |g - s|^2,        e = (1 + alpha) g - alpha g_t - s                            (1)
    d loss/d m = 2 e/v,                   d loss/d rho = -4 g e,       rho = log sigma                 (2)
Neither draws nor scores are stored: theta = m_t + sigma_t eps, so g_t = -eps/sigma_t, and once the mean has
moved by d = m - m_t, g = (d - sigma_t eps)/v. Averages over S draws need only G, X, e1 and e2:
    mean e     = (1+alpha) (d - sigma_t e1)/v + alpha e1/sigma_t - s1                                  (3)
    mean g e   = [ d mean e - sigma_t mean(eps e) ]/v                                                  (4)
    mean eps e = (1+alpha) (d e1 - sigma_t e2)/v + alpha e2/sigma_t - s2                               (5)
where s1 = -(G + delta (m_t - m0))/c and s2 = -X/c - sigma_t/s0^2 are the averages of s and eps s. The prior
enters both by its expectation over eps, not by its value at the draws. Everything is computed in per-datum
units: scores are multiplied by c = tau/N, the loss by c^2.

Each inner step is a step of Adam, or of SGD with momentum (rules/adam.py), on m and on rho. Adam divides by
sqrt(second) + floor r, where r is the size of (2) at e = g_t: 2 c^2/sigma_t^3 for m and 4 c^2/sigma_t^2 for
rho. A residual much smaller than the score itself then no longer counts as signal, and a converged fit stays
converged.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from bayescore.rules.adam import EPSILON, adam_moments, corrections, sgd_velocity
from bayescore.rules.draws import Draws
from bayescore.rules.terms import Largest, Terms

__all__ = ["InnerOptions", "inner_corrections", "inner_gradient", "inner_steps"]


class InnerOptions(NamedTuple):
    """Numbers of one iteration."""

    c: Any
    prior_precision: Any  # 1/s0^2
    alpha: Any
    lr: Any
    sd_lr: Any
    momentum: Any  # of SGD
    floor: Any
    corrections: tuple[Any, ...]  # Adam's two bias corrections of step 1, of step 2, ..., of step N


def inner_corrections(before: int, steps: int) -> tuple[float, ...]:
    """Adam's bias corrections of the next `steps` steps, after `before` earlier ones."""
    return tuple(number for k in range(before + 1, before + steps + 1) for number in corrections(k))


def inner_gradient(
    d: Tensor, inverse_sd: Tensor, sd: Tensor, s1: Tensor, s2: Tensor, draws: Draws, o: InnerOptions
) -> tuple[Tensor, Tensor]:
    """The gradient (2), for a mean that has moved by d, inverse_sd = 1/sigma, and sd = sigma_t."""
    c_per_v, proximal = o.c * inverse_sd * inverse_sd, o.alpha * o.c / sd
    e = (1 + o.alpha) * c_per_v * (d - sd * draws.e1) + proximal * draws.e1 - s1  # (3)
    eps_e = (1 + o.alpha) * c_per_v * (d * draws.e1 - sd * draws.e2) + proximal * draws.e2 - s2  # (5)
    return 2 * c_per_v * e, -4 * c_per_v * (d * e - sd * eps_e)  # (2) with (4)


def inner_steps(
    mean: Tensor,
    sd: Tensor,
    first_m: Tensor,
    first_r: Tensor,
    second_m: Tensor | None,
    second_r: Tensor | None,
    prior_mean: Tensor | float,
    draws: Draws,
    o: InnerOptions,
) -> tuple[tuple[Tensor | None, ...], Terms]:
    """N inner steps: the new mean, sd and moments (SGD has no second moments).

    Also returns the slope (curvature times variance, minus 1), its square, and how many steps log sd takes to
    move by the slope.
    """
    s1 = -(draws.G + o.c * o.prior_precision * (mean - prior_mean))  # c s1 of (3); s2 likewise
    s2 = -draws.X - o.c * sd * o.prior_precision
    slope = -sd / o.c * s2 - draws.e2
    unit, inverse_sd_t = o.c * o.c, 1 / sd
    grad_per_slope = 4 * unit * inverse_sd_t * inverse_sd_t  # d loss/d rho per unit of slope
    floor_m = o.floor * 0.5 * grad_per_slope * inverse_sd_t + EPSILON * unit
    floor_r = o.floor * grad_per_slope + EPSILON * unit
    steps_needed = 1 / (o.sd_lr * grad_per_slope)
    m, inverse_sd = mean, inverse_sd_t
    for i in range(0, len(o.corrections), 2):
        grad_m, grad_r = inner_gradient(m - mean, inverse_sd, sd, s1, s2, draws, o)
        if second_m is not None and second_r is not None:  # Adam
            correction_1, correction_2 = o.corrections[i], o.corrections[i + 1]
            first_m, second_m, divisor_m = adam_moments(first_m, second_m, grad_m, correction_2, floor_m)
            first_r, second_r, divisor_r = adam_moments(first_r, second_r, grad_r, correction_2, floor_r)
            m = m - o.lr * correction_1 * first_m / divisor_m
            inverse_sd = inverse_sd * (o.sd_lr * correction_1 * first_r / divisor_r).exp()
            steps_needed = divisor_r / (o.sd_lr * grad_per_slope)
        else:
            first_m, first_r = (
                sgd_velocity(first_m, grad_m, o.momentum),
                sgd_velocity(first_r, grad_r, o.momentum),
            )
            m = m - o.lr * first_m
            inverse_sd = inverse_sd * (o.sd_lr * first_r).exp()
    return (m, 1 / inverse_sd, first_m, first_r, second_m, second_r), (
        slope,
        slope * slope,
        Largest(steps_needed),
    )
