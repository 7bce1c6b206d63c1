"""Pareto-smoothed importance sampling: the k-hat diagnostic (Vehtari et al., JMLR 2024).

The largest M importance ratios r_i = Phi(x_i)/q(x_i), x_i ~ q, are fitted by a generalised Pareto law. Its
shape k tells how far q is from the target: below 0.5 good, up to 0.7 usable; above 0.7 neither importance
sampling nor q itself can be trusted.
    M = min(n/5, 3 sqrt n)                                                                  (1)
    k from the profile posterior of Zhang & Stephens (2009)                                 (2)
    k <- (M k + 5) / (M + 10)               a weak prior around 0.5, worth ten ratios       (3)
    standard error about (1 + k)/sqrt(M)    asymptotic, of the maximum-likelihood shape     (4)
For the mean of h(x) over weighted draws the tail of r_i |h(x_i)| matters as well.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayescore.metrics.estimate import Estimate

__all__ = ["pareto_khat", "smoothed_log_weights", "tail_indices"]


def _tail_size(n: int) -> int:
    return math.ceil(min(n / 5, 3 * math.sqrt(n)))  # (1)


def _fit_tail(excess: Tensor) -> tuple[Tensor, Tensor]:
    """Shape k and scale of generalised Pareto laws from sorted positive excesses (..., n), (2)."""
    n = excess.shape[-1]
    grid = 30 + int(math.sqrt(n))
    steps = torch.arange(1, grid + 1, dtype=excess.dtype)
    quartile = excess[..., int(n / 4 + 0.5) - 1, None]
    b = 1 / excess[..., -1:] + (1 - (grid / (steps - 0.5)).sqrt()) / (3 * quartile)  # (..., grid)
    k = torch.log1p(-b.unsqueeze(-1) * excess.unsqueeze(-2)).mean(-1)
    profile = n * (torch.log(-b / k) - k - 1)
    b_hat = (profile.softmax(-1) * b).sum(-1, keepdim=True)
    k_hat = torch.log1p(-b_hat * excess).mean(-1)
    return k_hat, -k_hat / b_hat.squeeze(-1)


def _shrunk(k: Tensor, M: int) -> Tensor:
    """(3); infinite where the tail is too steep to be fitted."""
    return torch.where(k.isfinite(), (M * k + 5) / (M + 10), torch.inf)


def pareto_khat(log_ratios: Tensor) -> Estimate:
    """k-hat of log importance ratios (n,), with its standard error; infinite if a ratio is not finite."""
    return smoothed_log_weights(log_ratios)[1]


def smoothed_log_weights(log_ratios: Tensor) -> tuple[Tensor, Estimate]:
    """Normalised log weights (n,) with the tail replaced by Pareto quantiles, and k-hat."""
    if log_ratios.dim() != 1 or len(log_ratios) < 25:
        raise ValueError(
            f"k-hat needs at least 25 log ratios in one dimension; got {tuple(log_ratios.shape)}"
        )
    lw = log_ratios.detach().to("cpu", torch.float64)
    if not torch.isfinite(lw).all():
        return lw.log_softmax(-1), Estimate(math.inf, math.nan)
    lw = lw - lw.max()
    M = _tail_size(len(lw))
    order = lw.argsort()
    tail = order[-M:]
    cutoff = max(float(lw[order[-M - 1]]), math.log(torch.finfo(lw.dtype).tiny))
    excess = lw[tail].exp() - math.exp(cutoff)
    if float(lw[order[-1]] - lw[order[0]]) < 1e-8:  # all ratios equal but for rounding: q is the target
        return lw.log_softmax(-1), Estimate(-math.inf, 0.0)
    shape, width = _fit_tail(excess)
    k, scale = float(_shrunk(shape, M)), float(width)
    if not math.isfinite(k):
        return lw.log_softmax(-1), Estimate(math.inf, math.nan)
    p = (torch.arange(M, dtype=lw.dtype) + 0.5) / M
    quantiles = -scale * torch.log1p(-p) if abs(k) < 1e-12 else scale * torch.expm1(-k * torch.log1p(-p)) / k
    lw[tail] = (quantiles + math.exp(cutoff)).log().clamp_max(0.0)
    return lw.log_softmax(-1), Estimate(k, (1 + k) / math.sqrt(M))  # (4)


def tail_indices(log_values: Tensor) -> tuple[Tensor, Tensor]:
    """k-hat and its standard error, each (K,), for columns of logarithms of positive numbers (n, K)."""
    n = len(log_values)
    M = _tail_size(n)
    top = log_values.topk(M + 1, 0).values.flip(0).mT  # (K, M + 1), from small to large
    excess = (top - top[:, -1:]).exp()
    shape, _ = _fit_tail(excess[:, 1:] - excess[:, :1])
    k = _shrunk(shape, M)
    return k, (1 + k) / math.sqrt(M)  # (4)
