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
from bayescore.optim.exact import MEMORY

__all__ = ["InnerOptions", "inner_steps"]


class InnerOptions(NamedTuple):
    """Numbers of one iteration."""

    c: float
    prior_precision: float
    alpha: float
    steps: int
    adam: bool
    lr: float
    sd_rate: float
    momentum: float
    floor: float
    t: int  # number of this iteration, from 1


def inner_steps(
    mean: Tensor,
    sd: Tensor,
    first: Tensor,
    second: Tensor,
    moments: Tensor,
    prior_mean: Tensor,
    G: Tensor,
    X: Tensor,
    e1: Tensor,
    e2: Tensor,
    o: InnerOptions,
) -> None:
    """N inner steps, in place; first and second hold the moments of m and rho as (2, *shape)."""
    start, wide = mean.clone(), sd.clone()
    s1 = -(G + o.c * o.prior_precision * (start - prior_mean))  # c s, and so for the rest
    s2 = -X - o.c * wide * o.prior_precision
    slope = -wide / o.c * s2 - e2
    moments.mul_(MEMORY).add_(torch.stack([slope.mean(), slope.square().mean()]), alpha=1 - MEMORY)
    log_sd = sd.log()
    tiny = 1e-8 * o.c * o.c
    floor = o.floor * o.c * o.c * torch.stack([2 * wide**-3, 4 * wide**-2]) + tiny
    for n in range(o.steps):
        v, d = sd.square(), mean - start
        q = o.c / v
        e = (1 + o.alpha) * q * (d - wide * e1) + o.alpha * o.c * e1 / wide - s1  # (3)
        xe = (1 + o.alpha) * q * (d * e1 - wide * e2) + o.alpha * o.c * e2 / wide - s2  # (5)
        grad = torch.stack([2 * q * e, -4 * q * (d * e - wide * xe)])  # (2) with (4)
        k = (o.t - 1) * o.steps + n + 1
        if o.adam:
            first.lerp_(grad, 1 - B1)
            second.mul_(B2).addcmul_(grad, grad, value=1 - B2)
            scale = (second / (1 - B2**k)).sqrt_().add_(floor)
            move = first / scale / (1 - B1**k)
        else:
            first.mul_(o.momentum).add_(grad)
            move = first
        mean.sub_(move[0], alpha=o.lr)
        log_sd.sub_(move[1], alpha=o.lr * (o.sd_rate if o.adam else 1.0))
        torch.exp(log_sd, out=sd)
