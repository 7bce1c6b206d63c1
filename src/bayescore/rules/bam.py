"""Batch and match for a diagonal Gaussian: as published, and in a paired form without mini-batch bias.

Per weight, from S >= 2 draws z_i with scores g_i, their means zbar, gbar and variances Var (divided by S):
    a s^2 + s/lam - b = 0,  a = Var(g) + gbar^2/(1+lam),  b = Var(z) + s_t/lam + (mu_t - zbar)^2/(1+lam)  (1)
    mu = mu_t/(1+lam) + lam/(1+lam) (s gbar + zbar)                                                       (2)
This is BaM as published (Cai et al. 2024). Mini-batches bias it in two ways. gbar^2 is mostly the noise of
the batch, kappa = N/(batch tau) times what it should be. And Var(g_i) on one batch is sum_j H_ij^2 s_j with
the batch's Hessian H_B, whose mean is that with H plus the variance of H_B over batches. Both make s too
small.

The paired form has neither bias. Its draws are antithetic pairs, which see the same batch within a step, and
every noise is used in two successive steps, on two batches B and B'. Half the difference of a pair's scores
is H sigma eps, so with
    d = sum over pairs (g_+ - g_-)/2,     e = sum over pairs eps                                          (3)
    a = d_B d_B'/pairs,                   b = e^2/pairs + s_t/lam                                         (4)
the batch noise that both scores of a pair share cancels in (3), and because the two batches are independent,
E a_i is sum_j H_ij^2 s_j with H alone (batches drawn without replacement are anticorrelated by B/(N - B),
which makes s slightly too wide). The mean moves in every step, by (2) with zbar = 0; the variance in every
second step, by (1) with (4). The mean may move faster than the variance, which therefore has its own lam,
    1/lam = damping + t + 10 sqrt(V),                                                                     (5)
where t is the number of pairs of steps and V the tensor's running mean square of (a - e^2/pairs)/2.

Without mini-batches both forms have the fixed point s_i sum_j H_ij^2 s_j = 1, the optimum of the Fisher
divergence: it equals the ELBO's optimum 1/H_ii where weights are weakly correlated and is narrower elsewhere.
In per-datum units, c = tau/N:
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

    If noise makes a so negative that the roots are complex, the double root at discriminant zero. The formula
    avoids cancellation.
    """
    return 2 * b / (1 / lam + (1 / lam**2 + 4 * a * b).clamp_min(0).sqrt())


def bam_step(
    mean: Tensor, sd: Tensor, zbar: Tensor, z2: Tensor, gbar: Tensor, g2: Tensor, lam: Tensor | float
) -> tuple[Tensor, Tensor]:
    """(1) and (2) in whitened coordinates: the new mean and sd.

    zbar and z2 are the mean and variance of eps, gbar and g2 those of sigma * score; the root is s/s_t.
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
    """The slope (a - e^2/pairs)/2, whose mean is zero once the variance is learned, and its square."""
    slope = (half * _whitened(sd, d, e, o) - e.square()) / (2 * o.pairs)
    return slope, slope.square()


def paired_lam(statistics: Tensor, damping: float) -> Tensor:
    """lam of (5), one number per tensor.

    Adds to `statistics` the share of the initial precision that a step with this lam forgets.
    """
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
    """The new mean and sd, and the whitened d, which the next step multiplies with its own in (4).

    G and z are means over all draws of per-datum gradients and noise; d and e are the sums (3) of the same.
    """
    gbar = -sd / o.c * (G + o.c * o.prior_precision * (mean - prior_mean + sd * z))
    new_half = _whitened(sd, d, e, o)
    moves = o.lam > 0
    lam = torch.where(moves, o.lam, 1.0)
    root = bam_root(half * new_half / o.pairs, e.square() / o.pairs + 1 / lam, lam)  # (4)
    x = torch.where(moves, root, 1.0)
    new_mean = mean + o.lr / (1 + o.lr) * sd * (x * gbar + z)  # (2)
    return (new_mean, torch.clamp(sd * x.sqrt(), max=o.prior_sd), new_half), None


def _whitened(sd: Tensor, d: Tensor, e: Tensor, o: PairedOptions) -> Tensor:
    """d of (3), prior included, times sigma/c."""
    return sd / o.c * (d + o.c * o.prior_precision * sd * e)
