"""Batch and match for a diagonal Gaussian: as published, and freed of the bias that mini-batches bring.

Per weight, from S >= 2 draws z_i with scores g_i, their means zbar, gbar and variances Var (divided by S):
    a s^2 + s/lam - b = 0,  a = Var(g) + gbar^2/(1+lam),  b = Var(z) + s_t/lam + (mu_t - zbar)^2/(1+lam)  (1)
    mu = mu_t/(1+lam) + lam/(1+lam) (s gbar + zbar)                                                       (2)
That is BaM as published (Cai et al. 2024). Mini-batches bias it twice. gbar^2 is mostly the batch's noise,
kappa = N/(batch tau) times what it should be; and Var(g) on one batch is a row of squares of the batch's
Hessian H_B, whose mean is that of H plus the variance of H_B over batches. Both make s too small.

The paired form has neither. Draws are antithetic pairs, on the same batch within a step, and every noise is
used in two successive steps, on two batches B and B'. With H sigma eps = half the difference of a pair's
scores,
    d = sum over pairs (g_+ - g_-)/2,     e = sum over pairs eps                                          (3)
    a = d_B d_B'/pairs,                   b = e^2/pairs + s_t/lam                                         (4)
What a batch adds to both scores of a pair cancels in (3), and two independent batches make E a the row of
squares of H alone (drawn without replacement they are anticorrelated by B/(N - B), which makes s a little
wider). (2) is made in every step, with zbar = 0; (1) with (4) in every second one. The mean may go faster
than the variance, which therefore has a lam of its own,
    1/lam = damping + t + 10 sqrt(V),                                                                     (5)
t the number of pairs of steps, V the tensor's running mean square of (a - e^2/pairs)/2.

Without mini-batches both fix s_i sum_j H_ij^2 s_j = 1, the Fisher divergence's optimum, which is the ELBO's
1/H_ii where correlations between weights are weak and narrower elsewhere. In per-datum units, c = tau/N:
g = -(1/c) (grad l + delta (theta - m0)).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayescore.rules.curvature import weight_of

__all__ = ["PairedOptions", "bam_root", "bam_step", "paired_lam", "paired_slope", "paired_step"]


def bam_root(a: Tensor, b: Tensor, lam: Tensor | float) -> Tensor:
    """The positive root x of a x^2 + x/lam - b = 0.

    Where noise makes a so negative that there is none, the point where two become one. Written without
    cancellation.
    """
    return 2 * b / (1 / lam + (1 / lam**2 + 4 * a * b).clamp_min(0).sqrt())


def bam_step(
    mean: Tensor, sd: Tensor, zbar: Tensor, z2: Tensor, gbar: Tensor, g2: Tensor, lam: Tensor | float
) -> tuple[Tensor, Tensor]:
    """(1) and (2) with everything whitened: the new mean and sd.

    zbar and z2 are mean and variance of eps, gbar and g2 those of sigma * score, and the root is s/s_t.
    """
    b = z2 + 1 / lam + zbar.square() / (1 + lam)
    x = bam_root(g2 + gbar.square() / (1 + lam), b, lam)
    return mean + sd * lam / (1 + lam) * (x * gbar + zbar), sd * x.sqrt()


class PairedOptions(NamedTuple):
    """Numbers of one step of the paired form."""

    c: Any
    prior_precision: Any  # 1/s0^2
    prior_sd: Any
    lr: Any  # lam of (2)
    pairs: Any
    lam: Any  # (5) of a tensor; 0 in the first of two steps with the same noise


def paired_slope(sd: Tensor, half: Tensor, d: Tensor, e: Tensor, o: PairedOptions) -> tuple[Tensor, Tensor]:
    """The slope (a - e^2/pairs)/2, which is zero in the mean when learned, and its square."""
    slope = (half * _whitened(sd, d, e, o) - e.square()) / (2 * o.pairs)
    return slope, slope.square()


def paired_lam(statistics: Tensor, damping: float) -> Tensor:
    """(5), one number per tensor; counts what the step with it will forget."""
    t, V = statistics[:, 3], statistics[:, 1] / weight_of(statistics).to(statistics)
    lam = 1 / (damping + t + 10 * V.sqrt())
    statistics[:, 2] += 2 * lam / (1 + 2 * lam)
    return lam


def paired_step(
    mean: Tensor,
    sd: Tensor,
    half: Tensor,
    prior_mean: Tensor | float,
    G: Tensor,
    z: Tensor,
    d: Tensor,
    e: Tensor,
    o: PairedOptions,
) -> tuple[tuple[Tensor, Tensor, Tensor], None]:
    """The new mean and sd, and the whitened d, which the next step pairs with its own.

    G and z are means over all draws, d and e the sums (3) of per-datum gradients and noise.
    """
    gbar = -sd / o.c * (G + o.c * o.prior_precision * (mean - prior_mean + sd * z))
    now = _whitened(sd, d, e, o)
    moves = o.lam > 0
    lam = torch.where(moves, o.lam, 1.0)
    root = bam_root(half * now / o.pairs, e.square() / o.pairs + 1 / lam, lam)  # (4)
    x = torch.where(moves, root, 1.0)
    moved = mean + o.lr / (1 + o.lr) * sd * (x * gbar + z)  # (2)
    return (moved, torch.clamp(sd * x.sqrt(), max=o.prior_sd), now), None


def _whitened(sd: Tensor, d: Tensor, e: Tensor, o: PairedOptions) -> Tensor:
    return sd / o.c * (d + o.c * o.prior_precision * sd * e)
