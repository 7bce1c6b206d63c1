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
where s1 = -(G + delta (m_t - m0))/c and s2 = -X/c - sigma_t/s0^2 are the averages of s and eps s.
Adam is that of methods/descent.py; it divides by sqrt(second) + floor * r, where r is the size that (2) has
for e = g_t, 2 c^2/sigma_t^3 and 4 c^2/sigma_t^2 (methods/proximal.py, (3), says why; floor = 0 is plain
Adam).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
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
    k: Tensor  # inner steps before this iteration
    steps: int
    adam: bool


def inner_steps(
    mean: Tensor,
    sd: Tensor,
    first_m: Tensor,
    first_r: Tensor,
    second_m: Tensor,
    second_r: Tensor,
    prior_mean: Tensor,
    G: Tensor,
    X: Tensor,
    e1: Tensor,
    e2: Tensor,
    o: InnerOptions,
) -> Tensor:
    """N inner steps on mean and sd and their moments; returns the sums of the slope, its square, and one
    over the rate at which log sd answers to it."""
    start, wide = mean.clone(), sd.clone()
    s1 = -(G + o.c * o.prior_precision * (start - prior_mean))  # c s, and so for the rest
    s2 = -X - o.c * wide * o.prior_precision
    slope = -wide / o.c * s2 - e2
    log_sd = sd.log()
    unit = o.c * o.c
    floor_m = o.floor * unit * 2 * wide**-3 + 1e-8 * unit
    steep = 4 * unit * wide**-2  # d loss/d rho per unit of slope
    floor_r = o.floor * steep + 1e-8 * unit
    rate = o.sd_lr * steep
    for n in range(o.steps):
        v, d = sd.square(), mean - start
        q = o.c / v
        e = (1 + o.alpha) * q * (d - wide * e1) + o.alpha * o.c * e1 / wide - s1  # (3)
        xe = (1 + o.alpha) * q * (d * e1 - wide * e2) + o.alpha * o.c * e2 / wide - s2  # (5)
        grad_m, grad_r = 2 * q * e, -4 * q * (d * e - wide * xe)  # (2) with (4)
        if o.adam:
            fade1, fade2 = 1 - B1 ** (o.k + n + 1), 1 - B2 ** (o.k + n + 1)
            first_m.lerp_(grad_m, 1 - B1)
            first_r.lerp_(grad_r, 1 - B1)
            second_m.mul_(B2).add_((1 - B2) * grad_m * grad_m)
            second_r.mul_(B2).add_((1 - B2) * grad_r * grad_r)
            mean.sub_(o.lr / fade1 * first_m / ((second_m / fade2).sqrt() + floor_m))
            each = o.sd_lr / ((second_r / fade2).sqrt() + floor_r)
            log_sd = log_sd - each / fade1 * first_r
            rate = each * steep
        else:
            first_m.mul_(o.momentum).add_(grad_m)
            first_r.mul_(o.momentum).add_(grad_r)
            mean.sub_(o.lr * first_m)
            log_sd = log_sd - o.sd_lr * first_r
        sd.copy_(log_sd.exp())
    return torch.stack([slope.sum(), slope.square().sum(), (1 / rate).sum()])


inner_single = of_one_draw(inner_steps)
