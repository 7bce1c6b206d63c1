"""ADVI for a diagonal Gaussian: one step of Adam on the mean and the log standard deviation.

In per-datum units (optim/base.py), c = tau/N, delta = c/s0^2, with the KL to the prior in closed form:
    -c d ELBO/d m   = G + delta (m - m0)                                                               (1)
    -  d ELBO/d rho = (sigma/c) X + sigma^2/s0^2 - 1,      rho = log sigma                             (2)
(1) is a gradient as an engineer knows it; (2) has no units. Each has Adam's moments of its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from bayescore.rules.adam import adam_moments
from bayescore.rules.draws import Draws

__all__ = ["ADVIOptions", "advi_step"]


class ADVIOptions(NamedTuple):
    """Numbers of one step."""

    c: Any
    prior_precision: Any  # 1/s0^2
    lr: Any
    sd_lr: Any
    fade: Any  # the first of Adam's corrections
    correction: Any  # the second


def advi_step(
    mean: Tensor,
    sd: Tensor,
    first_m: Tensor,
    first_r: Tensor,
    second_m: Tensor,
    second_r: Tensor,
    prior_mean: Tensor | float,
    draws: Draws,
    o: ADVIOptions,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, Tensor, Tensor]]:
    """One step: the new mean, sd and moments.

    And the slope (2), its square, and one over the rate at which log sd answers to it.
    """
    slope = sd / o.c * draws.X + sd * sd * o.prior_precision - 1  # (2)
    pull = draws.G + o.c * o.prior_precision * (mean - prior_mean)  # (1)
    first_m, second_m, size_m = adam_moments(first_m, second_m, pull, o.correction)
    first_r, second_r, size_r = adam_moments(first_r, second_r, slope, o.correction)
    mean = mean - o.lr * o.fade * first_m / size_m
    sd = sd * (-o.sd_lr * o.fade * first_r / size_r).exp()
    return (mean, sd, first_m, first_r, second_m, second_r), (slope, slope * slope, size_r / o.sd_lr)
