"""The inner loop of Algorithm 1 for a diagonal Gaussian: N descent steps on (m, log sigma) from fixed draws.

With g = (m - theta)/v, and theta, the score s and q_t's own score g_t held fixed, the loss is
    alpha |g - g_t|^2 + |g - s|^2,        e = (1 + alpha) g - alpha g_t - s                            (1)
    d loss/d m = 2 e/v,                   d loss/d rho = -4 g e,       rho = log sigma                 (2)
Nothing of q_t is stored: theta = m_t + sigma_t eps, so g_t = -eps/sigma_t and, after the mean has moved by
d = m - m_t and sigma by a factor, g = (d - sigma_t eps)/v. Averages over S draws need G, X, e1 and e2 only:
    mean e     = (1+alpha) (d - sigma_t e1)/v + alpha e1/sigma_t - s1                                  (3)
    mean g e   = [ d mean e - sigma_t mean(eps e) ]/v                                                  (4)
    mean eps e = (1+alpha) (d e1 - sigma_t e2)/v + alpha e2/sigma_t - s2                               (5)
where s1 = -(G + delta (m_t - m0))/c and s2 = -X/c - sigma_t/s0^2 are the averages of s and eps s, the prior's
part by its expectation over eps: what the draw itself adds to it is not followed. Everything is computed in
per-datum units, that is times c = tau/N, and the loss times c^2.

Each inner step is one of Adam, or of SGD with momentum (rules/adam.py), on m and on rho. Adam divides by
sqrt(second) + floor r, where r is the size that (2) has for e = g_t, 2 c^2/sigma_t^3 and 4 c^2/sigma_t^2: a
residual much below the score itself no longer counts as signal, and a converged fit stays converged.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from bayescore.rules.adam import EPSILON, adam_moments, corrections, sgd_velocity
from bayescore.rules.draws import Draws

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
    corrections: tuple[Any, ...]  # Adam's two of each of the N steps, one after another


def inner_corrections(before: int, steps: int) -> tuple[float, ...]:
    """Adam's corrections of so many steps, after those before."""
    return tuple(number for k in range(before + 1, before + steps + 1) for number in corrections(k))


def inner_gradient(
    d: Tensor, tight: Tensor, sd: Tensor, s1: Tensor, s2: Tensor, draws: Draws, o: InnerOptions
) -> tuple[Tensor, Tensor]:
    """(2), with d how far the mean has moved, tight = 1/sigma now, and sd = sigma_t."""
    q, old = o.c * tight * tight, o.alpha * o.c / sd
    e = (1 + o.alpha) * q * (d - sd * draws.e1) + old * draws.e1 - s1  # (3)
    eps_e = (1 + o.alpha) * q * (d * draws.e1 - sd * draws.e2) + old * draws.e2 - s2  # (5)
    return 2 * q * e, -4 * q * (d * e - sd * eps_e)  # (2) with (4)


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
) -> tuple[tuple[Tensor | None, ...], tuple[Tensor, Tensor, Tensor]]:
    """N inner steps: the new mean, sd and moments (SGD has no second ones).

    And the slope (curvature times variance, minus 1), its square, and one over the rate at which log sd
    answers to it.
    """
    s1 = -(draws.G + o.c * o.prior_precision * (mean - prior_mean))  # c s1, and so for the rest
    s2 = -draws.X - o.c * sd * o.prior_precision
    slope = -sd / o.c * s2 - draws.e2
    unit, per = o.c * o.c, 1 / sd
    steep = 4 * unit * per * per  # d loss/d rho per unit of slope
    floor_m, floor_r = o.floor * 0.5 * steep * per + EPSILON * unit, o.floor * steep + EPSILON * unit
    slow = 1 / (o.sd_lr * steep)
    m, tight = mean, per
    for i in range(0, len(o.corrections), 2):
        grad_m, grad_r = inner_gradient(m - mean, tight, sd, s1, s2, draws, o)
        if second_m is not None and second_r is not None:  # Adam
            fade, correction = o.corrections[i], o.corrections[i + 1]
            first_m, second_m, size_m = adam_moments(first_m, second_m, grad_m, correction, floor_m)
            first_r, second_r, size_r = adam_moments(first_r, second_r, grad_r, correction, floor_r)
            m = m - o.lr * fade * first_m / size_m
            tight = tight * (o.sd_lr * fade * first_r / size_r).exp()
            slow = size_r / (o.sd_lr * steep)
        else:
            first_m, first_r = (
                sgd_velocity(first_m, grad_m, o.momentum),
                sgd_velocity(first_r, grad_r, o.momentum),
            )
            m = m - o.lr * first_m
            tight = tight * (o.sd_lr * first_r).exp()
    return (m, 1 / tight, first_m, first_r, second_m, second_r), (slope, slope * slope, slow)
