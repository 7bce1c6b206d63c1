"""The inner loop of Algorithm 1, for any family: N descent steps on the proximal loss from fixed draws.

With g = grad log q_lambda, draws theta_i ~ q_t and their scores s_i, all but lambda held fixed:
    loss(lambda) = (1/S) sum_i  alpha |g(theta_i) - g_t(theta_i)|^2 + |g(theta_i) - s_i|^2             (1)
    d loss / d lambda = J^T e,   e_i = (2/S) ((1 + alpha) g(theta_i) - alpha g_t(theta_i) - s_i)       (2)
J^T is the pullback of the score in lambda (families/matching.py). At the first step g = g_t: the gradient is
then (2/S) J^T (g_t - s), unbiased for noisy scores, and alpha plays no part.

Where the steps are Adam's, a floor under its divisor keeps a converged fit converged: a score residual much
below a share kappa of the score itself no longer counts as signal,
    floor = kappa rms(J^T 2 g_t), over the last hundred iterations or so                               (3)
A diagonal Gaussian in the Euclidean norm has the expectation of it instead (rules/inner.py).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

from bayescore.families.base import Family
from bayescore.families.matching import Matching

__all__ = ["adam_floor", "run_inner_loop"]

SCALE_MEMORY = 0.99  # of the running mean square in (3)


def run_inner_loop(
    q: Family,
    flat: Tensor,
    theta: Tensor,
    s: Tensor,
    alpha: float,
    N: int,
    descend: Callable[[int, Tensor], object],
    prepare: Callable[[Matching, Tensor], None] | None = None,
) -> Family:
    """N steps from the parameters `flat` (F, P), which `descend` moves in place.

    Arguments:
        q: the family that the parameters belong to.
        theta, s: draws and their scores (F, S, D).
        descend: called as descend(n, gradient) with the gradient (2) of step n; moves `flat`.
        prepare: called as prepare(matching, g_t) before the first step.
    """
    moving = q.from_flat(flat)  # views: q_lambda moves with lambda
    matching = moving.matching(theta)
    g_t, weight = matching.score(), 2.0 / theta.shape[-2]
    if prepare is not None:
        prepare(matching, g_t)
    # e = k g + c, where k and c are constant over the loop
    k, c = weight * (1 + alpha), (alpha * g_t + s).mul_(-weight)
    # The loop makes thousands of short operations: without autograd's bookkeeping they cost a third less.
    with torch.inference_mode() if moving.closed_form else nullcontext():
        for n in range(N):
            if n:
                matching.refresh()
            descend(n, matching.gradient(k, c))  # (2)
    return moving


def adam_floor(
    matching: Matching, g_t: Tensor, scale: Tensor, kappa: float, step: int
) -> tuple[Tensor, Tensor]:
    """(3): the new running mean square (F, P), and the floor."""
    reference = matching.gradient(2.0 / g_t.shape[-2], torch.zeros_like(g_t))
    scale = (scale * SCALE_MEMORY).addcmul_(reference, reference, value=1 - SCALE_MEMORY)
    floor = (scale / (1 - SCALE_MEMORY ** (step + 1))).sqrt_()
    return scale, floor.mul_(kappa).add_(1e-12)
