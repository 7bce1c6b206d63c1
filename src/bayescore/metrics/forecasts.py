"""Metrics of forecasts that are mixtures: S draws of the network, each with Gaussian noise around it.

For one value y, forecasts o_1, ..., o_S and a noise of standard deviation sd (Phi and phi are the normal
distribution function and density):
    p(y) = (1/S) sum_s N(y; o_s, sd^2),   NLL = -log p(y)                                                  (1)
    CRPS = (1/S) sum_s A(y - o_s, sd^2) - 1/(2 S^2) sum_{s,t} A(o_s - o_t, 2 sd^2)                         (2)
    A(m, v) = 2 sqrt(v) phi(m/sqrt(v)) + m (2 Phi(m/sqrt(v)) - 1),   A(m, 0) = |m|                         (3)
(2) is Grimit et al. (2006). The sd that maximises the mean of log p over values is the fixed point of
    sd^2 <- mean of sum_s r_s (y - o_s)^2,   r_s = N(y; o_s, sd^2) / sum_t N(y; o_t, sd^2)                 (4)
which is expectation maximisation: the likelihood rises with every step. Every mean is over all values:
windows, steps and columns; the errors are of the mean of the draws.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["fit_noise", "forecast_mae", "forecast_mse", "interval_scores", "mixture_crps", "mixture_nll"]

LEAST_NOISE = 1e-4  # of a column that never moves, in the units of the values
EM_STEPS, TOLERANCE = 100, 1e-4


def forecast_mse(outputs: Tensor, y: Tensor) -> float:
    """Mean squared error of the mean of draws (S, ...) for values y (...)."""
    _check(outputs, y)
    return float((outputs.mean(0) - y).square().mean())


def forecast_mae(outputs: Tensor, y: Tensor) -> float:
    """Mean absolute error of the mean of draws (S, ...) for values y (...)."""
    _check(outputs, y)
    return float((outputs.mean(0) - y).abs().mean())


def mixture_nll(outputs: Tensor, y: Tensor, sd: Tensor | float) -> Tensor:
    """(1) for every value, (...); `sd` is a number or broadcasts to y.

    >>> round(float(mixture_nll(torch.zeros(5, 1), torch.zeros(1), 1.0)), 4)  # log(2 pi)/2
    0.9189
    """
    _check(outputs, y)
    noise = torch.as_tensor(sd, dtype=y.dtype, device=y.device)
    total = torch.full_like(y, -math.inf)
    for row in outputs:  # one draw at a time: S copies of all windows need not fit into memory
        total = torch.logaddexp(total, -0.5 * ((y - row) / noise).square())
    return math.log(len(outputs)) + noise.log() + 0.5 * math.log(2 * math.pi) - total


def mixture_crps(outputs: Tensor, y: Tensor, sd: Tensor | float) -> Tensor:
    """(2) for every value, (...); `sd` is a number or broadcasts to y or to the draws, and may be zero.

    A draw s with a noise sd_s of its own has sd_s^2 + sd_t^2 in the place of 2 sd^2.
    """
    _check(outputs, y)
    noise = torch.as_tensor(sd, dtype=y.dtype, device=y.device).expand_as(outputs)
    count = len(outputs)
    near, far = torch.zeros_like(y), torch.zeros_like(y)
    for i, row in enumerate(outputs):
        near += _expected_distance(y - row, noise[i])
        for other, its in zip(outputs[i + 1 :], noise[i + 1 :], strict=True):
            far += 2 * _expected_distance(row - other, torch.hypot(noise[i], its))  # (s, t) and (t, s)
        far += _expected_distance(torch.zeros_like(y), math.sqrt(2) * noise[i])
    return near / count - far / (2 * count**2)


def _expected_distance(m: Tensor, sd: Tensor) -> Tensor:
    """(3): E|X| for X ~ N(m, sd^2)."""
    safe = torch.where(sd > 0, sd, 1.0)
    z = m / safe
    density = (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
    found = 2 * safe * density + m * torch.erf(z * math.sqrt(0.5))  # 2 Phi(z) - 1 = erf(z/sqrt 2)
    return torch.where(sd > 0, found, m.abs())


def fit_noise(
    outputs: Tensor, y: Tensor, *, by_step: bool = False, by_column: bool = False, scale: Tensor | None = None
) -> Tensor:
    """The noise (4) that makes held-out values most probable.

    Arguments:
        outputs: draws (S, n, H, C) of forecasts for n windows.
        y: what came, (n, H, C).
        by_step: one noise for every step ahead instead of one for all.
        by_column: one noise for every column.
        scale: (n, 1, C) or the like: the noise is in units of it.

    Returns the standard deviations, (1 or H, 1 or C).
    """
    _check(outputs, y)
    if y.dim() != 3:
        raise ValueError(f"values must have the shape (windows, steps, columns); got {tuple(y.shape)}")
    unit = torch.ones((), dtype=y.dtype, device=y.device) if scale is None else scale
    dims = [0] + ([] if by_step else [1]) + ([] if by_column else [2])
    errors = torch.stack([((y - row) / unit).square() for row in outputs])  # (S, n, H, C)

    def mean(values: Tensor) -> Tensor:
        return values.mean(dims, keepdim=True).clamp_min(LEAST_NOISE**2)

    variance = mean(errors.mean(0))
    for _ in range(EM_STEPS if len(errors) > 1 else 0):
        weights = (-0.5 * errors / variance).softmax(0)
        before, variance = variance, mean((weights * errors).sum(0))  # (4)
        if bool(((variance - before).abs() <= TOLERANCE * before).all()):
            break
    return variance.sqrt()[0]


def interval_scores(low: Tensor, high: Tensor, y: Tensor) -> tuple[float, float]:
    """The share of values inside their intervals, and the mean width of the intervals."""
    inside = (y >= low) & (y <= high)
    return float(inside.float().mean()), float((high - low).mean())


def _check(outputs: Tensor, y: Tensor) -> None:
    if outputs.shape[1:] != y.shape or not len(outputs):
        raise ValueError(
            f"outputs must be draws of the values, (draws, *{tuple(y.shape)}); got {tuple(outputs.shape)}"
        )
