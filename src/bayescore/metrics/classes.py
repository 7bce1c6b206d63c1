"""Scores of class probabilities: error, negative log-likelihood, Brier score.

For probabilities p (N, K) and labels y (N,):
    error = (1/N) sum_i 1[argmax_k p_ik != y_i]                                                            (1)
    nll = -(1/N) sum_i log p_i,y_i                                                                         (2)
    brier = (1/N) sum_i sum_k (p_ik - 1[y_i = k])^2        between 0 and 2                                 (3)
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["brier", "check_probs", "error", "nll"]


def error(probs: Tensor, labels: Tensor) -> float:
    """(1)"""
    p, y = check_probs(probs, labels)
    return float((p.argmax(1) != y).double().mean())


def nll(probs: Tensor, labels: Tensor) -> float:
    """(2), in nats; a probability of zero counts as the smallest positive number of its type."""
    p, y = check_probs(probs, labels)
    tiny = torch.finfo(probs.dtype).tiny
    return -float(p.gather(1, y.unsqueeze(1)).clamp_min(tiny).log().mean())


def brier(probs: Tensor, labels: Tensor) -> float:
    """(3)"""
    p, y = check_probs(probs, labels)
    hit = torch.nn.functional.one_hot(y, p.shape[1])
    return float((p - hit).square().sum(1).mean())


def check_probs(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities (N, K) in float64 and labels (N,); raises unless they are valid."""
    if probs.dim() != 2 or not probs.is_floating_point() or 0 in probs.shape:
        raise ValueError(
            f"probs must be floating point numbers (N, K); got {probs.dtype} {tuple(probs.shape)}"
        )
    if labels.shape != probs.shape[:1] or labels.is_floating_point():
        raise ValueError(
            f"labels must be {len(probs)} whole numbers, one for each row of probs; "
            f"got {labels.dtype} {tuple(labels.shape)}"
        )
    p, y = probs.detach().double(), labels.detach().to(probs.device, torch.int64)
    off = float((p.sum(1) - 1).abs().max())
    if not off < 0.01 or float(p.min()) < 0:  # bfloat16 rounds the sum of ten probabilities to within 0.01
        raise ValueError(
            f"the rows of probs must be positive and sum to one; a row is off by {off:.3g}. "
            "Are they logits? Then use probs.softmax(1)"
        )
    if int(y.min()) < 0 or int(y.max()) >= p.shape[1]:
        raise ValueError(
            f"labels must lie in 0..{p.shape[1] - 1}; got numbers from {int(y.min())} to {int(y.max())}"
        )
    return p, y
