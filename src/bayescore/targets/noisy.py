"""Unbiased noise on the score of another target (eq. noisy_score, Appendix B of the paper).

    s_hat(x) = s(x) + beta |s(x)|_inf e,   e ~ N(0, I)                  (1)

The noise has the same scale in all coordinates, vanishes at the mode and is very large far from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from bayescore.rng import Streams
from bayescore.targets.base import Target, as_batch

__all__ = ["NoisyScore"]


class NoisyScore(Target):
    """`target` with noisy scores; its log density stays exact, for evaluation.

    Arguments:
        target: any target.
        beta: noise level, 0 or more.
    """

    name = "noisy"
    stochastic = True

    def __init__(self, target: Target, beta: float) -> None:
        if not 0 <= beta < math.inf:
            raise ValueError(f"beta must be finite and not negative; got {beta}")
        self.target, self.beta = target, float(beta)
        self.dim, self.dtype, self.device = target.dim, target.dtype, target.device
        self.has_density, self.normalised = target.has_density, target.normalised

    @property
    def batch_shape(self) -> torch.Size:
        return self.target.batch_shape

    @property
    def has_samples(self) -> bool:
        return self.target.has_samples

    def log_prob(self, x: Tensor) -> Tensor:
        return self.target.log_prob(x)

    def score(self, x: Tensor, streams: Streams | None = None) -> Tensor:
        exact = self.target.score(x, streams)
        if self.beta == 0:
            return exact
        if streams is None:
            raise TypeError("a noisy score needs `streams`, the random numbers of the fit")
        return exact + self.beta * exact.abs().amax(-1, keepdim=True) * streams.normal(*x.shape[1:])  # (1)

    def sample(self, n: int, seed: int | torch.Generator | None = None) -> Tensor:
        return self.target.sample(n, seed)

    @classmethod
    def stack(cls, members: Sequence[Self]) -> Self:
        if any(type(m) is not cls for m in members):
            raise TypeError("targets of one batch must be of one kind")
        if len({m.beta for m in members}) > 1:
            raise ValueError("noisy targets of one batch must share beta")
        return cls(as_batch([m.target for m in members]), members[0].beta)

    @property
    def can_stack(self) -> bool:
        return self.target.can_stack
