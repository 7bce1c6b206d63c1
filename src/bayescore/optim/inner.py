"""The paper's inner loop for network weights: N descent steps on (m, log sigma) from one draw's score.

In per-datum units (everything times c = tau/N, the loss times c^2), with g = (m - theta)/v and theta, the
score s and q_t's own score g_t held fixed (methods/proximal.py, (1) and (2)):
    e = (1 + alpha) g - alpha g_t - s                                                                 (1)
    d loss/d m = 2 e/v,        d loss/d rho = -4 g e                                                  (2)
Nothing of q_t is stored: theta = m_t + sigma_t eps, so g_t = -eps/sigma_t and, after the mean has moved by d
m and sigma by a factor, g = ((m - m_t) - sigma_t eps)/v. Averages over S draws need mean eps, mean eps^2, G
and X only:
    mean e     = (1+alpha) (d - sigma_t e1)/v + alpha e1/sigma_t - s1,     d = m - m_t                (3)
    mean g e   = [ d mean e - sigma_t mean(eps e) ]/v                                                 (4)
    mean eps e = (1+alpha) (d e1 - sigma_t e2)/v + alpha e2/sigma_t - s2                              (5)
where s1 = -(G + delta (m_t - m0))/c and s2 = -X/c - sigma_t/s0^2 are the averages of s and eps s, the prior's
part by its expectation over eps, as in optim/exact.py: what the draw itself adds to it is not followed.
Adam is that of methods/descent.py; it divides by sqrt(second) + floor * r, where r is the size that (2) has
for e = g_t, 2 c^2/sigma_t^3 and 4 c^2/sigma_t^2 (methods/proximal.py, (3), says why; floor = 0 is plain
Adam).
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from bayescore.methods.descent import B1, B2
from bayescore.optim.fused import of_one_draw

__all__ = ["InnerOptions", "inner_single", "inner_steps"]


class InnerOptions(NamedTuple):
    """Numbers of one iteration; those that change with it as zero-dimensional tensors."""

    c: Tensor
    prior_precision: Tensor
    alpha: Tensor
    lr: Tensor
    sd_lr: Tensor
    momentum: Tensor
    floor: Tensor
    fades: tuple[Tensor, ...]  # 1/(1 - B1^k) and 1/(1 - B2^k) of each of the N steps, one after another


def inner_steps(
    mean: Tensor,
    sd: Tensor,
    first_m: Tensor,
    first_r: Tensor,
    second_m: Tensor | None,
    second_r: Tensor | None,
    prior_mean: Tensor,
    G: Tensor,
    X: Tensor,
    e1: Tensor,
    e2: Tensor,
    o: InnerOptions,
) -> tuple[Tensor, Tensor, Tensor]:
    """N inner steps on mean and sd and their moments (SGD has no second ones).

    The terms are the slope, its square, and one over the rate at which log sd answers to it.
    """
    wide, per = sd, 1 / sd
    s1 = -(G + o.c * o.prior_precision * (mean - prior_mean))  # c s, and so for the rest
    s2 = -X - o.c * wide * o.prior_precision
    slope = -wide / o.c * s2 - e2
    unit = o.c * o.c
    steep = 4 * unit * per * per  # d loss/d rho per unit of slope
    floor_m = o.floor * 0.5 * steep * per + 1e-8 * unit
    floor_r = o.floor * steep + 1e-8 * unit
    a_m, a_r, b_m, b_r, slow = first_m, first_r, second_m, second_r, 1 / (o.sd_lr * steep)
    m, tight = mean, per  # tight = 1/sigma
    for fade1, fade2 in zip(o.fades[::2], o.fades[1::2], strict=True):
        d, q = m - mean, o.c * tight * tight
        e = (1 + o.alpha) * q * (d - wide * e1) + o.alpha * o.c * per * e1 - s1  # (3)
        xe = (1 + o.alpha) * q * (d * e1 - wide * e2) + o.alpha * o.c * per * e2 - s2  # (5)
        grad_m, grad_r = 2 * q * e, -4 * q * (d * e - wide * xe)  # (2) with (4)
        if b_m is not None and b_r is not None:  # Adam
            a_m = B1 * a_m + (1 - B1) * grad_m
            a_r = B1 * a_r + (1 - B1) * grad_r
            b_m = B2 * b_m + (1 - B2) * grad_m * grad_m
            b_r = B2 * b_r + (1 - B2) * grad_r * grad_r
            size = ((b_r * fade2).sqrt() + floor_r) / o.sd_lr
            m = m - o.lr * fade1 * a_m / ((b_m * fade2).sqrt() + floor_m)
            tight = tight * (fade1 * a_r / size).exp()
            slow = size / steep
        else:
            a_m = o.momentum * a_m + grad_m
            a_r = o.momentum * a_r + grad_r
            m = m - o.lr * a_m
            tight = tight * (o.sd_lr * a_r).exp()
    mean.copy_(m)
    sd.copy_(1 / tight)
    for kept, new in ((first_m, a_m), (first_r, a_r), (second_m, b_m), (second_r, b_r)):
        if kept is not None and new is not None:
            kept.copy_(new)
    return slope, slope * slope, slow


inner_single = of_one_draw(inner_steps)
