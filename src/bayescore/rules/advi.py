"""ADVI for a diagonal Gaussian: one step of Adam on the mean and the log standard deviation.

In per-datum units (optim/base.py), c = tau/N, delta = c/s0^2, with the KL to the prior in closed form:
    -c d ELBO/d m   = G + delta (m - m0)                                                               (1)
    -  d ELBO/d rho = (sigma/c) X + sigma^2/s0^2 - 1,      rho = log sigma                             (2)
(1) has the units of the loss gradient; (2) has no units. Each has its own pair of Adam moments.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from bayescore.rules.adam import adam_moments
from bayescore.rules.draws import Draws
from bayescore.rules.terms import Largest, Terms

__all__ = ["ADVIOptions", "advi_step"]


class ADVIOptions(NamedTuple):
    """Numbers of one step."""

    c: Any
    prior_precision: Any  # 1/s0^2
    lr: Any
    sd_lr: Any
    first_correction: Any  # Adam's bias correction of the first moment
    second_correction: Any  # and of the second


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
) -> tuple[tuple[Tensor, ...], Terms]:
    """One step: the new mean, sd and moments.

    Also returns the slope (2), its square, and how many steps log sd takes to move by the slope.
    """
    slope = sd / o.c * draws.X + sd * sd * o.prior_precision - 1  # (2)
    gradient = draws.G + o.c * o.prior_precision * (mean - prior_mean)  # (1)
    first_m, second_m, divisor_m = adam_moments(first_m, second_m, gradient, o.second_correction)
    first_r, second_r, divisor_r = adam_moments(first_r, second_r, slope, o.second_correction)
    mean = mean - o.lr * o.first_correction * first_m / divisor_m
    sd = sd * (-o.sd_lr * o.first_correction * first_r / divisor_r).exp()
    return (mean, sd, first_m, first_r, second_m, second_r), (
        slope,
        slope * slope,
        Largest(divisor_r / o.sd_lr),
    )
